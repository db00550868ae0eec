"""``agentcompile run`` streams readable text, then says how fast it was; whatever is wrong is one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
TINY = ROOT / "models" / "tiny-qwen3"


Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The command as a person types it, with a home of its own."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path_factory.mktemp("home")), "OMP_NUM_THREADS": "1"}

    def call(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", "from kb.cli.app import main; main()", "run", *arguments]
        return subprocess.run(command, input=stdin, capture_output=True, text=True, cwd=ROOT, env=environment)

    return call


def test_text_goes_to_standard_output_and_speed_to_standard_error(run: Run) -> None:
    done = run(str(TINY), "The assert statement", "--max-tokens", "60", "--device", "cpu")
    assert done.returncode == 0, done.stderr
    words = [w.strip(".,()") for w in done.stdout.split()]
    assert len(words) > 6
    assert {"the", "is", "a", "of", "to", "in", "that", "and"} & set(words), f"no English in {done.stdout!r}"
    assert "60 tokens, first after" in done.stderr
    assert "ms a token" in done.stderr
    assert "of the bandwidth floor" in done.stderr


def test_the_json_says_everything_and_nothing_else_is_printed(run: Run) -> None:
    arguments = ["--max-tokens", "12", "--device", "cpu", "--json", "--ignore-eos"]
    done = run(str(TINY), *arguments, stdin="A class definition")
    report = json.loads(done.stdout)
    assert report["output_tokens"] == 12
    assert report["prompt_tokens"] == len("A class definition")
    assert report["finish_reason"] == "length"
    assert 0 < report["share_of_floor"] < 1
    assert report["ms_per_token"] == pytest.approx(1e3 / report["tokens_per_s"], rel=1e-2)
    assert report["fallbacks"] == {}
    assert report["weight_bytes"] < 8 * 2**20


def test_a_seed_repeats_a_drawn_text_and_a_chat_template_is_used(run: Run) -> None:
    arguments = ["--max-tokens", "30", "--temperature", "1", "--seed", "3", "--chat", "--json", "--device", "cpu"]
    first, second = (json.loads(run(str(TINY), "What is a list?", *arguments).stdout) for _ in range(2))
    assert first["text"] == second["text"]
    assert first["prompt_tokens"] == len("What is a list?\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no-such-folder", "x"], "no-such-folder/config.json: cannot be read"),
        ([str(TINY), ""], "an empty prompt"),
        ([str(TINY), "x", "--dtype", "int8"], "dtype 'int8' is not supported"),
        ([str(TINY), "x", "--device", "tpu"], "device 'tpu'"),
        ([str(TINY), "x", "--top-p", "2"], "top_p is 2.0"),
        ([str(TINY), "x" * 2000], "leaves no room in a context of 1024"),
    ],
)
def test_what_cannot_be_run_is_one_line_and_exit_code_two(arguments: list[str], message: str, run: Run) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stdout == ""
