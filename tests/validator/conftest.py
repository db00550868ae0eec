from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

# Many small calls beside other tests: threads that spin while they wait would cost more than the work itself. Read when
# torch loads its OpenMP library, so it must be set before torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import pytest

from kb.contract import Contract
from kb.dtype import Target
from kb.library import library_root, load_library
from runtime.compile_cache import CompileCache
from validator.worker import Worker


@pytest.fixture(scope="session")
def contracts() -> dict[str, Contract]:
    """The contracts of this checkout."""
    return dict(load_library(library_root()).contracts)


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> CompileCache:
    """A compile cache of this run's own."""
    return CompileCache(Path(tmp_path_factory.mktemp("images")))


@pytest.fixture(scope="session")
def cpu_worker() -> Iterator[Worker]:
    """A running supervisor; each test opens residents of its own in it."""
    with Worker(Target.CPU) as worker:
        yield worker
