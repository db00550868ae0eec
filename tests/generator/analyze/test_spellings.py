"""The same mathematics in other words is the same pattern, and what only looks like it is skipped for what differs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as fn

from generator.analyze import Analysis, analyze
from generator.analyze.analyzer import own_contracts
from generator.capture import capture

CONTRACTS = own_contracts()
WIDTH, HEADS, HEAD = 64, 4, 16
Rotate = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class Variants(nn.Module):
    """Variants of one module side by side, captured in one call: each finds its patterns under its own path."""

    def __init__(self, **variants: nn.Module) -> None:
        super().__init__()
        self.variants = nn.ModuleDict(variants)

    def forward(self, *args: torch.Tensor) -> list[object]:
        return [variant(*args) for variant in self.variants.values()]


def analysis(module: nn.Module, *args: torch.Tensor) -> Analysis:
    captured = capture(module, args)
    assert captured.is_whole, captured.problems
    return analyze(captured.graph, CONTRACTS)


def only(found: Analysis, variant: str, contract: str) -> dict[str, int]:
    """The dims of the only match of a contract in a variant, where it is skipped nowhere."""
    result = found.pattern(contract)
    (match,) = (match for match in result.found if inside(match.module, variant))
    assert not any(inside(skip.module, variant) for skip in result.skipped)
    return dict(match.dims)


def reason(found: Analysis, variant: str, contract: str) -> str:
    """Why a contract is skipped in a variant, where it is found nowhere."""
    result = found.pattern(contract)
    assert not any(inside(match.module, variant) for match in result.found)
    (skip,) = (skip for skip in result.skipped if inside(skip.module, variant))
    return skip.reason


def inside(module: str, variant: str) -> bool:
    return f"{module}.".startswith(f"variants.{variant}.")


def halves(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, dim=-1)
    cos, sin = cos[..., : HEAD // 2], sin[..., : HEAD // 2]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def neighbours(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    a, b = x[..., 0::2], x[..., 1::2]
    cos, sin = cos[..., : HEAD // 2], sin[..., : HEAD // 2]
    return torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2)


def rotated_sum(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    turned = torch.cat((-x[..., HEAD // 2 :], x[..., : HEAD // 2]), dim=-1)
    return turned * sin + cos * x


def backwards(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    turned = torch.cat((x[..., HEAD // 2 :], -x[..., : HEAD // 2]), dim=-1)
    return x * cos + turned * sin


class Decoder(nn.Module):
    """One joint projection by ``@``, attention spelled out over a cache, and an RMSNorm by division."""

    def __init__(self, rotate: Rotate, *, late_norm: bool = False) -> None:
        super().__init__()
        self.qkv = nn.Parameter(torch.randn(3 * WIDTH, WIDTH))
        self.o = nn.Parameter(torch.randn(WIDTH, WIDTH))
        self.gamma = nn.Parameter(torch.ones(WIDTH))
        self.head_gamma = nn.Parameter(torch.ones(HEAD))
        self.rotate, self.late_norm = rotate, late_norm

    def forward(
        self, x: torch.Tensor, angles: torch.Tensor, past_k: torch.Tensor, past_v: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        tokens = x.shape[0]
        q, k, v = (x @ self.qkv.t()).view(tokens, 1, 3 * HEADS, HEAD).transpose(1, 2).split(HEADS, dim=1)
        cos, sin = angles.cos()[:, None, None], angles.sin()[:, None, None]
        q, k = self.rotate(q, cos, sin), self.rotate(k, cos, sin)
        if self.late_norm:
            q, k = self.normed(q, self.head_gamma), self.normed(k, self.head_gamma)
        k, v = torch.cat((past_k, k), dim=2), torch.cat((past_v, v), dim=2)
        scores = (q @ k.transpose(-1, -2)) / 4.0
        scores = (scores - scores.amax(-1, keepdim=True)).exp()
        out = (scores / scores.sum(-1, keepdim=True)) @ v
        total = x + out.transpose(1, 2).reshape(tokens, WIDTH) @ self.o.t()
        return self.normed(total, self.gamma), total, k, v

    def normed(self, x: torch.Tensor, gamma: torch.Tensor) -> torch.Tensor:
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-5) * gamma


@pytest.fixture(scope="module")
def decoders() -> Analysis:
    cache = torch.randn(2, HEADS, 5, HEAD)
    variants = {"halves": halves, "neighbours": neighbours, "sum": rotated_sum, "backwards": backwards}
    modules = {name: Decoder(rotate) for name, rotate in variants.items()}
    modules["late_norm"] = Decoder(halves, late_norm=True)
    return analysis(Variants(**modules), torch.randn(2, WIDTH), torch.randn(2, HEAD), cache, cache)


@pytest.mark.parametrize(("variant", "interleaved"), [("halves", 0), ("neighbours", 1), ("sum", 0)])
def test_rotations_are_found_in_every_spelling_of_a_hand_written_decoder(
    decoders: Analysis, variant: str, interleaved: int
):
    prelude = only(decoders, variant, "attention_prelude")
    assert prelude["rope_interleaved"] == interleaved
    heads = ("num_tokens", "num_heads", "num_kv_heads", "head_dim", "rotary_dim")
    assert tuple(prelude[name] for name in heads) == (2, HEADS, HEADS, HEAD, HEAD)
    assert only(decoders, variant, "rope")["num_heads"] == HEADS
    assert only(decoders, variant, "paged_decode_attention")["sliding_window"] == 0
    assert only(decoders, variant, "kv_append")["num_kv_heads"] == HEADS
    expected = {"num_tokens": 2, "hidden_size": WIDTH, "in_features": WIDTH}
    assert only(decoders, variant, "o_proj_residual_rmsnorm") == expected
    assert only(decoders, variant, "residual_rmsnorm")["has_residual"] == 1


def test_a_rotation_the_other_way_round_is_none(decoders: Analysis):
    assert reason(decoders, "backwards", "rope") == "queries and keys are not rotated by position"


def test_norms_after_the_rotation_are_not_the_preludes(decoders: Analysis):
    says = "norm-before-rotation: heads are normalised after they are rotated"
    assert reason(decoders, "late_norm", "attention_prelude") == says


class FixedCache(nn.Module):
    """A decode step over a cache of fixed size in buffers, at a position that is an argument; the last four count."""

    def __init__(self, window: int) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros(1, HEADS, 8, HEAD))
        self.register_buffer("values", torch.zeros(1, HEADS, 8, HEAD))
        self.window = window

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        self.keys.index_copy_(2, position, k * 2)
        self.values.index_copy_(2, position, v * 2)
        place = torch.arange(8)
        visible = (place <= position[:, None]) & (place > position[:, None] - self.window)
        return fn.scaled_dot_product_attention(q * 2, self.keys, self.values, attn_mask=visible)


def test_a_cache_of_fixed_size_is_appended_to_and_read_up_to_the_position():
    row = torch.randn(1, HEADS, 1, HEAD)
    found = analysis(Variants(all=FixedCache(8), four=FixedCache(4)), row, row, row, torch.tensor([5]))
    assert only(found, "all", "kv_append") | {"block_size": 0} == {
        "num_tokens": 1,
        "num_kv_heads": HEADS,
        "head_dim": HEAD,
        "block_size": 0,
    }
    assert only(found, "all", "paged_decode_attention")["sliding_window"] == 0
    assert only(found, "four", "paged_decode_attention")["sliding_window"] == 4


class Gated(nn.Module):
    """A gated MLP that can be made wrong in one way at a time."""

    def __init__(self, wrong: str = "") -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, 96, bias=wrong == "gate bias")
        self.up = nn.Linear(WIDTH, 96, bias=False)
        self.down = nn.Linear(96, WIDTH, bias=wrong == "down bias")
        self.wrong = wrong

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        gate, up = self.gate(x), self.up(-x if self.wrong == "two inputs" else x)
        active = fn.gelu(gate) if self.wrong == "gelu" else gate * torch.sigmoid(gate)
        y = self.down(active * up)
        extra = (y,) if self.wrong == "returned" else (up,) if self.wrong == "read twice" else ()
        return (x + y, *extra)


@pytest.fixture(scope="module")
def gated() -> Analysis:
    ways = ("right", "gate bias", "down bias", "two inputs", "gelu", "returned", "read twice")
    return analysis(Variants(**{way.replace(" ", "_"): Gated(way) for way in ways}), torch.randn(3, WIDTH))


def test_a_gate_by_sigmoid_is_silu(gated: Analysis):
    expected = {"num_tokens": 3, "hidden_size": WIDTH, "intermediate_size": 96}
    assert only(gated, "right", "gated_mlp_up") == expected
    assert only(gated, "right", "gated_mlp_down") == expected


@pytest.mark.parametrize(
    ("variant", "contract", "says"),
    [
        ("gate_bias", "gated_mlp_up", "no-bias: a projection has a bias"),
        ("down_bias", "gated_mlp_down", "no-bias: the projection has a bias"),
        ("two_inputs", "gated_mlp_up", "same-input: the projections read different rows"),
        ("gelu", "gated_mlp_up", "the activation is gelu, not SiLU"),
        ("returned", "gated_mlp_down", "single-user: the projection is returned to the caller"),
        ("read_twice", "gated_mlp_up", "same-input: a projection is also read by the caller"),
    ],
)
def test_what_differs_is_the_reason(gated: Analysis, variant: str, contract: str, says: str):
    assert reason(gated, variant, contract) == says


class Head(nn.Module):
    def __init__(self, wrong: str = "") -> None:
        super().__init__()
        self.head = nn.Linear(60 if wrong == "narrow" else WIDTH, 40, bias=False)
        self.wrong = wrong

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        scores = self.head(x[:, :60] if self.wrong == "narrow" else x)
        if self.wrong == "capped":
            scores = 30 * torch.tanh(scores / 30)
        return (scores.float().argmax(-1), *((scores,) if self.wrong == "returned" else ()))


@pytest.fixture(scope="module")
def heads() -> Analysis:
    return analysis(Variants(**{way: Head(way) for way in ("capped", "returned", "narrow")}), torch.randn(2, WIDTH))


@pytest.mark.parametrize(
    ("variant", "says"),
    [
        ("capped", "greedy: the scores come from aten.mul.Tensor, not straight from a projection"),
        ("returned", "greedy: the scores are also read by the caller"),
        ("narrow", "vector-width: hidden_size % 8 == 0 does not hold for hidden_size = 60"),
    ],
)
def test_a_head_whose_scores_are_changed_kept_or_unaligned_is_skipped(heads: Analysis, variant: str, says: str):
    assert reason(heads, variant, "lm_head_argmax") == says


class Encoder(nn.Module):
    """Bidirectional attention without a mask, with one given by the caller, or causal."""

    def __init__(self, masked: str = "") -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.masked = masked

    def forward(self, x: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        batch, length = x.shape[:2]
        q, k, v = self.qkv(x).view(batch, length, 3, HEADS, HEAD).permute(2, 0, 3, 1, 4).unbind(0)
        mask = padding[:, None, None, :] if self.masked == "given" else None
        return fn.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=self.masked == "causal")


@pytest.fixture(scope="module")
def encoders() -> Analysis:
    modules = {way: Encoder(way) for way in ("given", "causal")}
    args = torch.randn(2, 8, WIDTH), torch.ones(2, 8, dtype=torch.bool)
    return analysis(Variants(free=Encoder(), **modules), *args)


def test_a_joint_projection_of_an_encoder_is_found(encoders: Analysis):
    assert only(encoders, "free", "encoder_qkv")["num_tokens"] == 16
    expected = {"batch_size": 2, "seq_len": 8, "num_heads": HEADS, "head_dim": HEAD}
    assert only(encoders, "free", "encoder_attention") == expected


def test_a_mask_that_is_given_or_causal_is_the_reason(encoders: Analysis):
    says = "bidirectional: padding may be anywhere, it depends on the argument args_1"
    assert reason(encoders, "given", "encoder_attention") == says
    assert reason(encoders, "causal", "encoder_attention") == "bidirectional: the mask is causal"
