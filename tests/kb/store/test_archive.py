"""Kernels carried from one store to another."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from kb.store import KernelStore, StoreError
from kb.store.archive import export, import_


def test_an_exported_store_imports_whole_and_twice_without_harm(tmp_path: Path, make) -> None:
    source, target = KernelStore(tmp_path / "a"), KernelStore(tmp_path / "b")
    for i in range(3):
        source.admit(*make(i), [{"event": "prompt"}])
    export(source.entries()[0], tmp_path / "k.tar")
    added, known = import_(target, tmp_path / "k.tar")
    assert (len(added), len(known)) == (3, 0)
    assert target.verify() == []
    assert [e.manifest for e in target.entries()[0]] == [e.manifest for e in source.entries()[0]]
    added, known = import_(target, tmp_path / "k.tar")
    assert (len(added), len(known)) == (0, 3)


def test_the_same_entries_export_to_the_same_bytes(tmp_path: Path, make) -> None:
    store = KernelStore(tmp_path / "a")
    for i in range(3):
        store.admit(*make(i))
    export(store.entries()[0], tmp_path / "1.tar")
    export(list(reversed(store.entries()[0])), tmp_path / "2.tar")
    assert (tmp_path / "1.tar").read_bytes() == (tmp_path / "2.tar").read_bytes()


@pytest.mark.parametrize("name", ["../../../evil", "/etc/x/y/kernel.cu", "rope/cpu/d/other.sh", "rope/cpu/kernel.cu"])
def test_a_member_outside_the_layout_stops_the_import(tmp_path: Path, name: str) -> None:
    with tarfile.open(tmp_path / "k.tar", "w") as archive:
        info = tarfile.TarInfo(name)
        info.size = 1
        archive.addfile(info, io.BytesIO(b"x"))
    with pytest.raises(StoreError, match="unexpected member"):
        import_(KernelStore(tmp_path / "b"), tmp_path / "k.tar")
    assert not list((tmp_path / "b").glob("**/kernel*"))


def test_one_damaged_kernel_in_the_archive_imports_nothing(tmp_path: Path, make) -> None:
    source, target = KernelStore(tmp_path / "a"), KernelStore(tmp_path / "b")
    folders = [source.admit(*make(i)).folder for i in range(2)]
    entries = source.entries()[0]
    (folders[0] / "kernel.cpp").write_text("tampered")
    export(entries, tmp_path / "k.tar")
    with pytest.raises(StoreError, match="nothing was imported"):
        import_(target, tmp_path / "k.tar")
    assert list(target.folders()) == []


def test_a_file_that_is_no_archive_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "k.tar").write_bytes(b"not a tar")
    with pytest.raises(StoreError, match="not a readable kernel archive"):
        import_(KernelStore(tmp_path / "b"), tmp_path / "k.tar")
