"""``agentcompile diff`` and ``agentcompile history`` as a reviewer uses them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kb.cli.command import agentcompile
from tests.kb.git.checkout import Checkout, git


def test_diff_compares_two_commits(checkout: Checkout):
    checkout.put(claim="Split the row over warps.", version=2)
    checkout.commit("second")
    shown = agentcompile("diff", "HEAD~1..HEAD")
    assert shown.code == 0
    assert "~ principle demo/slug  v1 → v2  Read the weights once" in shown.out
    assert "claim: claim changed" in shown.out


def test_diff_of_one_revision_sees_the_working_tree_untracked_files_included(checkout: Checkout):
    checkout.put("demo/fresh", claim="Fresh.", why="Because.", title="Fresh one")
    assert "+ principle demo/fresh  v1  Fresh one" in agentcompile("diff", "HEAD").out
    assert "no entry differs" in agentcompile("diff", "HEAD..HEAD").out
    assert "working tree" in agentcompile("diff").out


def test_three_dots_leave_out_what_happened_on_the_other_side(checkout: Checkout):
    git(checkout.root, "checkout", "-q", "-b", "side")
    checkout.put("demo/side", claim="Side.", why="S.", title="S")
    checkout.commit("side")
    git(checkout.root, "checkout", "-q", "main")
    checkout.put("demo/main", claim="Main.", why="M.", title="M")
    checkout.commit("main")
    three = {e["id"]: e["what"] for e in agentcompile("diff", "main...side", "--json").json["entries"]}
    two = {e["id"]: e["what"] for e in agentcompile("diff", "main..side", "--json").json["entries"]}
    assert three == {"demo/side": "added"}
    assert two == {"demo/side": "added", "demo/main": "removed"}


def test_diff_prints_markdown(checkout: Checkout):
    checkout.put(title="Edited")
    assert "| changed | `demo/slug` | v1 | editorial |" in agentcompile("diff", "HEAD", "--markdown").out


@pytest.mark.parametrize("command", [("diff", "HEAD"), ("history", "op"), ("review", "HEAD")])
def test_outside_a_repository_every_command_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
):
    for folder in ("principles", "contracts"):
        (tmp_path / folder).mkdir()
    monkeypatch.chdir(tmp_path)
    shown = agentcompile(*command)
    assert shown.code == 2
    assert shown.err == (
        f"agentcompile: {tmp_path.resolve()} is not in a git repository; "
        "run this in a clone, or name one with --library\n"
    )
    assert shown.out == ""


@pytest.mark.parametrize("revision", ["nope", "--output=x", "HEAD..nope", "nope...HEAD"])
def test_a_revision_that_does_not_exist_is_one_line(checkout: Checkout, revision: str):
    shown = agentcompile("diff", "--", revision)
    assert shown.code == 2
    assert len(shown.err.splitlines()) == 1
    assert "is no commit in" in shown.err
    assert not (checkout.root / "x").exists()


def test_an_empty_repository_is_one_line_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    empty = Checkout(tmp_path / "empty")
    empty.put()
    monkeypatch.chdir(empty.root)
    shown = agentcompile("diff", "HEAD", "--library", empty.root)
    assert shown.code == 2
    assert "has no commit yet" in shown.err


def test_library_names_another_checkout(checkout: Checkout, tmp_path: Path):
    other = Checkout(tmp_path / "other", library="deep/inside")
    other.start()
    other.put(title="Elsewhere")
    shown = agentcompile("diff", "HEAD", "--library", other.library)
    assert "Elsewhere" in shown.out


def test_in_a_worktree_its_own_files_count(checkout: Checkout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    git(checkout.root, "worktree", "add", "-q", "-b", "side", str(tmp_path / "side"))
    (tmp_path / "side/principles/demo/slug.yaml").unlink()
    monkeypatch.chdir(tmp_path / "side/contracts")
    assert "- principle demo/slug" in agentcompile("diff", "main").out


def test_history_tells_versions_and_the_last_change_of_each_field(checkout: Checkout):
    checkout.put(version=2, claim="Split the row over warps.")
    checkout.commit("Split", GIT_AUTHOR_NAME="Ben Bauer", GIT_AUTHOR_DATE="2026-02-03T10:00:00+00:00")
    checkout.put(version=2, claim="Split the row over warps.", title="Edited")
    shown = agentcompile("history", "demo/slug")
    assert shown.code == 0
    short = git(checkout.root, "rev-parse", "--short=10", "HEAD")
    lines = shown.out.splitlines()
    assert lines[0] == "demo/slug"
    assert "working tree, not committed  v2 changed (editorial)" in lines
    assert f"2026-02-03  {short}  Ben Bauer  v2 changed (claim changed)" in lines
    last = [line.split() for line in lines[lines.index("last change of each field") :]]
    assert ["claim", "v2", "2026-02-03", short, "Ben", "Bauer"] in last
    assert ["title", "v2", "working", "tree,", "not", "committed"] in last


def test_history_as_json(checkout: Checkout):
    checkout.put(version=2, claim="Split the row over warps.")
    head = checkout.commit("Split")
    data = agentcompile("history", "demo/slug", "--json").json
    assert data["cut"] is False
    assert [v["event"] for v in data["versions"]] == ["changed", "added"]
    assert data["versions"][0]["commit"]["hash"] == head
    assert [e["path"] for e in data["versions"][0]["edits"]] == ["version", "claim"]
    assert data["fields"]["claim"] == 0
    assert data["fields"]["title"] == 1


def test_history_says_that_a_shallow_clone_cuts_it(checkout: Checkout, tmp_path: Path):
    checkout.put(title="Second")
    checkout.commit("second")
    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{checkout.root}", "shallow")
    shown = agentcompile("history", "demo/slug", "--library", tmp_path / "shallow")
    assert shown.code == 0
    assert shown.out.endswith("the history is cut; 'git fetch --unshallow' brings the rest\n")
    assert "before this shallow clone begins" in shown.out


def test_history_of_an_unknown_id_is_an_error(checkout: Checkout):
    shown = agentcompile("history", "demo/none")
    assert shown.code == 2
    assert "no commit and no file holds 'demo/none'" in shown.err
