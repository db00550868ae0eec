"""The Triton baselines without a GPU: their arithmetic under the interpreter, their compilation for real targets."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from runtime.baselines.registry import _TRITON
from runtime.baselines.triton_kernels.tiles import Tiles, candidates, cut, power_of_2

ROOT = Path(__file__).parent.parent.parent
WITHOUT_TRITON = "needs the package 'triton' (the cuda extra); it is not installed"
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason=WITHOUT_TRITON)


def needs_interpreter() -> None:
    version = tuple(int(part) for part in importlib.metadata.version("triton").split(".")[:2])
    if version < (3, 9):
        pytest.skip("the interpreter of Triton before 3.9 cannot loop to a bound read from memory under numpy 2.4")


def in_own_process(script: str, *arguments: str) -> dict[str, list[str]]:
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests/runtime" / script), *arguments],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": path},
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    report: dict[str, list[str]] = json.loads(done.stdout.splitlines()[-1])
    return report


@pytest.fixture(scope="module")
def interpreted() -> dict[str, list[str]]:
    needs_interpreter()
    return in_own_process("interpreted_triton.py")


@needs_triton
@pytest.mark.slow
@pytest.mark.parametrize("contract_id", _TRITON)
def test_the_kernel_is_right_under_the_interpreter(contract_id: str, interpreted: dict[str, list[str]]) -> None:
    assert interpreted[contract_id] == []


@needs_triton
@pytest.mark.slow
@pytest.mark.parametrize("arch", ["80", "90"])
def test_every_kernel_compiles_without_spilling(arch: str, tmp_path: Path) -> None:
    report = in_own_process("compiled_triton.py", arch, str(tmp_path))
    assert set(report) == set(_TRITON)
    assert {name: found for name, found in report.items() if found} == {}


@pytest.mark.parametrize("rows", [1, 2, 8, 17, 64, 200, 256])
@pytest.mark.parametrize(("n", "k"), [(8, 64), (520, 1032), (4096, 12288), (151936, 2560)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_cut_covers_every_row_and_all_of_k_once(rows: int, n: int, k: int, dtype: torch.dtype) -> None:
    like = torch.empty(0, dtype=dtype)
    for may_split in (False, True):
        how = cut("any", n, k, rows, like, may_split=may_split)
        assert how.grid[0] * how.tiles.rows >= n > (how.grid[0] - 1) * how.tiles.rows
        assert how.grid[1] * how.k_split >= k > (how.grid[1] - 1) * how.k_split
        assert how.grid[2] * how.tokens >= rows
        assert how.k_split % how.tiles.depth == 0
        assert may_split or how.grid[1] == 1
        assert how.even == (how.grid[0] * how.tiles.rows == n and how.grid[1] * how.k_split == k)
        for size in (how.tiles.rows, how.tiles.depth, how.tokens):
            assert size == power_of_2(size)


# Output and down projections of models whose steps of K do not divide by the splits: three programs for 64 steps.
@pytest.mark.parametrize(("n", "k"), [(3072, 8192), (4096, 4096), (4096, 14336), (4096, 13696)])
@pytest.mark.parametrize("rows", [1, 8, 64])
def test_weights_read_without_masks_are_read_to_their_end_and_no_further(n: int, k: int, rows: int) -> None:
    how = cut("any", n, k, rows, torch.empty(0, dtype=torch.bfloat16), may_split=True)
    reaches = how.grid[1] * how.k_split
    assert reaches == k or not how.even


@pytest.mark.parametrize("rows", [1, 8, 64])
def test_tiles_to_time_are_few_and_distinct(rows: int) -> None:
    found = list(candidates(rows, may_split=True))
    assert 1 < len(found) == len(set(found)) <= 24
    assert cut("any", 4096, 4096, rows, torch.empty(0), tiles=found[0]).tiles == found[0]
    assert all(isinstance(tiles, Tiles) and tiles.splits <= 4 for tiles in found)
