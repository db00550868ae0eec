"""``agentcompile run`` streams readable text, then says how fast it was; whatever is wrong is one line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from runtime.bandwidth import Bandwidth
from tests.kb.cli.command import agentcompile

TINY = Path(__file__).resolve().parents[3] / "models" / "tiny-qwen3"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One thread, caches of this run, and a bandwidth that is not measured: it takes seconds and has its own tests."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache-home"))
    monkeypatch.setattr("runtime.bandwidth.measure_bandwidth", lambda device: Bandwidth({"torch.sum": 10.0}))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_text_goes_to_standard_output_and_speed_to_standard_error() -> None:
    done = agentcompile("run", TINY, "The assert statement", "--max-tokens", 60, "--device", "cpu")
    assert done.code == 0, done.err
    words = [w.strip(".,()") for w in done.out.split()]
    assert len(words) > 6
    assert {"the", "is", "a", "of", "to", "in", "that", "and"} & set(words), f"no English in {done.out!r}"
    assert "60 tokens, first after" in done.err
    assert "ms a token" in done.err
    assert "of the bandwidth floor (0.35 ms at 10 GB/s)" in done.err


def test_the_json_says_everything_and_nothing_else_is_printed() -> None:
    arguments = ["--max-tokens", 12, "--device", "cpu", "--json", "--ignore-eos"]
    done = agentcompile("run", TINY, *arguments, stdin="A class definition")
    report = done.json
    assert report["output_tokens"] == 12
    assert report["prompt_tokens"] == len("A class definition")
    assert report["finish_reason"] == "length"
    assert report["share_of_floor"] == pytest.approx(report["floor_ms"] / report["ms_per_token"], rel=1e-2)
    assert report["ms_per_token"] == pytest.approx(1e3 / report["tokens_per_s"], rel=1e-2)
    assert report["fallbacks"] == {}
    assert report["weight_bytes"] < 8 * 2**20
    assert done.err == ""


def test_a_seed_repeats_a_drawn_text_and_a_chat_template_is_used() -> None:
    arguments = ["--max-tokens", 30, "--temperature", 1, "--seed", 3, "--chat", "--json", "--device", "cpu"]
    first, second = (agentcompile("run", TINY, "What is a list?", *arguments).json for _ in range(2))
    assert first["text"] == second["text"]
    assert first["prompt_tokens"] == len("What is a list?\n")


def test_a_stop_string_ends_the_text_before_it() -> None:
    whole = agentcompile("run", TINY, "The", "--max-tokens", 40, "--json", "--device", "cpu").json["text"]
    stop = whole[10:14]
    cut = agentcompile("run", TINY, "The", "--max-tokens", 40, "--stop", stop, "--device", "cpu")
    assert cut.out == whole[: whole.index(stop)] + "\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no-such-folder", "x"], "no-such-folder/config.json: cannot be read"),
        ([TINY, ""], "an empty prompt"),
        ([TINY], "an empty prompt"),
        ([TINY, "x", "--dtype", "int8"], "dtype 'int8' is not supported"),
        ([TINY, "x", "--device", "tpu"], "device 'tpu' is not supported"),
        ([TINY, "x", "--device", "cuda:99"], "device 'cuda:99' is not there"),
        ([TINY, "x", "--top-p", "2"], "top_p is 2.0"),
        ([TINY, "x" * 2000], "leaves no room in a context of 1024"),
    ],
)
def test_what_cannot_be_run_is_one_line_and_exit_code_two(arguments: list[object], message: str) -> None:
    done = agentcompile("run", *arguments)
    assert done.code == 2
    assert message in done.err
    assert len(done.err.strip().splitlines()) == 1
    assert done.out == ""
