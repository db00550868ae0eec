"""The same on a GPU: regions judged in the isolated worker, timed against the framework there, and run."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from generator.compile.emit import emit
from generator.compile.pipeline import Settings, compile_module
from generator.compile.subject import load_subject
from generator.compile.tournament import Effort, Rule
from kb.dtype import Target

pytestmark = pytest.mark.gpu


def test_a_module_is_compiled_on_a_gpu_and_the_folder_builds(tmp_path: Path) -> None:
    subject = load_subject("tests.generator.compile.modules:stack")
    effort = Effort(whole=False, timing_seconds=0.5, rule=Rule.VALID)
    made = compile_module(subject, Settings(Target.CUDA, tmp_path / "judged", plans=2, effort=effort))
    assert made.compiled is not None
    assert made.whole is not None
    assert made.whole.same
    judged = [j for d in made.decisions for j in d.judged]
    assert [j.failure for j in judged] == [""] * len(judged)
    assert all(j.timing is not None and j.timing.baseline == "framework" for j in judged)
    assert made.compiled.regions == 7
    x = torch.randn(2, 4, 64, device="cuda").bfloat16()
    for got, wanted in zip(made.compiled(x), made.compiled.module(x), strict=True):
        assert torch.allclose(got.float(), wanted.float(), atol=0.05)
    assert made.compiled.fallbacks.total == 0
    emit(made, tmp_path / "out")
    if shutil.which("nvcc") is None:
        pytest.skip("all but the build was checked; nvcc is not on the PATH")
    done = subprocess.run(
        ["./build.sh"], cwd=tmp_path / "out", capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "all right"


def test_sizes_that_may_change_are_arguments_on_a_gpu_too(tmp_path: Path) -> None:
    subject = load_subject("tests.generator.compile.modules:normed")
    effort = Effort(whole=False, timed=False, rule=Rule.VALID)
    made = compile_module(subject, Settings(Target.CUDA, tmp_path, plans=1, effort=effort))
    assert made.compiled is not None
    assert made.compiled.regions == 1
    for rows in (6, 2, 33):
        x, residual = (torch.randn(rows, 64, device="cuda").bfloat16() for _ in range(2))
        for got, wanted in zip(made.compiled(x, residual), made.compiled.module(x, residual), strict=True):
            assert torch.allclose(got.float(), wanted.float(), atol=0.05)
    assert made.compiled.fallbacks.total == 0
