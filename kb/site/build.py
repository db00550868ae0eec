"""From a library to a folder of static pages: sources on disk first, then mkdocs, then a look at every link.

mkdocs gets plain Markdown and a config file, no plugin of ours, no macro and no hook, so that another generator can
take its place. The output is written beside its final place and moved there when it is whole.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kb.site.content import Content, read_content
from kb.site.hand_written import SiteError
from kb.site.links import broken_links
from kb.site.plan import Plan, plan

MARKER = "site.json"
SOURCES = Path(__file__).resolve().parents[2] / "site"
ASSETS = "assets"


@dataclass(frozen=True, slots=True)
class Built:
    """What was built: where, from which commit, and how many pages of each section."""

    folder: Path
    commit: str
    pages: Mapping[str, int]


def build(root: Path, output: Path, commands: Mapping[str, Any], *, strict: bool = True) -> Built:
    """Build the site of the library at ``root`` into ``output``; sources are left in ``<output>-src``.

    ``strict``: an unreadable entry, a damaged kernel and any warning of mkdocs fail the build. A broken link always
    does. Raises SiteError; ``output`` is then as it was.
    """
    if not (SOURCES / "mkdocs.yml").is_file():
        raise SiteError("the site's hand-written pages are not installed; run this from a checkout of the project")
    check_replaceable(output)
    content = read_content(root.resolve())
    if strict:
        _refuse_unreadable(content)
    planned = plan(content, SOURCES / "docs", commands)
    sources = output.with_name(f"{output.name}-src")
    _write_sources(sources, planned)
    staged = output.with_name(f"{output.name}.part")
    shutil.rmtree(staged, ignore_errors=True)
    try:
        with _build_date(root):
            _run_mkdocs(sources / "mkdocs.yml", staged, strict=strict)
        _check(staged, planned)
        built = Built(output, content.commit, _counts(planned))
        marker = {"commit": built.commit, "pages": dict(built.pages)}
        (staged / MARKER).write_text(json.dumps(marker, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        if output.exists():
            shutil.rmtree(output)
        staged.rename(output)
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    return built


def check_replaceable(output: Path) -> None:
    """Raises SiteError when ``output`` holds anything but a site built earlier."""
    if output.exists() and (not output.is_dir() or (any(output.iterdir()) and not (output / MARKER).is_file())):
        raise SiteError(f"{output} exists and is no site built by this command; name an empty folder with --output")
    if output.resolve() == SOURCES or SOURCES in output.resolve().parents:
        raise SiteError(f"{output} lies in the site's sources; name another folder with --output")


def _refuse_unreadable(content: Content) -> None:
    unreadable = [entry for entry in content.library.entries if entry.model is None]
    if unreadable:
        first = unreadable[0].findings[0] if unreadable[0].findings else unreadable[0].path
        raise SiteError(f"{len(unreadable)} entries cannot be read, first {first}; run 'agentcompile check'")
    if content.damaged:
        raise SiteError(f"{len(content.damaged)} kernels are damaged, first {content.damaged[0]}")


def _write_sources(folder: Path, planned: Plan) -> None:
    """Write the sources; files of an earlier build that nothing wants any more go."""
    docs = folder / "docs"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(SOURCES / "docs" / ASSETS, docs / ASSETS)
    for path, text in planned.pages.items():
        target = docs / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8", newline="\n")
    # JSON is YAML; INHERIT keeps what is written by hand in one tracked file.
    config = {"INHERIT": str(SOURCES / "mkdocs.yml"), "docs_dir": "docs", "nav": planned.nav}
    (folder / "mkdocs.yml").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")


def _run_mkdocs(config_file: Path, output: Path, *, strict: bool) -> None:
    # The theme prints a notice about another product's next version to every log.
    os.environ.setdefault("NO_MKDOCS_2_WARNING", "true")
    from mkdocs.commands.build import build as mkdocs_build
    from mkdocs.config import load_config
    from mkdocs.exceptions import Abort, MkDocsException

    messages = _Messages()
    logger = logging.getLogger("mkdocs")
    logger.addHandler(messages)
    try:
        config = load_config(str(config_file), site_dir=str(output), strict=strict)
        mkdocs_build(config)
    except Abort:
        raise SiteError(f"the build has warnings, first: {messages.first}") from None
    except MkDocsException as error:
        raise SiteError(f"mkdocs: {' '.join(str(error).split())}") from None
    finally:
        logger.removeHandler(messages)


class _Messages(logging.Handler):
    """Keeps the first warning, to name it."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.first = "see the log"
        self._seen = False

    def emit(self, record: logging.LogRecord) -> None:
        if not self._seen:
            self.first, self._seen = " ".join(record.getMessage().split()), True


def _check(output: Path, planned: Plan) -> None:
    wanted = {path.removesuffix(".md") + ".html" for path in planned.pages} | {"404.html"}
    found = {path.relative_to(output).as_posix() for path in output.rglob("*.html")}
    if wanted != found:
        odd = sorted(wanted ^ found)
        raise SiteError(f"{len(odd)} pages are missing or too many after the build, first {odd[0]}")
    broken = broken_links(output)
    if broken:
        raise SiteError(f"{len(broken)} broken links, first: {broken[0]}")


def _counts(planned: Plan) -> dict[str, int]:
    counts: dict[str, int] = {}
    for path in planned.pages:
        section = path.split("/")[0] if "/" in path else "top"
        counts[section] = counts.get(section, 0) + 1
    return dict(sorted(counts.items()))


@contextmanager
def _build_date(root: Path) -> Iterator[None]:
    """SOURCE_DATE_EPOCH from the commit, unless it is set: one commit gives one output."""
    before = os.environ.get("SOURCE_DATE_EPOCH")
    os.environ["SOURCE_DATE_EPOCH"] = before or str(int(_commit_date(root).timestamp()))
    try:
        yield
    finally:
        if before is None:
            del os.environ["SOURCE_DATE_EPOCH"]


def _commit_date(root: Path) -> datetime:
    from kb.git.errors import GitError
    from kb.git.repository import open_repository

    try:
        with open_repository(root) as repository:
            if not repository.is_empty:
                return repository.commit(repository.resolve("HEAD")).date
    except GitError:
        pass
    return datetime(2000, 1, 1, tzinfo=UTC)
