"""What a benchmark script saw: a record for a file, and rows for a table."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(slots=True)
class Report:
    """What was seen, and the rows of the table."""

    record: dict[str, Any] = field(default_factory=dict)
    rows: list[tuple[str, str, str]] = field(default_factory=list)
    log: list[str] = field(default_factory=list)

    def add(self, section: str, name: str, text: str, *, ok: bool = True) -> None:
        """One row; a failed one is marked."""
        self.rows.append((section, name, text if ok else f"FAILED: {text}"))
        self.say(f"{section} | {name} | {self.rows[-1][2]}")

    def say(self, text: str) -> None:
        """A line of the log, shown at once."""
        self.log.append(text)
        print(text, flush=True)

    @property
    def failures(self) -> int:
        """Rows that failed."""
        return sum(text.startswith("FAILED") for _, _, text in self.rows)

    def write(self, folder: Path, name: str) -> None:
        """``NAME.json`` with the record and the rows, ``NAME.log`` with every line said."""
        record = {**self.record, "rows": self.rows}
        (folder / f"{name}.json").write_text(json.dumps(record, indent=1, default=str) + "\n", encoding="utf-8")
        (folder / f"{name}.log").write_text("\n".join(self.log) + "\n", encoding="utf-8")

    def print_table(self) -> None:
        """All rows, aligned, and how many failed."""
        sections, names = (max((len(row[i]) for row in self.rows), default=0) for i in range(2))
        print()
        for section, name, text in self.rows:
            print(f"{section:<{sections}}  {name:<{names}}  {text}")
        print(f"{len(self.rows)} rows, {self.failures} failed, {self.record.get('seconds', 0.0):.0f} s")
