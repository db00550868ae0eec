"""What the GPU benchmarks compute without a GPU: gaps and overlaps of a profile, processes that outstay their time."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch

from bench.gpu.engine import TIMED_OUT, parsed, say_as_it_comes
from bench.gpu.ladder import RUNGS, Offer
from bench.gpu.random_checkpoint import main as write_checkpoint
from bench.gpu.report import Report
from bench.gpu.step_profile import Row, Span, summarise
from kb.dtype import DType
from kb.store import KernelStore
from runtime.device import cpu_device
from runtime.models.spec import read_spec
from runtime.models.weights import load_weights
from runtime.sites import Site
from tests.runtime.engine.admitted import contracts, manifest, right_kernel


def test_a_profile_tells_gaps_from_overlaps() -> None:
    spans = [Span("b", 12, 20), Span("a", 0, 10), Span("c", 18, 25), Span("a", 30, 34), Span("d", 31, 33)]
    found = summarise(spans, repetitions=1)
    assert (found.span, found.busy, found.gaps, found.overlap) == (34, 27, 7, 4)
    assert [(r.name, r.runs, r.us, r.gap) for r in found.rows] == [
        ("a", 2, 14, 5),
        ("b", 1, 8, 2),
        ("c", 1, 7, 0),
        ("d", 1, 2, 0),
    ]


def test_a_profile_tells_what_a_kernel_takes_in_the_chain_and_how_early_it_begins() -> None:
    spans = [Span("a", 0, 10), Span("b", 6, 14), Span("a", 12, 24), Span("b", 20, 27)]
    a, b = sorted(summarise(spans, repetitions=1).rows, key=lambda r: r.name)
    assert (b.takes, b.early) == (3.5, 4)  # 14 - 10 and 27 - 24; begins 4 before each end
    assert (a.takes, a.early) == (10, 1)  # the first has nobody before it


def test_a_profile_of_repetitions_is_that_of_one() -> None:
    spans = [Span("a", 10.0 * i, 10.0 * i + 4) for i in range(5)]
    found = summarise(spans, repetitions=5)
    [row] = found.rows
    assert row == Row("a", 1.0, pytest.approx(4.0), pytest.approx(4 * 6 / 5), takes=10.0, early=-6.0)
    assert found.busy == pytest.approx(4.0)


def test_a_profile_without_kernels_says_so() -> None:
    with pytest.raises(ValueError, match="the profiler saw no kernel"):
        summarise([], 1)


def test_lines_are_repeated_as_they_come_and_the_exit_code_is_the_process_s() -> None:
    report = Report()
    script = "print('one', flush=True); print('two'); raise SystemExit(3)"
    assert say_as_it_comes([sys.executable, "-c", script], dict(os.environ), 60, report) == 3
    assert report.log == ["one", "two"]


def test_a_process_that_does_not_end_is_ended() -> None:
    report = Report()
    script = "import time; print('here', flush=True); time.sleep(600)"
    assert say_as_it_comes([sys.executable, "-c", script], dict(os.environ), 6, report) == TIMED_OUT
    assert report.log == ["here"]


def test_an_unknown_model_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parsed(["--out", "x", "--models", "qwen3-4b,gpt-2"])
    assert "unknown model gpt-2; known are qwen3-4b" in capsys.readouterr().err
    assert len(parsed(["--out", "x", "--models", "all"]).models) == 6


def test_every_rung_of_the_ladder_is_offered_what_the_one_before_it_had_and_more(tmp_path: Path) -> None:
    contract = contracts()["residual_rmsnorm"]
    store, kernel = KernelStore(tmp_path), right_kernel("residual_rmsnorm")
    dims = {"num_tokens": 1, "hidden_size": 64, "has_residual": 1}
    made = manifest(kernel, dims, DType.BFLOAT16)
    store.admit(kernel, made.model_copy(update={"origin": made.origin.model_copy(update={"authorship": "llm"})}))
    site = Site(contract.id, tuple(sorted(dims.items())), DType.BFLOAT16)
    offered = []
    for kinds in (r.offers for r in RUNGS if r.offers is not None):
        found = Offer({contract.id: contract}, store, cpu_device(), kinds)
        offered.append({c.digest for c in found(site)})
        assert {c.digest for c in found.kernels(contract.id)} == offered[-1]
    assert offered[0] == offered[1] < offered[2]
    assert offered[2] - offered[0] == {kernel.digest}


def test_a_random_checkpoint_is_one_that_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["random_checkpoint", "tiny", str(tmp_path), "--device", "cpu"])
    assert write_checkpoint() == 0
    spec = read_spec(tmp_path)
    weights = load_weights(tmp_path, spec, torch.device("cpu"), torch.bfloat16)
    assert weights.layers[0].w_qkv.abs().sum() > 0
