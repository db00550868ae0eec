"""``why``, ``bench`` and the kernel options of ``run`` on the shipped checkpoint; whatever is wrong is one line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from kb.dtype import DType
from kb.store import KernelStore
from runtime.bandwidth import Bandwidth
from runtime.timing import Effort
from tests.kb.cli.command import agentcompile
from tests.runtime.engine.admitted import admit, few_contracts, right_kernel

TINY = Path(__file__).resolve().parents[3] / "models" / "tiny-qwen3"
NORM = {"num_tokens": 1, "hidden_size": 192, "has_residual": 0}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One thread, few rounds, caches of this run, and a bandwidth that is not measured."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache-home"))
    monkeypatch.setattr("runtime.bandwidth.measure_bandwidth", lambda device: Bandwidth({"torch.sum": 10.0}))
    quick = Effort(min_rounds=2, max_rounds=2)
    defaults = {"effort": quick, "stopwatch": None, "pairs": None}
    monkeypatch.setattr("runtime.engine.choosing.choose_bucket.__kwdefaults__", defaults)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def shipped(tmp_path: Path) -> tuple[object, ...]:
    """Options that name a small library and a store with one right kernel."""
    library = few_contracts(tmp_path / "library", "residual_rmsnorm", "attention_prelude")
    admit(KernelStore(library / "kernels"), right_kernel("residual_rmsnorm"), NORM, DType.BFLOAT16)
    return ("--library", library, "--device", "cpu")


def test_why_lists_every_site_with_what_was_tried(shipped: tuple[object, ...], tmp_path: Path) -> None:
    arguments = ["why", TINY, "--context", 40, "--cache", tmp_path / "records", "--json", *shipped]
    done = agentcompile(*arguments)
    assert done.code == 0, done.err
    assert [step["bucket"] for step in done.json["steps"]] == [1]
    assert all(step["library_us"] > 0 and step["step_us"] > 0 for step in done.json["steps"])
    rows = done.json["rows"]
    tried = {o: [r["candidate"] for r in rows if r["operation"] == o] for o in {r["operation"] for r in rows}}
    digest = right_kernel("residual_rmsnorm").digest
    assert tried["residual_rmsnorm"] == ["library", f"kernel {digest[:12]}"]
    assert tried["attention_prelude"] == ["library", "split"]
    assert tried["gated_mlp_up"] == ["library"]
    for operation in tried:
        assert sum(r["chosen"] for r in rows if r["operation"] == operation) == 1
    reasons = ("fastest step", "slower step", "step more than 1.04 times as long", "nothing else was tried")
    assert all(r["why"] in reasons for r in rows)
    assert agentcompile(*arguments).json == done.json  # from the record, to the microsecond


def test_why_prints_a_table_and_the_context_that_was_timed(shipped: tuple[object, ...], tmp_path: Path) -> None:
    done = agentcompile("why", TINY, "--context", 5000, "--cache", tmp_path, *shipped)
    assert done.code == 0, done.err
    assert "residual_rmsnorm" in done.out
    assert "batch 1, 1024 tokens each: " in done.out
    assert " ms a step on the library path, " in done.out


def test_why_names_kernels_that_no_verdict_lets_run_there(tmp_path: Path) -> None:
    library = few_contracts(tmp_path / "library", "residual_rmsnorm")
    elsewhere = {**NORM, "has_residual": 1}
    admit(KernelStore(library / "kernels"), right_kernel("residual_rmsnorm"), elsewhere, DType.BFLOAT16)
    words = ["why", TINY, "--context", 40, "--cache", tmp_path / "records", "--library", library, "--device", "cpu"]
    digest = right_kernel("residual_rmsnorm").digest
    told = agentcompile(*words, "--json").json["not_offered"]
    assert told == [
        {
            "bucket": 1,
            "operation": "residual_rmsnorm",
            "digest": digest,
            "dims": NORM,
            "why": "not judged at these dims",
        }
    ]
    done = agentcompile(*words)
    assert f"agentcompile validate DIGEST --model {TINY} --record judges a kernel there" in done.out
    assert f"  residual_rmsnorm {digest[:12]}, not judged at these dims: num_tokens=1, " in done.out


def test_bench_measures_both_paths_and_a_peer_in_one_run(shipped: tuple[object, ...]) -> None:
    arguments = ["--workload", "i4/o3", "--rounds", 1, "--peers", "hf-eager", "--dtype", "float32", "--json"]
    done = agentcompile("bench", TINY, *arguments, *shipped)
    assert done.code == 0, done.err
    assert [row["path"] for row in done.json] == ["library path", "chosen kernels", "hf-eager"]
    assert [row["same_tokens"] for row in done.json] == [True, True, True]
    assert done.json[0]["speed_up"] == 1.0
    for row in done.json:
        assert (row["prompt_tokens"], row["output_tokens"], row["requests"]) == (4, 3, 1)
        assert row["ms_per_token"] > 0
        assert row["output_tokens_per_s"] > 0


def test_bench_prints_a_table(shipped: tuple[object, ...]) -> None:
    done = agentcompile("bench", TINY, "--workload", "i4/o3", "--rounds", 1, "--requests", 2, *shipped)
    assert done.code == 0, done.err
    assert "i4/o3, 2 requests" in done.out
    assert "chosen kernels" in done.out


def test_run_says_the_same_with_kernels_and_without(shipped: tuple[object, ...]) -> None:
    arguments = ["run", TINY, "The assert", "--max-tokens", 12, "--dtype", "float32", "--json", *shipped]
    plain, chosen = agentcompile(*arguments, "--library-path"), agentcompile(*arguments, "--no-fallback")
    assert plain.json["text"] == chosen.json["text"]
    assert plain.json["kernels"] == 0
    assert chosen.json["fallbacks"] == {}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["why", "no-such-folder"], "no-such-folder/config.json: cannot be read"),
        (["why", TINY, "--store", "no-such-store"], "no-such-store: no such folder; name the store's folder"),
        (["why", TINY, "--library", "no-such-library"], "no-such-library"),
        (["why", TINY, "--dtype", "int8"], "dtype 'int8' is not supported"),
        (["bench", "no-such-folder"], "no-such-folder/config.json: cannot be read"),
        (["bench", TINY, "--workload", "128/512"], "--workload '128/512': expected iN/oM, such as i128/o512"),
        (["bench", TINY, "--workload", "i0/o5"], "--workload 'i0/o5': expected iN/oM"),
        (["bench", TINY, "--workload", "i4/o1"], "ask for 2 tokens of output or more"),
        (["bench", TINY, "--workload", "i2000/o5"], "max_model_len 2006 is beyond the model's 1024 positions"),
        (["bench", TINY, "--peers", "hf-eager,llama"], "--peers 'llama': known are hf-eager, hf-compiled"),
        (["bench", TINY, "--peers", "hf-eager", "--requests", 2], "peers are measured with one request"),
        (["bench", TINY, "--store", "no-such-store"], "no-such-store: no such folder"),
        (["run", TINY, "x", "--store", "no-such-store"], "no-such-store: no such folder"),
        (["run", TINY, "x", "--library", "no-such-library"], "no-such-library"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_exit_code_two(arguments: list[object], message: str) -> None:
    done = agentcompile(*arguments, "--device", "cpu")
    assert done.code == 2
    assert message in done.err
    assert len(done.err.strip().splitlines()) == 1
    assert done.out == ""
