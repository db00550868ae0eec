"""How a projection is cut into programs: measured where somebody measured it, by rule elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from runtime.baselines.triton_kernels.measured import MEASURED

# Multiprocessors assumed where there is no GPU to ask (Triton's interpreter).
_ASSUMED = 132
# The tensor-core tile's smallest side.
_MMA = 16
_WIDEST_TOKENS = 128


@dataclass(frozen=True, slots=True)
class Tiles:
    """``rows`` of the weight a program, ``depth`` of K a step, ``splits`` of K over programs."""

    rows: int
    depth: int
    warps: int = 4
    stages: int = 1
    splits: int = 1


@dataclass(frozen=True, slots=True)
class Cut:
    """Everything a projection kernel takes as compile-time constants, derived from tiles and shape.

    ``even``: programs cover rows and K exactly, so that weights may be read without masks.
    """

    tiles: Tiles
    tokens: int
    k_split: int
    grid: tuple[int, int, int]
    even: bool

    @property
    def dot(self) -> bool:
        """Tensor cores; one row alone is summed on the other cores."""
        return self.tokens > 1


def ceil_div(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


def power_of_2(n: int) -> int:
    """The smallest power of two that is at least ``n``."""
    return 1 << max(0, n - 1).bit_length()


def multiprocessors(device: torch.device) -> int:
    """Multiprocessors of a GPU."""
    if device.type != "cuda":
        return _ASSUMED
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def cut(
    kernel: str,
    num_rows: int,
    k: int,
    num_tokens: int,
    like: torch.Tensor,
    *,
    may_split: bool = False,
    tiles: Tiles | None = None,
) -> Cut:
    """How ``kernel`` cuts ``num_rows`` x ``k`` weights times ``num_tokens`` rows of ``like``'s type and device.

    ``num_rows`` counts results (a gate and its up row are one). ``tiles``: instead of the table's, for tuning.
    """
    tokens = 1 if num_tokens == 1 else max(_MMA, power_of_2(min(num_tokens, _WIDEST_TOKENS)))
    if tiles is None:
        tiles = _chosen(kernel, num_rows, k, num_tokens, tokens, like, may_split)
    k_split = ceil_div(ceil_div(k, tiles.splits), tiles.depth) * tiles.depth
    grid = (ceil_div(num_rows, tiles.rows), ceil_div(k, k_split), ceil_div(num_tokens, tokens))
    # Without masks the last split must end where K does: K / depth steps need not divide by the number of splits.
    even = num_rows % tiles.rows == 0 and grid[1] * k_split == k
    return Cut(tiles, tokens, k_split, grid, even)


def _chosen(
    kernel: str, num_rows: int, k: int, num_tokens: int, tokens: int, like: torch.Tensor, may_split: bool
) -> Tiles:
    if like.element_size() == 2:
        known = MEASURED.get((kernel, num_rows, k, bucket(num_tokens)))
        if known is not None:
            return Tiles(*known)
    sms = multiprocessors(like.device)
    if tokens == 1:
        rows = 16 if num_rows >= 64 * sms * 16 else 8 if num_rows >= 4 * sms * 8 else 4
        return Tiles(min(rows, power_of_2(num_rows)), min(power_of_2(k), 1024 // like.element_size()))
    rows = 64 if num_rows >= 4 * sms * 64 else 32 if num_rows >= 2 * sms * 32 or may_split else 16
    depth = 256 if rows == 16 and tokens <= 32 else 128
    depth = max(_MMA, min(depth // (like.element_size() // 2), power_of_2(k)))
    splits = max(1, min(8, ceil_div(2 * sms, ceil_div(num_rows, rows)), k // (2 * depth))) if may_split else 1
    return Tiles(rows, depth, stages=4 if tokens < _WIDEST_TOKENS else 3, splits=splits)


def bucket(num_tokens: int) -> int:
    """The row count whose measurement a row count uses: 1, 8, 64 or 256."""
    return next((b for b in (1, 8, 64) if num_tokens <= b), 256)


def candidates(num_tokens: int, *, may_split: bool) -> Iterator[Tiles]:
    """Tiles worth timing for a shape, few enough to time them all."""
    if num_tokens == 1:
        for rows, depth, warps, stages in _ONE_ROW:
            yield Tiles(rows, depth, warps, stages)
        return
    for rows, depth, warps, stages in _SEVERAL_ROWS:
        if num_tokens > 64 and depth > 128:
            continue
        for splits in (1, 2, 4) if may_split else (1,):
            yield Tiles(rows, depth, warps, stages, splits)


_ONE_ROW = (
    (2, 1024, 4, 1),
    (4, 512, 4, 1),
    (4, 1024, 4, 1),
    (8, 256, 4, 1),
    (8, 512, 4, 1),
    (16, 256, 4, 1),
    (16, 512, 8, 1),
    (4, 512, 2, 1),
    (8, 512, 4, 3),
    (4, 1024, 4, 3),
    (16, 256, 4, 4),
)
_SEVERAL_ROWS = (
    (16, 128, 4, 5),
    (16, 256, 4, 4),
    (16, 512, 4, 3),
    (32, 128, 4, 5),
    (32, 256, 4, 3),
    (64, 64, 4, 6),
    (64, 128, 4, 4),
    (128, 64, 4, 5),
)
