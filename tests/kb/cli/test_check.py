"""The check command: which files, which formats, which exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kb.lint.registry import rules
from tests.kb.cli.command import Result, agentcompile
from tests.kb.lint.library import add_block, make_library

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AGENTCOMPILE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("AGENTCOMPILE_LIBRARY", raising=False)
    root = make_library(tmp_path / "library")
    monkeypatch.chdir(root)
    return root


def codes(result: Result) -> list[str]:
    return [f["code"] for f in result.json["findings"]]


def test_a_sound_library_is_one_line_and_exit_code_0(library: Path) -> None:
    result = agentcompile("check")
    assert (result.code, result.out) == (0, "1 principle and 1 contract checked: no findings\n")


def test_a_finding_shows_its_line_with_a_caret_and_a_fix(library: Path) -> None:
    add_block(library, "other", titel="x", status="acepted")
    result = agentcompile("check")
    assert result.code == 1
    assert result.out == (
        "principles/demo/other.yaml:4:9: error AC103: "
        "status: 'acepted' is none of 'draft', 'accepted', 'superseded', 'retired'\n"
        "   |\n"
        " 4 | status: acepted\n"
        "   |         ^^^^^^^\n"
        "\n"
        "principles/demo/other.yaml:22:1: error AC101: unknown field 'titel'\n"
        "   |\n"
        "22 | titel: x\n"
        "   | ^^^^^\n"
        "   = fix: did you mean 'title'?\n"
        "\n"
        "2 principles and 1 contract checked: 2 errors\n"
    )


def test_a_long_line_is_cut_around_the_finding(library: Path) -> None:
    add_block(library, "other", patterns="[" + "gemv, " * 40 + "Gemv]")
    out = agentcompile("check", "--select", "AC105").out
    shown, caret = (next(line for line in out.splitlines() if mark in line) for mark in ("Gemv]", "^"))
    assert "…" in shown
    assert len(shown) <= 120
    assert shown[caret.index("^") : caret.rindex("^") + 1] == "Gemv"


def test_an_unreadable_file_stops_nothing_and_ends_with_exit_code_2(library: Path) -> None:
    (library / "principles/demo/gone.yaml").symlink_to("nowhere.yaml")
    (library / "contracts/binary.yaml").write_bytes(b"\x00\xff\xfe")
    add_block(library, "other", status="acepted")
    result = agentcompile("check", "--json")
    assert result.code == 2
    assert [(f["path"], f["code"]) for f in result.json["findings"]] == [
        ("contracts/binary.yaml", "AC002"),
        ("principles/demo/gone.yaml", "AC001"),
        ("principles/demo/other.yaml", "AC103"),
    ]


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="needs a user whom permissions bind")
def test_a_file_without_permission_is_named(library: Path) -> None:
    add_block(library, "secret").chmod(0)
    assert agentcompile("check", "--json").code == 2


def test_findings_are_sorted_by_path_line_and_column(library: Path) -> None:
    for slug in ("b", "a", "c"):
        add_block(library, slug, status="acepted", titel="x", why="3.10")
    found = agentcompile("check", "--json").json["findings"]
    order = [(f["path"], f["line"], f["column"]) for f in found]
    assert order == sorted(order)
    assert len(order) == 9


def test_warnings_fail_only_when_strict(library: Path) -> None:
    add_block(library, "other", why="It is fast.")
    assert agentcompile("check").code == 0
    assert "1 warning" in agentcompile("check").out
    assert agentcompile("check", "--strict").code == 1


def test_rules_are_selected_and_ignored_by_prefix(library: Path) -> None:
    add_block(library, "other", why="It is fast.", title="read them")
    assert codes(agentcompile("check", "--json")) == ["AC127", "AC115"]
    assert codes(agentcompile("check", "--json", "--select", "AC127,AC2")) == ["AC127"]
    assert codes(agentcompile("check", "--json", "--ignore", "AC127", "--ignore", "AC115")) == []
    assert agentcompile("check", "--select", "AC9").code == 2


def test_a_waiver_of_a_rule_that_is_not_selected_is_not_called_unused(library: Path) -> None:
    add_block(library, "other", why="It is fast. # noqa: AC115 the paper explains it")
    assert codes(agentcompile("check", "--json", "--ignore", "AC115")) == []


def test_paths_limit_what_is_reported_not_what_is_read(library: Path) -> None:
    add_block(library, "one", related="[{id: demo/two, relation: refines}]", why="It is fast.")
    add_block(library, "two", why="It is fast.")
    result = agentcompile("check", "--json", "principles/demo/one.yaml")
    assert codes(result) == ["AC115"]
    assert result.json["checked"] == {"principles": 1, "contracts": 0}
    assert len(codes(agentcompile("check", "--json", "principles"))) == 2
    assert codes(agentcompile("check", "--json", "contracts")) == []
    assert len(codes(agentcompile("check", "--json", library))) == 2


def test_the_library_is_the_one_the_paths_lie_in(library: Path, tmp_path: Path) -> None:
    other = make_library(tmp_path / "other")
    path = add_block(other, "thin", why="It is fast.")
    assert codes(agentcompile("check", "--json", path)) == ["AC115"]
    assert codes(agentcompile("check", "--json")) == []
    assert codes(agentcompile("check", "--json", "--library", other)) == ["AC115"]
    assert "several libraries" in agentcompile("check", path, library / "contracts").err


def test_a_draft_outside_the_library_is_checked_as_if_it_were_inside(library: Path, tmp_path: Path) -> None:
    draft = add_block(library, "draft", why="It is fast.", related="[{id: demo/nothing, relation: refines}]")
    outside = draft.rename(tmp_path / "draft.yaml")
    result = agentcompile("check", "--json", outside)
    assert codes(result) == ["AC115", "AC303"]
    assert {f["path"] for f in result.json["findings"]} == {outside.as_posix()}
    assert codes(agentcompile("check", "--json")) == [], "and the library is as it was"


def test_a_path_that_is_not_there_or_not_an_entry_is_bad_usage(library: Path, tmp_path: Path) -> None:
    (library / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("x")
    for path in ("nowhere.yaml", "empty", tmp_path / "notes.txt"):
        result = agentcompile("check", path)
        assert result.code == 2
        assert result.err.count("\n") == 1


def test_a_folder_without_a_library_is_bad_usage_and_not_a_success(tmp_path: Path) -> None:
    result = agentcompile("check", "--library", tmp_path)
    assert result.code == 2
    assert "no principles/ and no contracts/" in result.err


def test_a_linked_family_is_checked_and_a_link_to_itself_ends(library: Path, tmp_path: Path) -> None:
    elsewhere = make_library(tmp_path / "elsewhere")
    add_block(elsewhere, "thin", why="It is fast.", id="linked/thin")
    (elsewhere / "principles/demo/wide-loads.yaml").unlink()
    (library / "principles/linked").symlink_to(elsewhere / "principles/demo")
    assert codes(agentcompile("check", "--json")) == ["AC115"]
    (library / "contracts/round").symlink_to(library / "contracts")
    assert set(codes(agentcompile("check", "--json"))) == {"AC115", "AC302"}


def test_files_that_nothing_loads_are_findings_and_notes_are_not(library: Path) -> None:
    (library / "principles/README.md").write_text("notes")
    (library / "principles/demo/.hidden").write_text("x")
    (library / "principles/demo/old.yml").write_text("id: x\n")
    (library / "principles/top.yaml").write_text("id: x\n")
    found = agentcompile("check", "--json").json["findings"]
    assert [(f["path"], f["code"], f["line"]) for f in found] == [
        ("principles/demo/old.yml", "AC302", 0),
        ("principles/top.yaml", "AC302", 0),
    ]


def test_json_is_the_same_whatever_the_cache_holds(library: Path) -> None:
    add_block(library, "other", why="It is fast.")
    runs = [agentcompile("check", "--json", *more) for more in ((), (), ("--no-cache",))]
    assert runs[0] == runs[1] == runs[2]
    (finding,) = runs[0].json["findings"]
    assert finding == {
        "path": "principles/demo/other.yaml",
        "line": 9,
        "column": 6,
        "code": "AC115",
        "name": "thin-prose",
        "severity": "warning",
        "message": "'why' has 3 words",
        "fix": "say what to do, or why it works",
    }
    assert runs[0].json["summary"] == {"error": 0, "warning": 1, "info": 0}


def test_github_annotations_escape_what_would_end_them(library: Path) -> None:
    add_block(library, "other", status='"100%: a,b"')
    first = agentcompile("check", "--format", "github").out.splitlines()[0]
    place, message = first.removeprefix("::").split("::", 1)
    assert place == "error file=principles/demo/other.yaml,line=4,col=9,title=AC103"
    assert message.startswith("status: '100%25: a,b' is none of")


def test_sarif_is_a_whole_log_that_points_into_its_rules(library: Path) -> None:
    add_block(library, "other", why="It is fast.", status="acepted")
    add_block(library, "thin", why="It is fast.")
    (library / "principles/top level.yaml").write_text("id: x\n")
    log = json.loads(agentcompile("check", "--format", "sarif").out)
    assert log["version"] == "2.1.0"
    assert log["$schema"].endswith("sarif-2.1.0.json")
    (run,) = log["runs"]
    assert run["columnKind"] == "unicodeCodePoints"
    driver = run["tool"]["driver"]
    assert driver["name"] == "agentcompile"
    assert [r["id"] for r in driver["rules"]] == [r.code for r in rules()]
    for rule in driver["rules"]:
        assert rule["shortDescription"]["text"]
        assert rule["help"]["markdown"].startswith(f"# {rule['id']}")
        assert rule["defaultConfiguration"]["level"] in ("error", "warning", "note")
    assert [r["ruleId"] for r in run["results"]] == ["AC103", "AC115", "AC302"]
    for result in run["results"]:
        assert driver["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] in ("error", "warning", "note")
        assert result["message"]["text"]
        (location,) = result["locations"]
        place = location["physicalLocation"]
        assert " " not in place["artifactLocation"]["uri"]
        assert all(number >= 1 for number in place.get("region", {}).values())
    assert "region" not in run["results"][2]["locations"][0]["physicalLocation"], "a whole file has no line"


def test_a_rule_is_explained_and_all_are_listed() -> None:
    assert agentcompile("check", "--explain", "ac101").out.startswith(
        "# AC101: A field that the schema does not have\n"
    )
    assert agentcompile("check", "--explain", "AC999").code == 2
    listed = agentcompile("check", "--rules").out.splitlines()
    assert [line.split()[0] for line in listed] == [r.code for r in rules()]
    assert [r["code"] for r in agentcompile("check", "--rules", "--json").json] == [r.code for r in rules()]


def test_the_shipped_content_has_no_findings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AGENTCOMPILE_CACHE", str(tmp_path))
    monkeypatch.delenv("AGENTCOMPILE_LIBRARY", raising=False)
    result = agentcompile("check", "--library", ROOT, "--strict")
    assert result.code == 0, result.out


_PROBE = """
import sys
from kb.cli.app import main
try:
    main()
except SystemExit as stop:
    heavy = [m for m in ("torch", "transformers", "numpy", "kb.contract", "kb.yaml.compose") if m in sys.modules]
    print(*heavy, file=sys.stderr)
    sys.exit(stop.code)
"""


def test_checking_never_imports_torch_and_an_unchanged_library_not_even_the_schema(library: Path) -> None:
    def run(*arguments: str) -> set[str]:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, "-c", _PROBE, *arguments], capture_output=True, text=True, env=environment, check=True
        )
        return set(done.stderr.split())

    assert "kb.contract" in run("check")
    assert run("check") == set(), "the second run is answered from the cache"
    assert not {"torch", "transformers", "numpy"} & run("check", "--no-cache")
