"""Who changed which field when, along the entry and not along its path."""

from __future__ import annotations

from pathlib import Path

import pytest

from kb.diff import ChangeClass
from kb.git.errors import GitError
from kb.git.history import History, history
from kb.git.repository import open_repository
from tests.kb.git.checkout import Checkout, git, principle_yaml


def read(folder: Path, entry_id: str = "demo/slug") -> History:
    with open_repository(folder) as repository:
        return history(repository, folder, entry_id)


def told(found: History) -> list[tuple[str | None, str, list[str]]]:
    """(subject, event, fields changed), newest first."""
    return [(v.commit.subject if v.commit else None, v.event, [e.path for e in v.edits]) for v in found.versions]


def last(found: History, field: str) -> str | None:
    """Subject of the commit that last changed a field."""
    (blame,) = [b for b in found.fields if b.path == field]
    if blame.version is None:
        return None
    commit = found.versions[blame.version].commit
    return commit.subject if commit else "uncommitted"


def test_versions_name_author_fields_and_kind_of_change(checkout: Checkout):
    checkout.put(version=2, when={"target": ["cuda"], "batch": {"max": 4}})
    checkout.commit("narrower", GIT_AUTHOR_NAME="Ben Bauer", GIT_AUTHOR_DATE="2026-02-03T10:00:00+02:00")
    found = read(checkout.root)
    assert told(found) == [("narrower", "changed", ["version", "when.batch.max"]), ("start", "added", [])]
    newest = found.versions[0]
    assert newest.commit is not None
    assert newest.commit.author == "Ben Bauer"
    assert newest.commit.date.isoformat() == "2026-02-03T10:00:00+02:00"
    assert (newest.version, newest.status) == (2, "accepted")
    assert newest.classes == (ChangeClass.NARROWED,)
    assert [(e.before, e.after) for e in newest.edits] == [(1, 2), (8, 4)]
    assert last(found, "when.batch") == "narrower"
    assert last(found, "claim") == "start"


def test_commits_that_do_not_touch_the_entry_are_not_versions(checkout: Checkout):
    checkout.put("demo/other")
    checkout.commit("another entry")
    assert told(read(checkout.root)) == [("start", "added", [])]


def test_uncommitted_changes_come_first(checkout: Checkout):
    checkout.put(title="Edited")
    found = read(checkout.root)
    assert told(found)[0] == (None, "changed", ["title"])
    assert last(found, "title") == "uncommitted"


def test_an_untracked_entry_has_one_version(checkout: Checkout):
    checkout.put("demo/fresh")
    assert told(read(checkout.root, "demo/fresh")) == [(None, "added", [])]


def test_an_empty_repository_has_only_the_working_tree(tmp_path: Path):
    empty = Checkout(tmp_path / "empty")
    empty.put()
    assert told(read(empty.root)) == [(None, "added", [])]


def test_a_moved_file_is_followed_by_id_however_much_was_rewritten(checkout: Checkout):
    git(checkout.root, "mv", "principles/demo/slug.yaml", "principles/demo/misplaced.yaml")
    text = principle_yaml(claim="Quite another claim.", why="Quite another reason.", title="Quite another title")
    checkout.write("principles/demo/misplaced.yaml", text)
    checkout.commit("moved and rewritten")
    git(checkout.root, "mv", "principles/demo/misplaced.yaml", "principles/demo/slug.yaml")
    checkout.commit("moved back")
    found = read(checkout.root)
    assert told(found) == [
        ("moved back", "moved", []),
        ("moved and rewritten", "moved", ["title", "claim", "why"]),
        ("start", "added", []),
    ]
    assert last(found, "claim") == "moved and rewritten"
    assert last(found, "effect") == "start"


def test_a_move_of_the_whole_library_is_followed(checkout: Checkout):
    for folder in ("principles", "contracts"):
        (checkout.root / "knowledge").mkdir(exist_ok=True)
        git(checkout.root, "mv", folder, f"knowledge/{folder}")
    checkout.commit("into a folder")
    found = read(checkout.root / "knowledge")
    assert [(subject, event) for subject, event, _ in told(found)] == [("into a folder", "moved"), ("start", "added")]


def test_two_files_that_swap_places_keep_their_own_histories(checkout: Checkout):
    checkout.put("demo/other", title="Other")
    checkout.commit("other")
    one, two = (checkout.root / f"principles/demo/{n}.yaml" for n in ("slug", "other"))
    a, b = one.read_text(), two.read_text()
    one.write_text(b)
    two.write_text(a)
    checkout.commit("swapped")
    assert [s for s, _, _ in told(read(checkout.root))] == ["swapped", "start"]
    assert [s for s, _, _ in told(read(checkout.root, "demo/other"))] == ["swapped", "other"]


def test_an_id_that_was_edited_is_followed_and_shown(checkout: Checkout):
    git(checkout.root, "mv", "principles/demo/slug.yaml", "principles/demo/renamed.yaml")
    checkout.write("principles/demo/renamed.yaml", principle_yaml("demo/renamed"))
    checkout.commit("renamed")
    assert told(read(checkout.root, "demo/renamed")) == [("renamed", "moved", ["id"]), ("start", "added", [])]


