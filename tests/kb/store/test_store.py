"""What the store promises a reader and a writer."""

from __future__ import annotations

from pathlib import Path

import pytest

from kb.dtype import Target
from kb.store import KernelStore, StoreError
from kb.store.entry import MANIFEST, TRANSCRIPT


def test_an_admitted_kernel_reads_back_as_it_was_written(tmp_path: Path, make) -> None:
    store = KernelStore(tmp_path)
    candidate, manifest = make()
    events = [{"event": "prompt", "text": "µ and ×"}, {"event": "reply", "text": "x"}]
    assert store.admit(candidate, manifest, events).created
    entry = store.get(candidate.digest[:8])
    assert entry.candidate == candidate
    assert entry.transcript() == events
    assert entry.manifest.verdicts == manifest.verdicts
    assert store.verify() == []


def test_a_rejected_candidate_is_not_admitted(tmp_path: Path, make) -> None:
    candidate, manifest = make(accepted=False)
    with pytest.raises(StoreError, match="numerics failed"):
        KernelStore(tmp_path).admit(candidate, manifest)
    assert not list(tmp_path.glob("*/*/*"))


def test_a_manifest_of_another_candidate_is_refused(tmp_path: Path, make) -> None:
    candidate, _ = make(1)
    _, manifest = make(2)
    with pytest.raises(StoreError, match="another candidate"):
        KernelStore(tmp_path).admit(candidate, manifest)


def test_admitting_again_adds_the_new_verdict_once(tmp_path: Path, make) -> None:
    store = KernelStore(tmp_path)
    candidate, first = make(second=1)
    _, later = make(second=2)
    store.admit(candidate, first)
    assert not store.admit(candidate, later).created
    assert not store.admit(candidate, later).created
    assert len(store.get(candidate.digest).manifest.verdicts) == 2


def test_the_fastest_comes_first_and_revoked_kernels_do_not_run(tmp_path: Path, make) -> None:
    store = KernelStore(tmp_path)
    kernels = [make(i, ratio=r) for i, r in enumerate((1.1, 1.5, 1.3))]
    for candidate, manifest in kernels:
        store.admit(candidate, manifest)
    store.revoke(kernels[1][0].digest, "wrong on a shape nobody tried")
    admitted = store.admitted("rope", Target.CPU)
    assert [round(e.ratio, 2) for e in admitted] == [1.3, 1.1]
    assert store.admitted("rope", Target.CUDA) == []


def test_a_revocation_needs_a_reason_and_a_reinstatement_an_accepting_verdict(tmp_path: Path, make) -> None:
    store = KernelStore(tmp_path)
    candidate, manifest = make()
    store.admit(candidate, manifest)
    with pytest.raises(StoreError, match="reason"):
        store.revoke(candidate.digest, "  ")
    store.revoke(candidate.digest, "stale")
    _, refused = make(accepted=False)
    with pytest.raises(StoreError, match="accepts"):
        store.reinstate(candidate.digest, refused.verdicts[0])
    _, fresh = make(second=5)
    entry = store.reinstate(candidate.digest, fresh.verdicts[0])
    assert entry.manifest.status == "admitted"
    assert entry.manifest.reason == ""


@pytest.mark.parametrize("name", ["kernel.cpp", MANIFEST, TRANSCRIPT])
@pytest.mark.parametrize("damage", ["truncate", "flip", "delete", "binary"])
def test_a_damaged_file_is_reported_and_the_entry_skipped(tmp_path: Path, make, name: str, damage: str) -> None:
    store = KernelStore(tmp_path)
    candidate, manifest = make()
    path = store.admit(candidate, manifest, [{"event": "x"}]).folder / name
    content = path.read_bytes()
    if damage == "truncate":
        path.write_bytes(content[: len(content) // 2])
    elif damage == "flip":
        path.write_bytes(content[:5] + bytes([content[5] ^ 1]) + content[6:])
    elif damage == "binary":
        path.write_bytes(b"\xff\xfe\x00" + content)
    else:
        path.unlink()
    entries, damaged = store.entries()
    assert entries == []
    assert len(damaged) == 1
    assert name in damaged[0]
    with pytest.raises(StoreError, match="damaged"):
        store.get(candidate.digest)


def test_a_damaged_entry_is_replaced_when_the_kernel_is_admitted_again(tmp_path: Path, make) -> None:
    store = KernelStore(tmp_path)
    candidate, manifest = make()
    folder = store.admit(candidate, manifest).folder
    (folder / "kernel.cpp").write_text("something else")
    assert store.admit(candidate, manifest).created
    assert store.verify() == []


def test_an_entry_moved_under_another_contract_is_damaged(tmp_path: Path, make) -> None:
    store = KernelStore(tmp_path)
    candidate, manifest = make()
    folder = store.admit(candidate, manifest).folder
    target = tmp_path / "kv_append" / "cpu" / folder.name
    target.parent.mkdir(parents=True)
    folder.rename(target)
    assert "another contract" in store.verify()[0]


def test_a_short_or_unknown_or_ambiguous_digest_is_one_clear_error(tmp_path: Path, make) -> None:
    store = KernelStore(tmp_path)
    folder = store.admit(*make()).folder
    with pytest.raises(StoreError, match="four hexadecimal digits"):
        store.get("xyz")
    with pytest.raises(StoreError, match="no kernel"):
        store.get("0123456789")
    folder.with_name(folder.name[:20] + "0" * 44).mkdir()
    with pytest.raises(StoreError, match="ambiguous"):
        store.get(folder.name[:20])
    assert store.get(folder.name).digest == folder.name


def test_removing_needs_a_revocation_first(tmp_path: Path, make) -> None:
    store = KernelStore(tmp_path)
    candidate, manifest = make()
    store.admit(candidate, manifest)
    with pytest.raises(StoreError, match="revoke it before"):
        store.remove(candidate.digest)
    store.revoke(candidate.digest, "stale")
    store.remove(candidate.digest)
    assert list(store.folders()) == []


def test_collect_removes_only_old_leftovers(tmp_path: Path, make) -> None:
    store = KernelStore(tmp_path)
    store.admit(*make())
    leftover = tmp_path / ".incoming" / "dead-writer"
    leftover.mkdir()
    assert store.collect() == []
    age = leftover.stat().st_mtime + 4000
    assert store.collect(now=age) == [leftover]
    assert store.verify() == []
    assert len(list(store.folders())) == 1
