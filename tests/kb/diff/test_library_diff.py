"""The diff of two libraries, and how it prints."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt

from kb.contract import Contract
from kb.diff import Bump, ChangeClass, LibraryDiff, What, diff_libraries
from kb.diff.show import as_markdown, as_text
from kb.library import Library, load_library_from
from kb.markdown import code_span, escape
from kb.principle import Principle
from tests.kb.git.checkout import contract, principle, principle_yaml


def library(*entries: Principle | Contract) -> Library:
    principles = {e.id: e for e in entries if isinstance(e, Principle)}
    return Library(Path(), principles, {e.id: e for e in entries if isinstance(e, Contract)})


def fates(diff: LibraryDiff) -> dict[str, What]:
    return {e.id: e.what for e in diff.entries}


def test_entries_come_go_and_change():
    old = library(contract(), principle("demo/kept"), principle("demo/gone", claim="A.", why="B.", title="C"))
    changed = principle("demo/kept", title="New title")
    new = library(contract(), changed, principle("demo/new", claim="Quite different.", why="Words.", title="X"))
    diff = diff_libraries(old, new)
    assert fates(diff) == {"demo/gone": What.REMOVED, "demo/kept": What.CHANGED, "demo/new": What.ADDED}


def test_equal_libraries_have_an_empty_diff():
    assert diff_libraries(library(contract(), principle()), library(contract(), principle())).entries == ()


def test_the_same_meaning_under_another_id_is_a_rename():
    old, new = library(principle("demo/one")), library(principle("demo/two", title="Edited too"))
    (entry,) = diff_libraries(old, new).entries
    assert (entry.what, entry.previous_id, entry.id) == (What.RENAMED, "demo/one", "demo/two")
    assert [f.path for f in entry.fields] == ["title"]
    assert entry.bump is Bump.NOT_NEEDED


def test_a_renamed_entry_may_have_been_edited_but_not_rewritten():
    long_why = "Bandwidth decides at one row, so a second pass over the weights costs its full time again."
    old = library(principle("demo/one", why=long_why), contract("op_one"))
    edited = library(principle("demo/two", why=long_why + " Always."), contract("op_two"))
    assert fates(diff_libraries(old, edited)) == {"demo/two": What.RENAMED, "op_two": What.RENAMED}
    rewritten = library(
        principle("demo/two", why="No.", claim="Something else entirely.", title="T"), contract("op_one")
    )
    assert fates(diff_libraries(old, rewritten)) == {"demo/one": What.REMOVED, "demo/two": What.ADDED}


def test_of_several_candidates_the_closest_is_the_rename():
    old = library(principle("demo/one"), principle("demo/two", claim="Split the rows over warps and add in order."))
    new = library(principle("demo/b"), principle("demo/a", claim="Split the rows over warps and add in any order."))
    renames = {e.previous_id: e.id for e in diff_libraries(old, new).entries}
    assert renames == {"demo/one": "demo/b", "demo/two": "demo/a"}


def test_a_successor_that_says_the_opposite_reverses_the_decision():
    old = library(principle())
    retired = principle(status="superseded", superseded_by="demo/not", status_reason="Measured.")
    successor = principle(
        "demo/not", kind="dead_end", retry_when="Never.", claim="Avoid it.", why="It spills.", supersedes=["demo/slug"]
    )
    diff = diff_libraries(old, library(retired, successor))
    new, superseded = diff.entries
    assert new.classes == (ChangeClass.REVERSED,)
    assert "replaces demo/slug" in new.note
    assert superseded.superseded_by == "demo/not"
    assert superseded.classes == (ChangeClass.STATUS,)


def test_a_file_that_cannot_be_read_is_neither_added_nor_removed():
    good = {"principles/demo/slug.yaml": principle_yaml().encode()}
    bad = {"principles/demo/slug.yaml": b"id: ["}
    readable, broken = (load_library_from(files, Path()) for files in (good, bad))
    for old, new, side in ((readable, broken, "head"), (broken, readable, "base")):
        (entry,) = diff_libraries(old, new).entries
        assert (entry.id, entry.what) == ("demo/slug", What.UNREADABLE)
        assert entry.note.startswith(f"at {side}: principles/demo/slug.yaml:1:")
    assert diff_libraries(broken, broken).entries == ()


def hostile() -> LibraryDiff:
    """A diff whose strings try to be markup."""
    text = "<img src=x onerror=alert(1)> | `tick` ``two`` [red]x[/red] ](javascript:alert(1)) </details>"
    new: dict[str, Any] = {"title": text, "claim": text + "\n\n# heading"}
    return diff_libraries(library(principle()), library(principle(**new)))


def test_the_text_shows_fields_before_and_after_and_what_must_not_be_overlooked():
    old, new = library(principle()), library(principle(when={"target": ["cuda"], "batch": {"max": 4}}))
    assert as_text(diff_libraries(old, new, base="a", head="b")).splitlines() == [
        "a..b: 1 principle changed",
        "",
        "~ principle demo/slug  v1  Read the weights once",
        "    applicability narrowed",
        "    the meaning changed and the version did not",
        "    when.batch: applicability narrowed",
        '      - {"min": 1, "max": 8}',
        '      + {"min": 1, "max": 4}',
    ]
    assert as_text(diff_libraries(old, old, base="a", head="b")) == "a..b: no entry differs\n"


def test_markdown_holds_no_markup_of_the_authors():
    page = MarkdownIt("commonmark").enable("table").render(as_markdown(hostile()))
    assert set(re.findall(r"<(/?[a-z]+)", page)) - {"br"} == {
        f"{slash}{tag}"
        for slash in ("", "/")
        for tag in ("p", "table", "thead", "tbody", "tr", "th", "td", "code", "details", "summary")
    }
    assert page.count("<details>") == page.count("</details>") == 1
    assert "href" not in page
    assert "onerror=alert(1)" in page  # as text


def test_code_spans_and_escapes_keep_the_text():
    assert code_span("a `b` ``c``") == "``` a `b` ``c`` ```"
    assert code_span("x|y\nz") == "`x\\|y z`"
    assert code_span("") == "`  `"
    assert escape("a*b_c|<d>") == "a\\*b\\_c\\|\\<d\\>"


def test_json_round_trips_and_names_every_class_in_words():
    data = json.loads(json.dumps(hostile().as_json()))
    (entry,) = data["entries"]
    assert entry["what"] == "changed"
    assert {f["kind"] for f in entry["fields"]} == {"editorial", "claim changed"}
    assert entry["bump"] == "missing"
