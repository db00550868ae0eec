"""Random values by distribution. Everything is drawn in float32 and stored in the storage type."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence

import torch

TINY = 1e-3
OUTLIER_FACTOR = 100.0
OUTLIER_SHARE = 0.005

# On a CPU, tensors beyond this many elements repeat a block of random values of prime length: rows still differ
# (no row length shares a factor with it) and a gigabyte of weights takes a second instead of ten.
_LARGE = 1 << 24
_PRIME = 4_194_301


def generator(device: torch.device | str, seed: int, name: str) -> torch.Generator:
    """A generator for the tensor ``name``: every tensor has a stream of its own, so adding one moves no other."""
    mixed = (seed * 0x9E3779B97F4A7C15 + zlib.crc32(name.encode())) % (1 << 63)
    return torch.Generator(device=device).manual_seed(mixed)


def normal(
    shape: Sequence[int], storage: torch.dtype, gen: torch.Generator, std: float = 1.0, mean: float = 0.0
) -> torch.Tensor:
    """Normal values with ``mean`` and ``std``."""
    count = math.prod(shape)
    if gen.device.type == "cpu" and count > _LARGE:
        block = torch.randn(_PRIME, generator=gen).mul_(std).add_(mean).to(storage)
        out = torch.empty(count, dtype=storage)
        for part in torch.split(out, _PRIME):
            part.copy_(block[: len(part)])
        return out.view(*shape)
    return torch.randn(*shape, generator=gen, device=gen.device).mul_(std).add_(mean).to(storage)


def draw(
    distribution: str, shape: Sequence[int], storage: torch.dtype, gen: torch.Generator, *, large: float = 1000.0
) -> torch.Tensor:
    """Values of one distribution; a row is the last dim. ``large``: the factor of the distribution of that name.

    Raises ValueError for an unknown distribution.
    """
    if distribution == "normal":
        return normal(shape, storage, gen)
    if distribution == "zeros":
        return torch.zeros(*shape, dtype=storage, device=gen.device)
    if distribution == "tiny":
        return normal(shape, storage, gen, std=TINY)
    if distribution == "large":
        return normal(shape, storage, gen, std=large)
    try:
        return _SHAPED[distribution](shape, gen).to(storage)
    except KeyError:
        raise ValueError(f"no distribution is called '{distribution}'") from None


def _uniform(shape: Sequence[int], gen: torch.Generator) -> torch.Tensor:
    return torch.rand(*shape, generator=gen, device=gen.device).mul_(2).sub_(1)


def _outliers(shape: Sequence[int], gen: torch.Generator) -> torch.Tensor:
    """Normal values, a few of them (at least one) a hundred times larger."""
    values = torch.randn(*shape, generator=gen, device=gen.device)
    flat = values.view(-1)
    chosen = torch.rand(flat.numel(), generator=gen, device=gen.device) < OUTLIER_SHARE
    chosen[torch.randint(flat.numel(), (1,), generator=gen, device=gen.device)] = True
    flat[chosen] *= OUTLIER_FACTOR
    return values


def _one_hot(shape: Sequence[int], gen: torch.Generator) -> torch.Tensor:
    """One normal value a row, zeros beside it."""
    values = torch.zeros(*shape, device=gen.device)
    where = torch.randint(shape[-1], (*shape[:-1], 1), generator=gen, device=gen.device)
    return values.scatter_(-1, where, torch.randn(*where.shape, generator=gen, device=gen.device))


def _neg_inf(shape: Sequence[int], gen: torch.Generator) -> torch.Tensor:
    """Normal values, a hundredth of them minus infinity."""
    values = torch.randn(*shape, generator=gen, device=gen.device)
    values[torch.rand(*shape, generator=gen, device=gen.device) < 0.01] = -math.inf
    return values


def _constant(shape: Sequence[int], gen: torch.Generator) -> torch.Tensor:
    """Every row holds one value. Signed powers of two: a float32 sum of them is exact, so the variance is truly 0."""
    exponent = torch.randint(-2, 3, (*shape[:-1], 1), generator=gen, device=gen.device)
    sign = torch.randint(2, exponent.shape, generator=gen, device=gen.device) * 2 - 1
    return (sign * torch.exp2(exponent.float())).expand(*shape).contiguous()


def _ramp(shape: Sequence[int], gen: torch.Generator) -> torch.Tensor:
    """Every row climbs from -1 to 1, scaled by a factor of its own between 1 and 2."""
    factor = 1 + torch.rand(*shape[:-1], 1, generator=gen, device=gen.device)
    return torch.linspace(-1, 1, shape[-1], device=gen.device) * factor


_SHAPED: dict[str, Callable[[Sequence[int], torch.Generator], torch.Tensor]] = {
    "uniform": _uniform,
    "outliers": _outliers,
    "one_hot": _one_hot,
    "neg_inf": _neg_inf,
    "constant": _constant,
    "ramp": _ramp,
}
