from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from kb.cli.failure import Failure
from kb.manifest import Verdict
from validator.cli.validate import command

RIGHT = Path(__file__).parents[1] / "calibration" / "right"
FAST = ["--target", "cpu", "--gates", "static,compile,interface", "--dtype", "bfloat16"]
DIMS = "num_tokens=2,hidden_size=64,has_residual=1"


app = typer.Typer()
app.command()(command)


def validate(*words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(words))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def test_a_right_candidate_exits_with_zero_and_writes_its_report(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    folder = str(RIGHT / "residual_rmsnorm")
    code, out, err = validate(folder, "--contract", "residual_rmsnorm", *FAST, "--dims", DIMS, "--report", str(report))
    assert code == 0, err
    assert "no gate failed" in out
    assert [line.split()[1] for line in err.splitlines()[1:4]] == ["passed"] * 3
    verdict = Verdict.model_validate_json(report.read_text())
    assert verdict.failed_gate is None
    assert not verdict.accepted


def test_json_goes_to_stdout_and_nothing_else_does() -> None:
    folder = str(RIGHT / "residual_rmsnorm")
    code, out, _ = validate(folder, "--contract", "residual_rmsnorm", "--target", "cpu", "--gates", "static", "--json")
    assert code == 0
    assert json.loads(out)["gates"][0] == json.loads(out)["gates"][0] | {"gate": "static", "outcome": "passed"}


def test_a_failed_gate_exits_with_one_and_says_where(tmp_path: Path) -> None:
    (tmp_path / "kernel.cpp").write_text("#include <thread>\nint state;\n")
    (tmp_path / "plan.yaml").write_text("contract: rope\nlaunches:\n  - {entry: rope}\n")
    code, out, _ = validate(str(tmp_path))
    assert code == 1
    assert "forbidden-include line 1:" in out
    assert "missing-entry" in out
    assert "not accepted: the static gate failed" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "not a folder"),
        ([str(RIGHT / "rope")], "choose one with --target"),
        ([str(RIGHT / "rope"), "--target", "cpu"], "names no contract"),
        ([str(RIGHT / "rope"), "--target", "cpu", "--contract", "rop"], "no contract 'rop'"),
        ([str(RIGHT / "rope"), "--target", "cpu", "--contract", "rope", "--dims", "num_tokens"], "not name=number"),
        ([str(RIGHT / "rope"), "--target", "cpu", "--contract", "rope", "--dims", "num_tokens=1"], "has no value"),
        ([str(RIGHT / "rope"), "--target", "cpu", "--contract", "rope", "--gates", "speed"], "unknown gate"),
        ([str(RIGHT / "rope"), "--target", "cpu", "--contract", "rope", "--dtype", "int32"], "--dtype int32"),
    ],
)
def test_bad_usage_is_one_line_and_exits_with_two(words: list[str], message: str) -> None:
    with pytest.raises(Failure, match=message) as failure:
        validate(*words)
    assert failure.value.exit_code == 2
    assert "\n" not in str(failure.value)
