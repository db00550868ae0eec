"""Contents of the tensors of a contract that is stated by a program: the program says what each tensor holds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch

from runtime.programs import Content, Input
from validator.inputs.distributions import draw, normal

# Added to absolute values, so that a root or a logarithm of them says something.
_AWAY_FROM_ZERO = 2.0**-6


def draw_content(
    given: Input,
    shape: Sequence[int],
    dtype: torch.dtype,
    distribution: str,
    dims: Mapping[str, int],
    gen: torch.Generator,
) -> torch.Tensor:
    """A tensor of ``shape`` with contents of the kind the program states. Raises ValueError as draw does."""
    match given.content:
        case Content.WEIGHT:
            return normal(shape, dtype, gen, std=1 / math.sqrt(shape[-1]))
        case Content.GAMMA:
            return normal(shape, dtype, gen, std=0.1, mean=1.0)
        case Content.BIAS:
            return normal(shape, dtype, gen, std=0.1)
        case Content.POSITIVE:
            return draw(distribution, shape, dtype, gen).abs() + _AWAY_FROM_ZERO
        case Content.INDEX:
            upper = given.upper.evaluate_int(dims)
            return torch.randint(upper, tuple(shape), generator=gen, device=gen.device).to(dtype)
        case Content.FLAG:
            return torch.randint(2, tuple(shape), generator=gen, device=gen.device).to(dtype)
        case Content.ACTIVATION:
            return draw(distribution, shape, dtype, gen)
