from __future__ import annotations

from pathlib import Path

import pytest

from tests.kb.git.checkout import Checkout


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    """A repository with one contract and one principle in its first commit."""
    made = Checkout(tmp_path / "repository")
    made.start()
    return made
