"""What the GPU benchmarks compute without a GPU: gaps and overlaps of a profile, processes that outstay their time."""

from __future__ import annotations

import os
import sys

import pytest

from bench.gpu.engine import TIMED_OUT, parsed, say_as_it_comes
from bench.gpu.report import Report
from bench.gpu.step_profile import Span, summarise


def test_a_profile_tells_gaps_from_overlaps() -> None:
    spans = [Span("b", 12, 20), Span("a", 0, 10), Span("c", 18, 25), Span("a", 30, 34), Span("d", 31, 33)]
    found = summarise(spans, repetitions=1)
    assert (found.span, found.busy, found.gaps, found.overlap) == (34, 27, 7, 4)
    assert found.rows == (("a", 2, 14, 5), ("b", 1, 8, 2), ("c", 1, 7, 0), ("d", 1, 2, 0))


def test_a_profile_of_repetitions_is_that_of_one() -> None:
    spans = [Span("a", 10.0 * i, 10.0 * i + 4) for i in range(5)]
    found = summarise(spans, repetitions=5)
    assert found.rows == (("a", 1.0, pytest.approx(4.0), pytest.approx(4 * 6 / 5)),)
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
