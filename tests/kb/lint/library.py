"""A small library on disk."""

from __future__ import annotations

from pathlib import Path

from kb.lint.example import BLOCK, DEMO, _text


def make_library(root: Path) -> Path:
    """One contract and one block without findings."""
    for path, data in DEMO.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
    return root


def add_block(root: Path, slug: str, **changes: str | None) -> Path:
    """A second block, sound unless a change breaks it."""
    path = root / "principles" / "demo" / f"{slug}.yaml"
    title = f"Title of {slug.replace('-', ' ')}"
    path.write_text(_text(BLOCK, {"id": f"demo/{slug}", "title": title, **changes}), encoding="utf-8")
    return path
