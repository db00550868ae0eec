from __future__ import annotations

from collections.abc import Callable

import pytest

from kb.candidate import Candidate
from kb.manifest import Manifest
from tests.kb.store.fabricate import make_kernel


@pytest.fixture
def make() -> Callable[..., tuple[Candidate, Manifest]]:
    return make_kernel
