"""A page for every rule, from the rule itself: ``python -m kb.lint.docs write|check FOLDER``."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from kb.lint.example import Example
from kb.lint.registry import rules
from kb.lint.rule import (
    ChangeRule,
    ContractRule,
    EntryRule,
    LibraryRule,
    LoaderRule,
    PrincipleRule,
    Rule,
)

INDEX = "index.md"
_GROUPS = {
    "AC0": "YAML and waivers",
    "AC1": "Entries and principles",
    "AC2": "Contracts",
    "AC3": "The library as a whole",
    "AC4": "Against the base revision",
}


def page(rule: Rule) -> str:
    """The rule's page in Markdown."""
    lines = [f"# {rule.code}: {_plain(rule.title)}", "", _facts(rule), "", _plain(rule.body)]
    for heading, examples in (("Bad", rule.bad), ("Good", rule.good)):
        shown = [example for example in examples if _worth(example)]
        if shown:
            lines += ["", f"## {heading}"]
        for example in shown:
            lines += ["", *_block(example.shown)]
    if rule.waivable:
        lines += ["", "## Excuse it", "", *_block(f"# noqa: {rule.code} reason, until=YYYY-MM-DD")]
    return "\n".join(lines) + "\n"


def index() -> str:
    """The list of all rules in Markdown."""
    lines = ["# Rules", "", "What `agentcompile check` holds. `agentcompile check --explain CODE` prints a page."]
    for prefix, heading in _GROUPS.items():
        lines += ["", f"## {heading}", "", "| code | severity | what it finds |", "|---|---|---|"]
        lines += [
            f"| [{r.code}]({r.code}.md) | {r.severity} | {_plain(r.title)} |"
            for r in rules()
            if r.code.startswith(prefix)
        ]
    return "\n".join(lines) + "\n"


def pages() -> Iterator[tuple[str, str]]:
    """File name and text of every page."""
    yield INDEX, index()
    for rule in rules():
        yield f"{rule.code}.md", page(rule)


def write(folder: Path) -> list[str]:
    """Write all pages; returns the names of those that changed. Pages of rules that are gone stay."""
    folder.mkdir(parents=True, exist_ok=True)
    changed = stale(folder)
    for name, text in pages():
        if name in changed:
            (folder / name).write_text(text, encoding="utf-8", newline="\n")
    return changed


def stale(folder: Path) -> list[str]:
    """Names of pages that are missing or differ from what the rules say."""
    return [name for name, text in pages() if not _holds(folder / name, text)]


def _holds(path: Path, text: str) -> bool:
    return path.is_file() and path.read_bytes() == text.encode("utf-8")


def _facts(rule: Rule) -> str:
    scope = {
        LoaderRule: "while a file is read",
        EntryRule: "one entry",
        PrincipleRule: "one principle",
        ContractRule: "one contract",
        LibraryRule: "all entries together",
        ChangeRule: "a change, against the base revision",
    }
    looks_at = next((text for kind, text in scope.items() if isinstance(rule, kind)), "the files of a library")
    return f"`{rule.name}` · {rule.severity} · looks at {looks_at}"


def _worth(example: Example) -> bool:
    return bool(example.shown.strip())


def _block(text: str) -> list[str]:
    """A code block whose fence is longer than any run of backticks inside."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    visible = "".join(c if c.isprintable() or c == "\n" else f"\\u{ord(c):04x}" for c in text.rstrip("\n"))
    return [f"{fence}yaml", visible, fence]


def _plain(text: str) -> str:
    """Docstring markup as Markdown: double backticks become single ones."""
    return text.replace("``", "`")


def main(arguments: list[str]) -> int:
    """``write FOLDER`` or ``check FOLDER``; 1 when a page is stale, 2 for bad usage."""
    if len(arguments) != 2 or arguments[0] not in ("write", "check"):
        print("usage: python -m kb.lint.docs write|check FOLDER", file=sys.stderr)
        return 2
    mode, folder = arguments[0], Path(arguments[1])
    names = write(folder) if mode == "write" else stale(folder)
    for name in names:
        print(f"{'wrote' if mode == 'write' else 'stale'} {folder / name}")
    return 1 if names and mode == "check" else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
