"""``agentcompile regenerate`` as it is typed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from click.testing import Result
from typer.testing import CliRunner

from generator.cli.regenerate import command
from kb.cli.failure import Failure
from kb.library import library_root
from runtime.device import has_cuda

MODEL = str(library_root() / "models/tiny-qwen3")
CPU = ["--target", "cpu", "--no-capture"]
PATTERNS = [*CPU, "--patterns", "gated_mlp_up,rope"]

app = typer.Typer()
app.command()(command)


def regenerate(*words: str) -> Any:
    result: Result = CliRunner().invoke(app, list(words))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    return tmp_path


def test_a_dry_run_shows_plan_and_prompts_and_touches_nothing_else(here: Path) -> None:
    before = set(here.rglob("*"))
    told = json.loads(regenerate(MODEL, *CPU, "--store", "none", "--dry-run", "--out", "prompts", "--json").stdout)
    states = {p["pattern"]: p["todo"] for p in told["patterns"]}
    assert states["encoder_mlp"] == states["rope"] == "skip"
    asked = [p for p in told["patterns"] if p["prompt"]]
    assert {"attention_prelude", "paged_decode_attention"} <= {p["pattern"] for p in asked}
    for p in asked:
        text = Path(p["prompt"]["file"]).read_text()
        assert text.startswith("# Task")
        assert p["prompt"]["tokens"] > 1000
        for dims in p["dims"]:
            assert ", ".join(f"{k}={v}" for k, v in dims.items()) in text
    assert {p.name for p in set(here.iterdir()) - before} == {"prompts"}
    assert "| attention_prelude |" in regenerate(MODEL, *CPU, "--dry-run").stdout


def test_a_plan_for_a_gpu_needs_none(here: Path) -> None:
    told = json.loads(
        regenerate(
            MODEL, "--no-capture", "--dry-run", "--arch", "sm_80", "--bucket", "1", "--bucket", "8", "--json"
        ).stdout
    )
    assert (told["target"], told["arch"], told["buckets"]) == ("cuda", "sm_80", [1, 8])


def test_missing_replies_are_named_the_exit_code_says_so_and_nothing_is_measured(here: Path) -> None:
    words = [MODEL, *PATTERNS, "--provider", "exchange:x", "--store", "kernels", "--json"]
    for _ in range(2):
        result = regenerate(*words)
        told = json.loads(result.stdout)
        assert result.exit_code == 1
        assert [w.split(":")[0] for w in told["waiting"]] == ["rope", "gated_mlp_up"]
        assert (told["speeds"], told["sites"]) == ([], [])
    asked = {p.parent.name for p in (here / "x").rglob("round-1-lane-1.prompt.md")}
    assert {name.rpartition("-")[0] for name in asked} == {"gated_mlp_up", "rope"}
    work = here / ".agentcompile" / "tiny-qwen3-cpu"
    assert "no reply yet" in (work / "report.md").read_text()
    assert json.loads((work / "report.json").read_text())["waiting"] == told["waiting"]
    (dry,) = (
        p
        for p in json.loads(regenerate(*words[:-1], "--dry-run", "--json").stdout)["patterns"]
        if p["pattern"] == "rope"
    )
    assert dry["todo"] == "resume"


def test_a_reply_that_is_no_kernel_is_told_to_its_author_on_the_next_run(here: Path) -> None:
    words = [MODEL, *CPU, "--patterns", "rope", "--provider", "exchange:x", "--store", "kernels"]
    regenerate(*words)
    [prompt] = (here / "x").rglob("round-1-lane-1.prompt.md")
    digits = prompt.read_text().split()[2]
    reply = f"<!-- reply to {digits} by a person -->\nI cannot.\n<!-- end of reply -->\n"
    prompt.with_name("round-1-lane-1.reply.md").write_text(reply)
    result = regenerate(*words)
    assert result.exit_code == 1
    assert "the reply could not be used" in prompt.with_name("round-2-lane-1.prompt.md").read_text()
    assert "1 reply, " in result.stdout


def test_another_search_does_not_touch_the_question_of_one_that_waits(here: Path) -> None:
    words = [MODEL, *CPU, "--patterns", "rope", "--provider", "exchange:x", "--store", "kernels"]
    regenerate(*words)
    [first] = (here / "x").rglob("round-1-lane-1.prompt.md")
    before = first.read_text()
    first.with_name("round-1-lane-1.reply.md").write_text("<!-- reply to ")  # somebody is writing
    assert "no reply yet" in regenerate(*words, "--lanes", "2").stdout
    assert first.read_text() == before
    assert len({p.parent for p in (here / "x").rglob("*.prompt.md")}) == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["/nonexistent"], "/nonexistent/config.json: cannot be read"),
        ([MODEL, *CPU, "--patterns", "ropes"], "no pattern 'ropes'; did you mean rope?"),
        ([MODEL, *PATTERNS], "ANTHROPIC_API_KEY"),
        ([MODEL, *PATTERNS, "--provider", "pigeon"], "unknown provider 'pigeon'"),
        ([MODEL, *PATTERNS, "--provider", "replay:none"], "none: no such folder"),
        ([MODEL, *PATTERNS, "--out", "x"], "give --dry-run with it"),
        ([MODEL, *PATTERNS, "--rounds", "2"], "asks for at least 4"),
        ([MODEL, *PATTERNS, "--workload", "128"], "expected iN/oM"),
        ([MODEL, *PATTERNS, "--max-usd", "3"], "needs --price"),
    ],
)
def test_bad_input_is_one_clear_line(here: Path, words: list[str], message: str) -> None:
    with pytest.raises(Failure) as caught:
        regenerate(*words)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.skipif(has_cuda(), reason="this machine has an NVIDIA GPU")
def test_without_a_gpu_nothing_is_searched_for_it(here: Path) -> None:
    with pytest.raises(Failure, match="no NVIDIA GPU here"):
        regenerate(MODEL, "--no-capture", "--provider", "exchange:x")


def test_a_pattern_without_recorded_replies_is_named_and_the_others_are_played_on(here: Path) -> None:
    (here / "recorded").mkdir()
    result = regenerate(MODEL, *PATTERNS, "--provider", "replay:recorded", "--store", "kernels", "--json")
    assert result.exit_code == 2
    assert json.loads(result.stdout)["failed"] == [
        "rope: recorded has no recorded replies for rope on cpu",
        "gated_mlp_up: recorded has no recorded replies for gated_mlp_up on cpu",
    ]
