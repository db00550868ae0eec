"""The hand-written pages of ``site/docs``, copied as they are; a marker on a line of its own takes what is generated.

``<!-- generated: NAME -->`` keeps numbers out of prose: a chart or a table on a hand-written page is still drawn from
the records.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from kb.site import text
from kb.site.content import Content
from kb.site.drawing import architecture
from kb.site.landing import bandwidth_chart, bandwidth_table, counts, decode_table, ladder_chart

_MARKER = re.compile(r"^<!-- generated: ([a-z-]+) -->$", re.MULTILINE)
DECISIONS = "decisions"
PROJECT = Path(__file__).resolve().parents[2]


def contributing(_: Content) -> str:
    """CONTRIBUTING.md itself, its links into the repository as text: one source, read in both places."""
    text_ = (PROJECT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    return re.sub(r"\[([^\]]+)\]\((?!https?:)[^)#]+\)", r"`\1`", text_)


GENERATORS: Mapping[str, Callable[[Content], str]] = {
    "architecture": lambda _: architecture(),
    "bandwidth-chart": bandwidth_chart,
    "bandwidth-table": bandwidth_table,
    "contributing": contributing,
    "counts": counts,
    "decode-table": decode_table,
    "ladder-chart": ladder_chart,
}


class SiteError(Exception):
    """A site that cannot be built; the message names the file and says what to do."""


def pages(folder: Path, content: Content) -> Iterator[tuple[str, str]]:
    """Path and text of every hand-written page, markers filled in. Raises SiteError for an unknown marker."""
    for path in sorted(folder.rglob("*.md")):
        yield path.relative_to(folder).as_posix(), _filled(path, content)
    yield f"{DECISIONS}/index.md", _decisions(folder)


def _filled(path: Path, content: Content) -> str:
    def generated(match: re.Match[str]) -> str:
        if match[1] not in GENERATORS:
            raise SiteError(f"{path}: nothing generates '{match[1]}' ({', '.join(GENERATORS)})")
        try:
            return GENERATORS[match[1]](content)
        except KeyError as missing:
            raise SiteError(f"{path}: '{match[1]}' needs {missing} under bench/results/") from None

    return _MARKER.sub(generated, path.read_text(encoding="utf-8"))


def _decisions(folder: Path) -> str:
    rows = []
    for path in sorted((folder / DECISIONS).glob("[0-9]*.md")):
        lines = path.read_text(encoding="utf-8").splitlines()
        title = next(line[2:] for line in lines if line.startswith("# "))
        status = next((line.removeprefix("Status: ") for line in lines if line.startswith("Status: ")), "")
        rows.append((f"[{text.inline(title)}]({path.name})", text.inline(status)))
    intro = "Why the system is built as it is: what was chosen, what against, and what would change our mind."
    return text.page("Decision records", [intro, text.table(("decision", "status"), rows)])