def test_branches_are_told_apart_and_a_plain_merge_is_no_version(checkout: Checkout):
    git(checkout.root, "checkout", "-q", "-b", "side")
    checkout.put(title="From the side")
    checkout.commit("title on the side")
    git(checkout.root, "checkout", "-q", "main")
    checkout.put(modified="2026-02-02")
    checkout.commit("date on main")
    git(checkout.root, "merge", "-q", "--no-edit", "side")
    found = read(checkout.root)
    assert sorted(told(found)[:2]) == [
        ("date on main", "changed", ["modified"]),
        ("title on the side", "changed", ["title"]),
    ]
    assert len(found.versions) == 3
    assert last(found, "title") == "title on the side"
    assert last(found, "modified") == "date on main"


def test_a_merge_is_a_version_of_what_only_it_changed(checkout: Checkout):
    git(checkout.root, "checkout", "-q", "-b", "side")
    checkout.put(title="From the side")
    checkout.commit("side")
    git(checkout.root, "checkout", "-q", "main")
    checkout.put(modified="2026-02-02")
    checkout.commit("main")
    git(checkout.root, "merge", "-q", "--no-commit", "side")
    checkout.put(title="From the side", modified="2026-02-02", claim="Decided in the merge.")
    checkout.commit("merge")
    assert told(read(checkout.root))[0] == ("merge", "changed", ["claim"])


def test_a_rename_on_one_branch_and_an_edit_on_the_other_are_both_told(checkout: Checkout):
    git(checkout.root, "checkout", "-q", "-b", "side")
    git(checkout.root, "mv", "principles/demo/slug.yaml", "principles/demo/moved.yaml")
    checkout.commit("moved on the side")
    git(checkout.root, "checkout", "-q", "main")
    checkout.put(title="Edited on main")
    checkout.commit("edited on main")
    git(checkout.root, "merge", "-q", "--no-edit", "side")
    found = read(checkout.root)
    assert {s for s, _, _ in told(found)} >= {"edited on main", "moved on the side", "start"}
    assert last(found, "title") == "edited on main"


def test_a_shallow_clone_says_where_the_history_is_cut(checkout: Checkout, tmp_path: Path):
    checkout.put(title="Second")
    checkout.commit("second")
    checkout.put(title="Second", modified="2026-02-02")
    checkout.commit("third")
    git(tmp_path, "clone", "-q", "--depth", "2", f"file://{checkout.root}", "shallow")
    found = read(tmp_path / "shallow")
    assert found.is_cut
    assert told(found) == [("third", "changed", ["modified"]), ("second", "cut", [])]
    assert last(found, "modified") == "third"
    assert last(found, "title") is None
    assert not read(checkout.root).is_cut


def test_a_version_that_was_broken_is_told_and_does_not_end_the_history(checkout: Checkout):
    checkout.write("principles/demo/slug.yaml", "id: demo/slug\ntitle: [\n")
    checkout.commit("broken")
    checkout.put(title="Repaired")
    checkout.commit("repaired")
    assert told(read(checkout.root)) == [
        ("repaired", "changed", ["title"]),
        ("broken", "unreadable", []),
        ("start", "added", []),
    ]


def test_a_removed_entry_keeps_its_history(checkout: Checkout):
    (checkout.root / "principles/demo/slug.yaml").unlink()
    checkout.commit("removed")
    found = read(checkout.root)
    assert [(subject, event) for subject, event, _ in told(found)] == [("removed", "removed"), ("start", "added")]
    assert found.fields == ()


def test_an_entry_deleted_and_not_committed_is_shown_as_removed(checkout: Checkout):
    (checkout.root / "principles/demo/slug.yaml").unlink()
    assert told(read(checkout.root))[0] == (None, "removed", [])


def test_a_commit_message_cannot_write_to_the_terminal(checkout: Checkout):
    checkout.put(title="Edited")
    checkout.commit("red \x1b[31malert\x07", GIT_AUTHOR_NAME="Eve \x1b[2J")
    commit = read(checkout.root).versions[0].commit
    assert commit is not None
    assert (commit.subject, commit.author) == ("red \ufffd[31malert\ufffd", "Eve \ufffd[2J")


def test_contracts_have_histories_too(checkout: Checkout):
    text = (checkout.root / "contracts/op.yaml").read_text()
    checkout.write("contracts/op.yaml", text.replace("kappa: 1.25", "kappa: 1.5"))
    checkout.commit("looser")
    found = read(checkout.root, "op")
    assert told(found)[0] == ("looser", "changed", ["numerics.tolerance.kappa"])
    assert found.versions[0].classes == (ChangeClass.NUMERICS,)
    assert last(found, "numerics.tolerance") == "looser"


def test_an_unknown_id_is_an_error(checkout: Checkout):
    with pytest.raises(GitError, match="no commit and no file holds 'demo/none'"):
        read(checkout.root, "demo/none")
