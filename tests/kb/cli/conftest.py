from __future__ import annotations

from pathlib import Path

import pytest

from tests.kb.git.checkout import Checkout


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Checkout:
    """A repository with one contract and one principle in its first commit, and the current folder in it."""
    made = Checkout(tmp_path / "repository")
    made.start()
    monkeypatch.chdir(made.root)
    monkeypatch.delenv("AGENTCOMPILE_LIBRARY", raising=False)
    monkeypatch.setenv("COLUMNS", "100")
    return made
