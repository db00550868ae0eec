from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from validator import doctor
from validator.cli.doctor import command
from validator.doctor import Check


def run(*arguments: str) -> Any:
    app = typer.Typer()
    app.command()(command)
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two findings in place of this machine's."""
    checks = [Check("cuda", "GPU", "ok", "one [bold] GPU"), Check("tools", "ncu", "missing", "for profiles", "get it")]
    monkeypatch.setattr(doctor, "examine", lambda: checks)


def test_this_machine_is_examined_whole_and_what_is_missing_comes_with_advice() -> None:
    checks = doctor.examine()
    assert [c.group for c in checks if c.name in ("python", "processor", "NVRTC", "GPU", "git")] == [
        "python",
        "cpu",
        "cuda",
        "cuda",
        "tools",
    ]
    assert {c.name for c in checks} >= {"torch", "C++ compiler with OpenMP", "headers", "compute-sanitizer", "seccomp"}
    assert all(c.advice for c in checks if c.standing == "missing")
    assert not [c for c in checks if c.standing == "problem"]


@pytest.mark.usefixtures("few")
def test_json_holds_every_check() -> None:
    result = run("--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)[1] == {
        "group": "tools",
        "name": "ncu",
        "standing": "missing",
        "found": "for profiles",
        "advice": "get it",
    }


@pytest.mark.usefixtures("few")
def test_the_text_groups_checks_and_keeps_brackets() -> None:
    result = run()
    assert result.exit_code == 0
    assert "one [bold] GPU" in result.stdout
    assert "→ get it" in result.stdout
    assert "2 looked for, 1 missing" in result.stdout


def test_a_group_that_breaks_is_a_problem_and_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def _broken() -> Iterator[Check]:
        yield Check("broken", "first", "ok", "")
        raise OSError("no such thing")

    monkeypatch.setattr(doctor, "_nvrtc", _broken)
    checks = doctor.examine()
    (problem,) = (c for c in checks if c.standing == "problem")
    assert (problem.group, problem.found) == ("broken", "OSError: no such thing")
    assert any(c.name == "first" for c in checks)
    assert any(c.group == "folders" for c in checks)


def test_without_a_compiler_the_advice_names_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    (check,) = (c for c in doctor._cpp() if c.name.startswith("C++"))
    assert check.standing == "missing"
    assert "CXX" in check.advice
