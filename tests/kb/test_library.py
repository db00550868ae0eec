"""Loading a library: everything that can be read, from where it should be read."""

from __future__ import annotations

from pathlib import Path

import pytest

import kb.place
from kb.cli.failure import Failure
from kb.library import EntryKind, kind_of, library_root, load_library, load_library_from
from kb.lint.example import DEMO
from tests.kb.lint.library import add_block, make_library


def test_a_bad_file_is_a_finding_and_the_others_are_loaded(tmp_path: Path) -> None:
    root = make_library(tmp_path)
    add_block(root, "broken", status="acepted")
    (root / "contracts/broken.yaml").write_bytes(b"\x00")
    library = load_library(root)
    assert list(library.principles) == ["demo/wide-loads"]
    assert list(library.contracts) == ["gemv"]
    assert [(f.path, f.code) for f in library.findings] == [
        ("contracts/broken.yaml", "AC006"),
        ("principles/demo/broken.yaml", "AC103"),
    ]
    assert [entry.id for entry in library.entries] == [None, "gemv", None, "demo/wide-loads"]


def test_an_entry_knows_its_text_its_places_and_its_digest(tmp_path: Path) -> None:
    library = load_library(make_library(tmp_path))
    entry = library.entry("demo/wide-loads")
    assert entry is not None
    assert entry.kind is EntryKind.PRINCIPLE
    assert entry.document.place(("claim",)) == (8, 8)
    assert entry.digest is not None
    assert len(entry.digest) == 64
    assert library.entry("demo/nothing") is None


def test_the_digest_follows_the_meaning_and_not_the_layout() -> None:
    path = "principles/demo/wide-loads.yaml"
    text = DEMO[path].decode()

    def digest(changed: str) -> str | None:
        return load_library_from({path: changed.encode()}, Path()).entries[0].digest

    moved = "# a comment\n" + text.replace("status: accepted\nversion: 1\n", "version: 1\nstatus: accepted\n")
    quoted = text.replace("kind: decision", 'kind: "decision"').replace("{max: 4}", "{ max:  4 }")
    assert digest(text) == digest(moved) == digest(quoted)
    assert digest(text) != digest(text.replace("16-byte pieces", "4-byte pieces"))


def test_of_two_files_with_one_id_the_one_in_its_place_counts(tmp_path: Path) -> None:
    root = make_library(tmp_path)
    add_block(root, "a-copy", id="demo/wide-loads", title="A copy")
    assert load_library(root).principles["demo/wide-loads"].title == "Read weights with wide loads"


def test_files_in_memory_are_loaded_like_files_on_disk(tmp_path: Path) -> None:
    root = make_library(tmp_path)
    on_disk = load_library(root)
    in_memory = load_library_from({**DEMO, "README.md": b"", "principles/deep/er/x.yaml": b""}, root)
    assert in_memory.principles == on_disk.principles
    assert in_memory.contracts == on_disk.contracts


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("principles/a/b.yaml", EntryKind.PRINCIPLE),
        ("contracts/a.yaml", EntryKind.CONTRACT),
        ("principles/a.yaml", None),
        ("principles/a/b/c.yaml", None),
        ("principles/a/b.yml", None),
        ("contracts/a/b.yaml", None),
        ("site/a.yaml", None),
    ],
)
def test_the_folder_says_what_a_file_holds(path: str, kind: EntryKind | None) -> None:
    assert kind_of(path) is kind


def test_the_library_is_named_or_around_or_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AGENTCOMPILE_LIBRARY", raising=False)
    here = make_library(tmp_path / "here")
    named = make_library(tmp_path / "named")
    below = here / "principles" / "demo"
    monkeypatch.chdir(below)
    assert library_root() == here, "the checkout that the current folder is in"
    monkeypatch.setenv("AGENTCOMPILE_LIBRARY", str(named))
    assert library_root() == named
    assert library_root(here) == here


def test_an_installed_package_finds_the_data_of_its_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AGENTCOMPILE_LIBRARY", raising=False)
    site = tmp_path / "site-packages"
    data = make_library(site / "agentcompile_data")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setattr(kb.place, "__file__", str(site / "kb" / "place.py"))
    assert library_root() == data


def test_a_folder_that_is_not_there_is_an_error_that_says_who_named_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Failure, match="--library"):
        library_root(tmp_path / "nowhere")
    monkeypatch.setenv("AGENTCOMPILE_LIBRARY", str(tmp_path / "nowhere"))
    with pytest.raises(Failure, match="AGENTCOMPILE_LIBRARY"):
        library_root()
