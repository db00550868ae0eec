"""When two runs of a model may disagree on a greedy token.

Two correct runs in a narrow type differ in the order of their sums and in where they round. Across batch sizes,
kernels and devices their tokens therefore agree only where the model is decided: the rule compares a token with the
reference's logits at the same position and the same earlier tokens, and accepts it when its logit is within a few
roundings of the best one. In float32 that margin is so small that tokens are simply equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

# Roundings of the largest logit. A logit is a sum over a residual stream that was rounded several times a layer;
# the errors are independent, so they grow with the root of their number: 8 covers 64 of them.
TIE_ROUNDINGS = 8.0


@dataclass(frozen=True, slots=True)
class Disagreement:
    """A token no tie explains: the reference prefers ``expected`` by ``gap``, more than ``margin``."""

    position: int
    token: int
    expected: int
    gap: float
    margin: float


def tie_margin(logits: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """How far below the best a logit may be, for every row of float32 ``logits`` of a model stored as ``dtype``."""
    return TIE_ROUNDINGS * torch.finfo(dtype).eps * logits.abs().amax(dim=-1)


def disagreements(logits: torch.Tensor, tokens: Sequence[int], dtype: torch.dtype) -> list[Disagreement]:
    """Tokens that differ from the reference by more than a tie.

    ``logits``: ``[len(tokens), vocab_size]`` float32, the reference's at every position after the same earlier tokens.
    """
    chosen = logits.gather(1, torch.tensor(tokens, device=logits.device)[:, None])[:, 0]
    best, expected = logits.max(dim=-1)
    margins = tie_margin(logits, dtype)
    beyond = (best - chosen > margins).nonzero()[:, 0].tolist()
    return [Disagreement(i, tokens[i], int(expected[i]), float(best[i] - chosen[i]), float(margins[i])) for i in beyond]
