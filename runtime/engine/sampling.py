"""Choosing tokens from logits, for a whole batch, on the device and without waiting for it.

Every row has its own parameters, given as tensors, so one function (and one graph) serves any mix of requests.
Randomness is a pure function of (seed, position, token id): what else is in the batch, how a prompt was split into
chunks, and preemption change nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from runtime.engine.request import SamplingParams


@dataclass(frozen=True, slots=True)
class Needs:
    """What any request of a step needs of sampling at all, so that a step pays only for that; the choice of graph.

    ``num_logprobs``: -1 when none are wanted, else the most any request wants.
    """

    draws: bool = False  # some row has a temperature
    filters: bool = False  # some row has top_k, top_p or min_p
    penalises: bool = False  # some row has a penalty
    num_logprobs: int = -1

    @classmethod
    def of(cls, params: Sequence[SamplingParams]) -> Needs:
        """What a step of these requests needs."""
        return cls(
            draws=any(p.temperature > 0 for p in params),
            filters=any(p.temperature > 0 and (p.top_k or p.top_p < 1 or p.min_p > 0) for p in params),
            penalises=any(p.penalised for p in params),
            num_logprobs=max((-1 if p.logprobs is None else p.logprobs for p in params), default=-1),
        )


@dataclass(frozen=True, slots=True)
class SamplingRows:
    """Parameters of every row, each ``[rows]`` on the device. Written by a ``SamplingTable``."""

    temperature: torch.Tensor  # float32; 0 is greedy
    top_k: torch.Tensor  # int32; vocab_size for all
    top_p: torch.Tensor  # float32
    min_p: torch.Tensor  # float32
    repetition: torch.Tensor  # float32
    presence: torch.Tensor  # float32
    frequency: torch.Tensor  # float32
    seed: torch.Tensor  # int32, 31 bits
    position: torch.Tensor  # int32, index of the token being chosen
    needs: Needs


@dataclass(frozen=True, slots=True)
class Sampled:
    """``ids`` int64 ``[rows]``; the rest None unless log-probabilities were asked for.

    ``logprob`` float32 ``[rows]`` of the chosen token; ``top_ids`` and ``top_logprobs`` ``[rows, num_logprobs]``.
    """

    ids: torch.Tensor
    logprob: torch.Tensor | None = None
    top_ids: torch.Tensor | None = None
    top_logprobs: torch.Tensor | None = None

    def first(self, count: int) -> Sampled:
        """The leading ``count`` rows."""
        parts = (self.logprob, self.top_ids, self.top_logprobs)
        return Sampled(self.ids[:count], *(None if part is None else part[:count] for part in parts))


class PenaltyTable:
    """Which tokens each request slot has seen: ``prompt`` bool and ``output`` int32, ``[max_batch + 1, vocab_size]``.

    The last row belongs to padding. Allocated when the first penalised request arrives.
    """

    def __init__(self, max_batch: int, vocab_size: int, device: torch.device) -> None:
        self.prompt = torch.zeros(max_batch + 1, vocab_size, dtype=torch.bool, device=device)
        self.output = torch.zeros(max_batch + 1, vocab_size, dtype=torch.int32, device=device)

    def start(self, slot: int, prompt: Sequence[int], output: Sequence[int]) -> None:
        """Give ``slot`` to a request with these tokens."""
        device = self.output.device
        self.prompt[slot] = False
        self.prompt[slot, torch.tensor(prompt, dtype=torch.int64, device=device)] = True
        produced = torch.tensor(output, dtype=torch.int64, device=device)
        self.output[slot] = 0
        self.output[slot].index_add_(0, produced, torch.ones_like(produced, dtype=torch.int32))

    def count(self, slots: torch.Tensor, ids: torch.Tensor) -> None:
        """Note one produced token for each of ``slots``."""
        at = slots.long() * self.output.shape[1] + ids.long()
        self.output.view(-1).scatter_add_(0, at, torch.ones_like(at, dtype=torch.int32))


def penalised(logits: torch.Tensor, rows: SamplingRows, prompt: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
    """Logits ``[rows, vocab_size]`` after the three penalties, given the rows of a ``PenaltyTable``."""
    repetition = rows.repetition[:, None]
    seen = prompt | (output > 0)
    scaled = torch.where(logits > 0, logits / repetition, logits * repetition)
    logits = torch.where(seen, scaled, logits)
    return logits - rows.presence[:, None] * (output > 0) - rows.frequency[:, None] * output


def sample(logits: torch.Tensor, rows: SamplingRows, table: PenaltyTable | None, slots: torch.Tensor) -> Sampled:
    """One token for every row of float32 ``logits`` ``[rows, vocab_size]``; ``slots`` are rows of ``table``.

    Order: penalties, temperature, top_k, top_p over what is left, min_p relative to the most probable. Reported
    log-probabilities are those of the raw logits.
    """
    chosen_from = logits
    if rows.needs.penalises:
        assert table is not None, "a penalised row needs the penalty table"
        chosen_from = penalised(logits, rows, table.prompt[slots], table.output[slots])
    ids = chosen_from.argmax(dim=-1)
    if rows.needs.draws:
        ids = torch.where(rows.temperature > 0, _draw(chosen_from, rows), ids)
    if rows.needs.num_logprobs < 0:
        return Sampled(ids)
    logprobs = logits.log_softmax(dim=-1)
    top = logprobs.topk(min(rows.needs.num_logprobs, logits.shape[-1]), dim=-1)
    return Sampled(ids, logprobs.gather(1, ids[:, None])[:, 0], top.indices, top.values)


def _draw(logits: torch.Tensor, rows: SamplingRows) -> torch.Tensor:
    """A token drawn from every row's tempered and filtered distribution, by the Gumbel-max trick."""
    tempered = logits / rows.temperature.clamp(min=1e-5)[:, None]
    if not rows.needs.filters:
        token = torch.arange(logits.shape[1], device=logits.device).expand_as(logits)
        return (tempered + _gumbel(rows, token)).argmax(dim=-1)
    values, token = tempered.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(logits.shape[1], device=logits.device)[None, :]
    values = values.masked_fill(rank >= rows.top_k[:, None], float("-inf"))
    probs = values.softmax(dim=-1)
    before = probs.cumsum(dim=-1) - probs  # mass of the more probable tokens; the first is always kept
    dropped = ((before >= rows.top_p[:, None]) & (rank > 0)) | (probs < rows.min_p[:, None] * probs[:, :1])
    values = values.masked_fill(dropped, float("-inf"))
    best = (values + _gumbel(rows, token)).argmax(dim=-1, keepdim=True)
    return token.gather(1, best)[:, 0]


def _gumbel(rows: SamplingRows, token: torch.Tensor) -> torch.Tensor:
    """Gumbel noise ``[rows, vocab_size]`` that depends on seed, position and token id alone."""
    key = _mix(_mix(rows.seed.long()) ^ rows.position)[:, None]
    bits = _mix(_mix(token) ^ key)
    uniform = (bits.to(torch.float64) + 0.5) * 2.0**-32  # in (0, 1), so both logarithms are finite
    return -(-uniform.log()).log().to(torch.float32)


def _mix(x: torch.Tensor) -> torch.Tensor:
    """A 32-bit integer hash on int64 values (H. Wellons' two-round xorshift-multiply).

    Both multipliers are below 2**31, so products of 32-bit values stay inside int64.
    """
    x = (x + 0x9E3779B9) & 0xFFFFFFFF  # else zero would stay zero
    x = (x ^ (x >> 16)) * 0x21F0AAAD & 0xFFFFFFFF
    x = (x ^ (x >> 15)) * 0x735A2D97 & 0xFFFFFFFF
    return x ^ (x >> 15)
