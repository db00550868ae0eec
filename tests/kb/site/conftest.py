"""One build of each library, shared by all tests of this folder."""

from __future__ import annotations

import importlib.util
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


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two families of the project's entries with made-up kernels and a hostile entry; links into others dangle."""
    folder = copy_library(tmp_path_factory.mktemp("library"), ("decode-gemv", "gated-mlp"))
    add_hostile_entry(folder)
    add_kernels(folder)
    return folder


@pytest.fixture(scope="session")
def site(library: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built pages of ``library``."""
    return build_site(library, tmp_path_factory.mktemp("pages") / "site")


@pytest.fixture(scope="session")
def shipped_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built pages of what the project ships."""
    return build_site(ROOT, tmp_path_factory.mktemp("shipped") / "site")
