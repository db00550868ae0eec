"""The library at a revision is what a checkout of it would hold, without one being made."""

from __future__ import annotations

from pathlib import Path

import pytest

from kb.git.errors import GitError
from kb.git.repository import open_repository
from kb.git.revisions import Endpoints, endpoints
from kb.git.snapshot import load_pair, load_revision
from kb.library import Library, load_library
from kb.yaml.source import MAX_BYTES
from tests.kb.git.checkout import Checkout, contract_yaml, git


def pair(checkout: Checkout, typed: str) -> tuple[Library, Library]:
    with open_repository(checkout.library) as repository:
        return load_pair(repository, checkout.library, endpoints(repository, typed))


def test_a_revision_equals_the_files_it_was_committed_from(checkout: Checkout):
    with open_repository(checkout.root) as repository:
        loaded = load_revision(repository, checkout.root, repository.resolve("HEAD"))
    on_disk = load_library(checkout.root)
    assert loaded.principles == on_disk.principles
    assert loaded.contracts == on_disk.contracts
    assert [e.path for e in loaded.entries] == [e.path for e in on_disk.entries]


def test_reading_a_revision_leaves_the_working_tree_and_the_index_alone(checkout: Checkout):
    checkout.put(title="Edited and not committed")
    checkout.put("demo/untracked")
    before = git(checkout.root, "status", "--porcelain")
    index = (checkout.root / ".git/index").read_bytes()
    old, new = pair(checkout, "HEAD")
    assert git(checkout.root, "status", "--porcelain") == before
    assert (checkout.root / ".git/index").read_bytes() == index
    assert set(old.principles) == {"demo/slug"}
    assert set(new.principles) == {"demo/slug", "demo/untracked"}
    assert new.principles["demo/slug"].title == "Edited and not committed"


def test_a_deleted_file_is_gone_from_the_working_tree_side(checkout: Checkout):
    (checkout.root / "principles/demo/slug.yaml").unlink()
    old, new = pair(checkout, "HEAD")
    assert "demo/slug" in old.principles
    assert "demo/slug" not in new.principles


def test_what_did_not_change_is_parsed_once(checkout: Checkout):
    checkout.put("demo/second")
    old, new = pair(checkout, "HEAD")
    assert new.entry("demo/slug") is old.entry("demo/slug")


def test_a_library_in_a_subdirectory_is_read_from_there(tmp_path: Path):
    nested = Checkout(tmp_path / "repository", library="tools/knowledge")
    (nested.root / "contracts").mkdir()
    (nested.root / "contracts/stray.yaml").write_text(contract_yaml("stray"))
    nested.start()
    old, new = pair(nested, "HEAD")
    assert set(old.contracts) == {"op"}
    assert [e.path for e in new.entries] == ["contracts/op.yaml", "principles/demo/slug.yaml"]


def test_a_broken_file_at_a_revision_stops_nothing(checkout: Checkout):
    checkout.write("principles/demo/broken.yaml", "id: [\n")
    checkout.write("principles/demo/latin.yaml", "id: demo/latin\n")
    (checkout.root / "principles/demo/latin.yaml").write_bytes(b"title: \xff\n")
    checkout.write("principles/demo/long.yaml", "# " + "x" * MAX_BYTES)
    head = checkout.commit("broken")
    with open_repository(checkout.root) as repository:
        loaded = load_revision(repository, checkout.root, head)
    assert set(loaded.principles) == {"demo/slug"}
    on_disk = load_library(checkout.root)
    assert [(f.path, f.code) for f in loaded.findings] == [(f.path, f.code) for f in on_disk.findings]
    assert {f.path for f in loaded.findings} == {f"principles/demo/{n}.yaml" for n in ("broken", "latin", "long")}


def test_a_revision_before_the_library_is_empty_but_two_such_are_an_error(tmp_path: Path):
    young = Checkout(tmp_path / "repository")
    (young.root / "README").write_text("nothing yet\n")
    first = young.commit("before")
    second = young.commit("still before")
    young.start()
    old, new = pair(young, f"{first}..HEAD")
    assert not old.entries
    assert set(new.contracts) == {"op"}
    with (
        open_repository(young.root) as repository,
        pytest.raises(GitError, match=r"neither .* has entries in principles/ and contracts/"),
    ):
        load_pair(repository, young.root, Endpoints(first, second))


def test_a_worktree_reads_its_own_files(checkout: Checkout, tmp_path: Path):
    git(checkout.root, "worktree", "add", "-q", "-b", "side", str(tmp_path / "side"))
    side = tmp_path / "side"
    (side / "principles/demo/slug.yaml").unlink()
    with open_repository(side) as repository:
        old, new = load_pair(repository, side, endpoints(repository, "HEAD"))
    assert "demo/slug" in old.principles
    assert "demo/slug" not in new.principles


def test_a_shallow_clone_compares_what_it_has(checkout: Checkout, tmp_path: Path):
    checkout.put(title="Second")
    checkout.commit("second")
    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{checkout.root}", "shallow")
    shallow = tmp_path / "shallow"
    (shallow / "principles/demo/slug.yaml").unlink()
    with open_repository(shallow) as repository:
        old, new = load_pair(repository, shallow, endpoints(repository, "HEAD"))
    assert old.principles["demo/slug"].title == "Second"
    assert not new.principles
