"""Benchmark records, ``bench/results/*.md``: pages of their own, and the source of every number in a chart."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

FOLDER = "bench/results"


@dataclass(frozen=True, slots=True)
class Record:
    """One record: its file name without ``.md``, its heading and its Markdown."""

    name: str
    title: str
    text: str

    def table(self, heading: str) -> list[dict[str, str]]:
        """Rows of the first table under ``heading``, by column. Raises KeyError when there is none."""
        section = re.split(rf"^##+ {re.escape(heading)}\s*$", self.text, maxsplit=1, flags=re.MULTILINE)
        lines = (
            [] if len(section) < 2 else re.split(r"^##+ ", section[1], maxsplit=1, flags=re.MULTILINE)[0].split("\n")
        )
        rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines if line.startswith("|")]
        if len(rows) < 3:
            raise KeyError(heading)
        return [dict(zip(rows[0], row, strict=True)) for row in rows[2:]]


def read_records(root: Path) -> tuple[Record, ...]:
    """All records below a library's root, by name."""
    return tuple(_read(path) for path in sorted((root / FOLDER).glob("*.md")))


def _read(path: Path) -> Record:
    text = path.read_text(encoding="utf-8")
    title = next((line[2:].strip() for line in text.splitlines() if line.startswith("# ")), path.stem)
    return Record(path.stem, title, text)
