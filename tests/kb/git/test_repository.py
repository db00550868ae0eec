"""Reading a repository: whatever its shape, and whatever is typed as a revision."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kb.git.errors import GitError
from kb.git.repository import Repository, open_repository
from kb.git.revisions import Endpoints, endpoints
from tests.kb.git.checkout import Checkout, git


@pytest.fixture
def opened(checkout: Checkout):
    with open_repository(checkout.library) as repository:
        yield repository


@pytest.mark.parametrize(
    "typed",
    ["--output=x", "--help", "-h", "--all", "--exec=touch x", "HEAD --output=x", "HEAD:contracts", "nothing", "", " ",
     "HEAD\0", "HEAD\nHEAD", "@{upstream}", "^HEAD", "HEAD^{tree}"],
)  # fmt: skip
def test_what_names_no_commit_is_an_error_and_never_an_option(checkout: Checkout, opened: Repository, typed: str):
    before = sorted(p.name for p in checkout.root.iterdir())
    with pytest.raises(GitError, match="is no commit in"):
        opened.resolve(typed)
    assert sorted(p.name for p in checkout.root.iterdir()) == before


def test_a_branch_that_looks_like_an_option_can_still_be_named_in_full(checkout: Checkout, opened: Repository):
    head = git(checkout.root, "rev-parse", "HEAD")
    git(checkout.root, "update-ref", "refs/heads/--output=x", head)
    assert opened.resolve("--output=x") == head
    assert opened.resolve("refs/heads/--output=x") == head
    assert not (checkout.root / "x").exists()


@pytest.mark.parametrize("typed", ["HEAD", "main", "HEAD~0", "@", "main^0"])
def test_revisions_resolve_to_full_hashes(checkout: Checkout, opened: Repository, typed: str):
    assert opened.resolve(typed) == git(checkout.root, "rev-parse", "HEAD")


def test_only_full_hashes_reach_git(opened: Repository):
    for call in (opened.commit, opened.walk, opened.parents):
        with pytest.raises(GitError, match="not a full hash"):
            call(*(["HEAD", "x"] if call == opened.walk else ["HEAD"]))


def test_a_path_that_looks_like_an_option_or_a_pattern_is_only_a_path(checkout: Checkout):
    for name in ("--output=x", ":(glob)*", "*"):
        checkout.write(f"principles/{name}/a.yaml", "id: x\n")
    head = checkout.commit("odd names")
    with open_repository(checkout.library) as repository:
        for name in ("--output=x", ":(glob)*", "*"):
            path = f"principles/{name}/a.yaml"
            assert [p for p, _ in repository.files(head, (path,))] == [path]
            assert repository.walk(head, path) == ((head, ()),)


def test_outside_a_repository_the_error_says_so(tmp_path: Path):
    with pytest.raises(GitError, match="is not in a git repository"):
        open_repository(tmp_path)
    with pytest.raises(GitError, match="does not exist"):
        open_repository(tmp_path / "missing")


def test_a_bare_repository_has_no_files_to_compare(tmp_path: Path):
    git(tmp_path, "init", "-q", "--bare", "bare.git")
    with pytest.raises(GitError, match="without a working tree"):
        open_repository(tmp_path / "bare.git")


def test_an_empty_repository_says_that_it_has_no_commit(tmp_path: Path):
    empty = Checkout(tmp_path / "empty")
    with open_repository(empty.root) as repository:
        assert repository.is_empty
        with pytest.raises(GitError, match="has no commit yet"):
            repository.resolve("HEAD")


def test_a_library_in_a_subdirectory_has_a_prefix(tmp_path: Path):
    nested = Checkout(tmp_path / "repository", library="tools/knowledge")
    head = nested.start()
    with open_repository(nested.library) as repository:
        assert repository.root == nested.root.resolve()
        assert repository.prefix == "tools/knowledge/"
        assert [p for p, _ in repository.files(head, ("tools/knowledge/contracts",))] == [
            "tools/knowledge/contracts/op.yaml"
        ]


def test_a_folder_that_the_repository_ignores_has_no_history_there(checkout: Checkout):
    (checkout.root / ".gitignore").write_text(".venv/\nkept/\n")
    for folder in (".venv/lib/data", "kept/data"):
        (checkout.root / folder).mkdir(parents=True)
        (checkout.root / folder / "file").write_text("")
    git(checkout.root, "add", "-f", "kept/data/file")
    with pytest.raises(GitError, match="is ignored by the repository"):
        open_repository(checkout.root / ".venv/lib/data")
    with open_repository(checkout.root / "kept/data") as repository:
        assert repository.prefix == "kept/data/"


def test_a_repository_of_another_user_is_refused_with_gits_remedy(checkout: Checkout, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    with open_repository(checkout.root) as repository, pytest.raises(GitError, match=r"safe\.directory") as refused:
        repository.resolve("HEAD")
    assert len(str(refused.value).splitlines()) == 1


def test_a_worktree_is_its_own_root(checkout: Checkout, tmp_path: Path):
    git(checkout.root, "worktree", "add", "-q", "-b", "side", str(tmp_path / "side"))
    with open_repository(tmp_path / "side") as repository:
        assert repository.root == (tmp_path / "side").resolve()
        assert repository.resolve("main") == repository.resolve("side")
        assert not repository.shallow_boundary


def test_a_submodule_is_its_own_repository(checkout: Checkout, tmp_path: Path):
    outer = Checkout(tmp_path / "outer")
    git(outer.root, "submodule", "add", "-q", str(checkout.root), "knowledge")
    outer.commit("with a submodule")
    with open_repository(outer.root / "knowledge") as repository:
        assert repository.root == (outer.root / "knowledge").resolve()
        assert repository.resolve("HEAD") == git(checkout.root, "rev-parse", "HEAD")


def test_a_shallow_clone_knows_its_boundary_and_says_so_when_a_revision_is_missing(checkout: Checkout, tmp_path: Path):
    first = git(checkout.root, "rev-parse", "HEAD")
    second = checkout.commit("second")
    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{checkout.root}", "shallow")
    with open_repository(tmp_path / "shallow") as repository:
        assert repository.shallow_boundary == {second}
        assert repository.parents(second) == ()
        with pytest.raises(GitError, match="shallow clone, 'git fetch --unshallow'"):
            repository.resolve(first)


def test_a_hook_that_sets_git_dir_does_not_redirect_the_reading(
    checkout: Checkout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    other = Checkout(tmp_path / "other")
    other.commit("elsewhere")
    monkeypatch.setenv("GIT_DIR", str(other.root / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(other.root))
    with open_repository(checkout.root) as repository:
        assert repository.resolve("HEAD") == git(checkout.root, "rev-parse", "HEAD")


def _children() -> set[str]:
    """Ids of this process's living children."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if parent == str(os.getpid()) and state != "Z":
            found.add(stat.parent.name)
    return found


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
def test_closing_ends_the_processes_it_started(checkout: Checkout):
    before = _children()
    with open_repository(checkout.root) as repository:
        head = repository.resolve("HEAD")
        for _, blob in repository.files(head, ("contracts",)):
            assert repository.read(blob, 10**6)
        assert _children() - before
    assert not _children() - before


