"""Runs one file of the broken-file corpus as if it stood in a small library."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path

from kb.diagnostic import Diagnostic
from kb.lint.engine import lint_files
from kb.lint.example import CONTRACT, block, contract

FOLDER = Path(__file__).parent / "broken"
TODAY = date(2026, 11, 30)
_NEIGHBOURS = {
    **contract(title=CONTRACT["title"]).files,
    **block(id="aaa/first", title="Name the first block", claim="Give the very first block a name of its own.").files,
    **block(title="Keep the order of rows", claim="Store results in the order in which their rows came in.").files,
}


def expectations() -> dict[str, list[str]]:
    """What each file must give: ``CODE line:column``, in order."""
    found: dict[str, list[str]] = json.loads((FOLDER / "expected.json").read_text(encoding="utf-8"))
    return found


def findings(name: str) -> list[Diagnostic]:
    """Findings of one file of the corpus; a name with ``_`` is a contract's, one with ``-`` a principle's."""
    stem = name.removesuffix(".yaml")
    path = f"contracts/{name}" if stem.startswith("contract_") else f"principles/corpus/{name}"
    found = lint_files({**_NEIGHBOURS, path: (FOLDER / name).read_bytes()}, today=TODAY)
    assert all(f.path == path for f in found), "its neighbours have no findings"
    return found


def shown(found: list[Diagnostic]) -> list[str]:
    """Findings as the expectations state them."""
    return [f"{f.code} {f.line}:{f.column}" for f in found]
