"""The cache: it changes how long a run takes and nothing else."""

from __future__ import annotations

import json
import threading
from datetime import date
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kb.diagnostic import Diagnostic
from kb.library import EntryKind, parse_entry
from kb.lint import cache as caching
from kb.lint import record, run
from kb.lint.cache import open_cache
from kb.lint.engine import check_entry
from kb.lint.example import BLOCK, DEMO, _text
from kb.yaml import load_bytes
from tests.kb.lint.library import add_block, make_library

TODAY = date(2026, 11, 30)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AGENTCOMPILE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    library = make_library(tmp_path / "library")
    add_block(library, "thin", why="It is fast.")
    add_block(library, "broken", status="acepted")
    return library


def check(root: Path, *, cached: bool = True, today: date = TODAY) -> tuple[Diagnostic, ...]:
    cache = open_cache(root) if cached else None
    return run.check(root, codes=None, today=today, cache=cache).findings


def count_checks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Paths of the files that are really checked from now on."""
    checked: list[str] = []
    report = run._report

    def counting(path: str, data: bytes, problem: str) -> object:
        checked.append(path)
        return report(path, data, problem)

    monkeypatch.setattr(run, "_report", counting)
    return checked


def place(root: Path) -> Path:
    return open_cache(root).place


def test_a_second_run_checks_nothing_and_finds_the_same(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = check(root)
    checked = count_checks(monkeypatch)
    assert check(root) == first == check(root, cached=False)
    assert first
    assert len(checked) == 4, "only the run without a cache checked"


def test_one_changed_file_is_the_only_one_checked(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(root)
    add_block(root, "thin", why="It is now explained at some length, by its mechanism.")
    checked = count_checks(monkeypatch)
    after = check(root)
    assert checked == ["principles/demo/thin.yaml"]
    assert after == check(root, cached=False)


def test_findings_between_files_follow_a_change_of_another_file(root: Path) -> None:
    add_block(root, "linked", related="[{id: demo/thin, relation: refines}]")
    check(root)
    (root / "principles/demo/thin.yaml").unlink()
    assert "AC303" in {f.code for f in check(root)}
    assert check(root) == check(root, cached=False)


def test_a_touched_file_with_the_same_bytes_is_not_checked_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(root)
    path = root / "principles/demo/thin.yaml"
    path.write_bytes(path.read_bytes())
    checked = count_checks(monkeypatch)
    check(root)
    assert checked == []


def test_another_day_is_another_run(root: Path) -> None:
    add_block(root, "waived", why="It is fast. # noqa: AC115 the paper is not out, until=2026-12-01")
    assert "AC029" not in {f.code for f in check(root)}
    assert "AC029" in {f.code for f in check(root, today=date(2026, 12, 2))}


def test_another_program_trusts_nothing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(root)
    monkeypatch.setattr(caching, "_program", lambda: "another version")
    assert open_cache(root).files == {}
    checked = count_checks(monkeypatch)
    check(root)
    assert len(checked) == 4


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty", "foreign", "folder"])
def test_a_damaged_cache_is_as_good_as_none(root: Path, damage: str) -> None:
    expected = check(root)
    path = place(root)
    data = path.read_bytes()
    path.unlink()
    if damage == "folder":
        path.mkdir()
    else:
        middle = len(data) // 2
        path.write_bytes(
            {
                "truncated": data[:middle],
                "flipped": data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :],
                "empty": b"",
                "foreign": b"\x00\xff" * 100,
            }[damage]
        )
    assert open_cache(root).files == {}
    assert check(root) == expected


def test_a_sealed_cache_of_the_wrong_shape_is_as_good_as_none(root: Path) -> None:
    expected = check(root)
    cache = open_cache(root)
    for body in (b"[]", b"{}", b'{"files": [], "run": []}', b'{"files": {"a": []}, "run": ["", null]}', b"[" * 100_000):
        cache.place.write_bytes(caching._checksum(cache.program, body) + b"\n" + body)
        assert open_cache(root).files == {}
    body = json.dumps({"files": {path: [key, 7] for path, (key, _) in cache.files.items()}, "run": ["", None]}).encode()
    cache.place.write_bytes(caching._checksum(cache.program, body) + b"\n" + body)
    assert check(root) == expected, "a report that is none is made again"


def test_a_cache_that_cannot_be_written_costs_nothing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = check(root, cached=False)
    (root.parent / "file").write_text("not a folder")
    monkeypatch.setenv("AGENTCOMPILE_CACHE", str(root.parent / "file" / "below"))
    assert check(root) == expected


def test_runs_at_once_find_the_same_and_leave_a_whole_cache(root: Path) -> None:
    for i in range(20):
        add_block(root, f"block-{i}", why="It is fast.")
    expected = check(root, cached=False)
    results: list[tuple[Diagnostic, ...]] = []
    threads = [threading.Thread(target=lambda: results.append(check(root))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [expected] * 6
    assert len(open_cache(root).files) == 24
    assert [p.name for p in place(root).parent.iterdir()] == [place(root).name], "no temporary file is left"


def test_a_file_that_cannot_be_read_is_not_remembered(root: Path) -> None:
    path = root / "principles/demo/gone.yaml"
    path.symlink_to("nowhere.yaml")
    assert "AC001" in {f.code for f in check(root)}
    assert "principles/demo/gone.yaml" not in open_cache(root).files


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(sorted(DEMO)), st.integers(0, 900), st.text("ab:{}[]'# \n", max_size=5))
def test_a_report_survives_the_cache_unchanged(path: str, at: int, junk: str) -> None:
    text = DEMO[path].decode()
    data = (text[:at] + junk + text[at:]).encode()
    kind = EntryKind.PRINCIPLE if path.startswith("principles") else EntryKind.CONTRACT
    report = check_entry(parse_entry(path, kind, load_bytes(data)))
    again = record.load(path, json.loads(json.dumps(record.dump(report))))
    assert again is not None
    assert record.dump(again) == json.loads(json.dumps(record.dump(report)))
    assert again.findings == report.findings
    assert again.waivers == report.waivers


def test_a_waiver_survives_the_cache() -> None:
    data = _text(BLOCK, {"why": "It is fast. # noqa: AC115 a reason, until=2027-01-01"}).encode()
    report = check_entry(parse_entry("principles/demo/wide-loads.yaml", EntryKind.PRINCIPLE, load_bytes(data)))
    again = record.load(report.path, json.loads(json.dumps(record.dump(report))))
    assert again is not None
    assert again.waivers == report.waivers != ()
