from __future__ import annotations

from pathlib import Path

import pytest

from runtime.compile_cache import CompileCache


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> CompileCache:
    """A compile cache of this run's own, shared by its tests: the same kernel is compiled once."""
    return CompileCache(Path(tmp_path_factory.mktemp("images")))
