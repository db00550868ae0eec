"""The choices a template leaves open: one frozen object a family. What they mean is said here, what is legal there."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ElementwiseParameters:
    """``vector`` elements a thread takes at once along the last dim where the tensors allow it; ``block`` threads."""

    vector: int = 8
    block: int = 256


@dataclass(frozen=True, slots=True)
class RowParameters:
    """``group`` threads own a row (32: a warp, shuffles alone; more: a block), a block holds ``rows`` such groups.

    ``vector`` elements are loaded at once; ``keep``: inputs stay in registers between passes, or are read again.
    """

    vector: int = 8
    group: int = 256
    rows: int = 1
    keep: bool = True


@dataclass(frozen=True, slots=True)
class GemvParameters:
    """A row of the weight is read by ``split`` warps (0: chosen from n, k and the device), ``rows`` at a time.

    ``warps`` a block; ``tokens`` rows of x share a read of the weight; ``unroll`` 16-byte loads are issued a row and
    lane before the first is used; ``ahead``: the next such round is on its way while one is used, for more registers.
    ``dependent``: a programmatic dependent launch.
    """

    rows: int = 1
    split: int = 0
    warps: int = 8
    tokens: int = 8
    unroll: int = 4
    ahead: bool = False
    dependent: bool = False


@dataclass(frozen=True, slots=True)
class GemmParameters:
    """The product on CUDA cores: tiles of ``tile_m`` rows of x by ``tile_n`` of the weight, ``tile_k`` deep.

    A thread owns ``thread_m`` by ``thread_n`` sums.
    """

    tile_m: int = 32
    tile_n: int = 64
    tile_k: int = 32
    thread_m: int = 2
    thread_n: int = 4


@dataclass(frozen=True, slots=True)
class TensorGemmParameters:
    """The product on tensor cores: weights on the rows of the MMA, rows of x on its columns.

    A block computes ``tile_n`` rows of the weight by ``tile_m`` rows of x, ``tile_k`` deep a stage, ``stages`` in
    flight; its ``warps`` lie along tile_n. ``split``: blocks of a cluster that share the contraction (1: none).
    ``dependent``: a programmatic dependent launch. ``walk``: so many blocks a multiprocessor keep their part of x in
    shared memory and walk over the tiles of the weight (0: a block a tile, which reads both operands).
    """

    tile_m: int = 8
    tile_n: int = 64
    tile_k: int = 64
    stages: int = 4
    warps: int = 4
    split: int = 1
    dependent: bool = False
    walk: int = 0


Parameters = ElementwiseParameters | RowParameters | GemvParameters | GemmParameters | TensorGemmParameters