def test_a_file_longer_than_the_limit_is_not_read(checkout: Checkout):
    checkout.write("principles/demo/long.yaml", "#" * 5000)
    head = checkout.commit("long")
    with open_repository(checkout.root) as repository:
        blob = repository.blob_at(head, "principles/demo/long.yaml")
        assert blob is not None
        assert repository.read(blob, 4999) is None
        assert repository.read(blob, 5000) == b"#" * 5000


def test_symbolic_links_are_not_files_of_the_library(checkout: Checkout):
    (checkout.root / "principles/demo/link.yaml").symlink_to("/etc/passwd")
    head = checkout.commit("link")
    with open_repository(checkout.root) as repository:
        assert [p for p, _ in repository.files(head, ("principles",))] == ["principles/demo/slug.yaml"]


@pytest.mark.parametrize(
    ("typed", "base", "head"),
    [
        ("main..side", "main", "side"),
        ("main...side", "fork", "side"),
        ("main", "main", None),
        ("fork..", "fork", "side"),
        ("..main", "side", "main"),
    ],
)
def test_ranges_mean_what_they_mean_in_git(checkout: Checkout, typed: str, base: str, head: str | None):
    git(checkout.root, "tag", "fork")
    git(checkout.root, "checkout", "-q", "-b", "side")
    checkout.commit("on the side")
    git(checkout.root, "checkout", "-q", "main")
    checkout.commit("on main")
    git(checkout.root, "checkout", "-q", "side")
    with open_repository(checkout.root) as repository:
        expected = Endpoints(repository.resolve(base), None if head is None else repository.resolve(head))
        assert endpoints(repository, typed) == expected


def test_unrelated_histories_have_no_common_ancestor(checkout: Checkout):
    git(checkout.root, "checkout", "-q", "--orphan", "alone")
    checkout.commit("alone")
    with open_repository(checkout.root) as repository, pytest.raises(GitError, match="no common ancestor"):
        endpoints(repository, "main...alone")
