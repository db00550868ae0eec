"""One build of each library, shared by all tests of this folder and by all test processes of a run."""

from __future__ import annotations

import fcntl
import importlib.util
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kb.site.fabricate import ROOT, add_hostile_entry, add_kernels, copy_library

HAS_MATERIAL = importlib.util.find_spec("material") is not None


def build_site(library: Path, output: Path) -> Path:
    """Build ``library`` strictly into ``output``."""
    if not HAS_MATERIAL:
        pytest.skip("mkdocs-material is not installed (extra 'docs')")
    from kb.cli.site import documented_commands
    from kb.site.build import build

    build(library, output, documented_commands())
    return output


def _shared(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """``make(folder)`` done once a test run; the other processes wait for the first."""
    base = factory.getbasetemp()
    root = base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base
    folder = root / f"site-tests-{name}"
    with (root / f"site-tests-{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            make(folder)
    return folder


def _fill(folder: Path) -> None:
    copy_library(folder, ("decode-gemv", "gated-mlp"))
    add_hostile_entry(folder)
    add_kernels(folder)


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two families of the project's entries with made-up kernels and a hostile entry; links into others dangle."""
    return _shared(tmp_path_factory, "library", _fill)


@pytest.fixture(scope="session")
def site(library: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built pages of ``library``."""
    return _shared(tmp_path_factory, "pages", lambda folder: build_site(library, folder))


@pytest.fixture(scope="session")
def shipped_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built pages of what the project ships."""
    return _shared(tmp_path_factory, "shipped", lambda folder: build_site(ROOT, folder))
