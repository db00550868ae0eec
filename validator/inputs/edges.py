"""Inputs for the edge cases a contract names, built so that the right answer leaves no room for argument.

Where a case is about cancellation or ties, every product and sum is exact in any order (small integers times powers of
two), so that a difference is a mistake and not rounding.

Some cases need no mention in a contract, because they follow from its rounding points. What a binding round makes of a
number beyond the storage type's range is infinity, as IEEE 754 and every library have it: a kernel that puts the
largest finite number there hides from the caller that the model has overflowed. A norm over such a row gives what its
formula gives (the root is zero): NaN where the row is infinite, zero elsewhere. Only float16 has so short a range.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch

from kb.contract import Contract
from kb.dtype import DType
from validator.inputs.call_inputs import CallInputs
from validator.inputs.distributions import generator
from validator.inputs.make import fill, make_inputs, structural

OVERFLOW = "a result beyond float16's range is infinite"


@dataclass(frozen=True, slots=True)
class _Case:
    """What an edge case starts from: ordinary inputs, and a generator on the same device."""

    contract: Contract
    dims: Mapping[str, int]
    storage: DType
    seed: int
    device: torch.device | str
    gen: torch.Generator

    def usual(self, distribution: str = "normal") -> CallInputs:
        return make_inputs(self.contract, self.dims, self.storage, distribution, self.seed, self.device)

    def with_lengths(self, lengths: list[int], *, stale: bool = True) -> CallInputs:
        indices = structural(self.contract, self.dims, self.seed, torch.tensor(lengths, dtype=torch.int32))
        return fill(self.contract, self.dims, self.storage, "normal", self.seed, self.device, indices, stale=stale)

    def random(self, like: torch.Tensor, low: int, high: int) -> torch.Tensor:
        """Integers low..high-1 of ``like``'s shape, float32."""
        return torch.randint(low, high, like.shape, generator=self.gen, device=like.device).float()

    def positive(self, like: torch.Tensor) -> torch.Tensor:
        """Values between 0.5 and 1.5 of ``like``'s shape and type."""
        return (torch.rand(like.shape, generator=self.gen, device=like.device) + 0.5).to(like.dtype)


def edge_inputs(
    contract: Contract, dims: Mapping[str, int], storage: DType, seed: int, device: torch.device | str = "cpu"
) -> Iterator[tuple[str, CallInputs]]:
    """(edge case, inputs) for every edge case the contract names and these dims can show.

    Raises ValueError for an edge case nobody has built inputs for.
    """
    contract.check_dims(dims)
    for name in contract.numerics.edge_cases:
        build = _BUILDERS.get((contract.id, name))
        if build is None:
            raise ValueError(f"{contract.id}: no inputs are built for the edge case '{name}'; add them to edges.py")
        inputs = build(_Case(contract, dims, storage, seed, device, generator(device, seed, name)))
        if inputs is not None:
            yield name, inputs
    if (overflow := _OVERFLOWS.get(contract.id)) is not None and storage is DType.FLOAT16:
        inputs = overflow(_Case(contract, dims, storage, seed, device, generator(device, seed, OVERFLOW)))
        if inputs is not None:
            yield OVERFLOW, inputs


def _tensor(inputs: CallInputs, name: str) -> torch.Tensor:
    tensor = inputs.tensors[name]
    assert tensor is not None
    return tensor


# --- norms and rotation ----------------------------------------------------------------------------------------------


def _zero_row(case: _Case) -> CallInputs:
    inputs = case.usual()
    _tensor(inputs, "x")[0] = 0
    if case.dims["has_residual"]:
        _tensor(inputs, "residual")[0] = 0
    return inputs


def _sum_cancels(case: _Case) -> CallInputs | None:
    if not case.dims["has_residual"]:
        return None
    inputs = case.usual()
    residual, x = _tensor(inputs, "residual"), _tensor(inputs, "x")
    residual[:, ::2] = -x[:, ::2]
    residual[0] = -x[0]
    return inputs


def _positions(value: Callable[[_Case], int]) -> Callable[[_Case], CallInputs]:
    def build(case: _Case) -> CallInputs:
        inputs = case.usual()
        positions = _tensor(inputs, "positions")
        return inputs.with_tensors({"positions": torch.full_like(positions, value(case))})

    return build


def _first(_case: _Case) -> int:
    return 0


def _last(case: _Case) -> int:
    return case.dims["max_positions"] - 1


def _small_heads(case: _Case) -> CallInputs | None:
    """Heads of mean square 1e-8: with eps = 1e-6 the root is nearly that of eps."""
    if not case.dims["has_qk_norm"]:
        return None
    inputs = case.usual()
    tensors: dict[str, torch.Tensor | None] = {"x": _tensor(inputs, "x") * 1e-4}
    if case.dims["has_qkv_bias"]:
        tensors["b_qkv"] = torch.zeros_like(_tensor(inputs, "b_qkv"))
    return inputs.with_tensors(tensors)


# --- caches ----------------------------------------------------------------------------------------------------------


def _descending_slots(case: _Case) -> CallInputs:
    inputs = case.usual()
    return inputs.with_tensors({"slot_mapping": _tensor(inputs, "slot_mapping").sort(descending=True).values})


def _outer_slots(case: _Case) -> CallInputs:
    inputs = case.usual()
    last = case.dims["num_blocks"] * case.dims["block_size"] - 1
    between = torch.randperm(max(last - 1, 0), generator=generator("cpu", case.seed, "between")) + 1
    slots = torch.cat((torch.tensor([last, 0]), between))[: case.dims["num_tokens"]]
    mapping = _tensor(inputs, "slot_mapping")
    return inputs.with_tensors({"slot_mapping": slots.to(mapping)})


# --- projections -----------------------------------------------------------------------------------------------------


def _projection_cancels(x_name: str, w_name: str) -> Callable[[_Case], CallInputs]:
    """Sixteen ones a row against weights of eighths: the projection is exact, and so is its cancellation."""

    def build(case: _Case) -> CallInputs:
        inputs = case.usual()
        x, w, residual = (_tensor(inputs, n) for n in (x_name, w_name, "residual"))
        sparse = torch.zeros_like(x)
        order = torch.rand(x.shape, generator=case.gen, device=x.device).argsort(dim=1)[:, :16]
        sparse.scatter_(1, order, 1.0)
        eighths = case.random(w, -1, 2) / 8
        y = sparse.float() @ eighths.t()
        left = case.random(residual, -2, 3) / 4
        left[:, ::2] = 0
        tensors = {x_name: sparse, w_name: eighths.to(w.dtype), "residual": (left - y).to(residual.dtype)}
        return inputs.with_tensors(tensors)

    return build


def _one_large_term(case: _Case) -> CallInputs:
    """A first term of 64 (8 times 8) and thousands of small ones: a narrow accumulator loses them one by one."""
    inputs = case.usual()
    x, w = _tensor(inputs, "x"), _tensor(inputs, "w_down")
    x, w = case.positive(x), case.positive(w) / x.shape[1]
    x[:, 0] = 8
    w[:, 0] = 8
    return inputs.with_tensors({"x": x, "w_down": w})


def _gate(value: float) -> Callable[[_Case], CallInputs]:
    """Gates around ``value``, from half to one and a half times as far from zero."""

    def build(case: _Case) -> CallInputs:
        inputs = case.usual()
        x, w = _tensor(inputs, "x"), _tensor(inputs, "w_gate_up").clone()
        x = case.positive(x)
        gates = w[: case.dims["intermediate_size"]]
        gates.copy_(case.positive(gates) * (value / x.shape[1]))
        return inputs.with_tensors({"x": x, "w_gate_up": w})

    return build


# --- overflow --------------------------------------------------------------------------------------------------------


def _sum_overflows(case: _Case) -> CallInputs | None:
    """Two finite numbers whose sum is not, of either sign, in the first row; the rows after it are ordinary."""
    if not case.dims["has_residual"]:
        return None
    inputs = case.usual()
    signs = case.random(_tensor(inputs, "x")[0, ::5], 0, 2) * 2 - 1
    for name in ("x", "residual"):
        _tensor(inputs, name)[0, ::5] = (40_000 * signs).half()
    return inputs


def _projection_overflows(x_name: str, w_name: str, residual_name: str) -> Callable[[_Case], CallInputs]:
    """The projection is near 2^15 in every fifth column of the first row, the residual there 40,000 with its sign."""

    def build(case: _Case) -> CallInputs:
        inputs = case.usual()
        x, w, residual = (_tensor(inputs, n) for n in (x_name, w_name, residual_name))
        signs = case.random(residual[0, ::5], 0, 2) * 2 - 1
        x[:, 0] = 0
        x[0, 0] = 128
        w[::5, 0] = (256 * signs).half()
        residual[0, ::5] = (40_000 * signs).half()
        return inputs

    return build


def _product_overflows(case: _Case) -> CallInputs:
    """Gates near 300 beside projections near 600, of either sign, in every fifth column of the first row."""
    inputs = case.usual()
    x, w = _tensor(inputs, "x"), _tensor(inputs, "w_gate_up")
    gates, ups = w.chunk(2)
    x[:, 0] = 0
    x[0, 0] = 16
    gates[::5, 0] = 300 / 16
    ups[::5, 0] = ((case.random(ups[::5, 0], 0, 2) * 2 - 1) * 600 / 16).half()
    return inputs


def _residual_overflows(case: _Case) -> CallInputs | None:
    """A bias of 40,000 meets residuals of its sign; the norm in front keeps them out of the projections."""
    if not case.dims["has_pre_norm"]:
        return None
    inputs = case.usual()
    x, bias = _tensor(inputs, "x"), _tensor(inputs, "b_down")
    bias[::5] = (40_000 * (case.random(bias[::5], 0, 2) * 2 - 1)).half()
    x[0, ::5] = bias[::5]
    return inputs


_OVERFLOWS: dict[str, Callable[[_Case], CallInputs | None]] = {
    "residual_rmsnorm": _sum_overflows,
    "gated_mlp_up": _product_overflows,
    "gated_mlp_down": _projection_overflows("x", "w_down", "residual"),
    "o_proj_residual_rmsnorm": _projection_overflows("attn", "w_o", "residual"),
    "encoder_mlp": _residual_overflows,
}


# --- vocabulary ------------------------------------------------------------------------------------------------------


def _exact_rows(case: _Case, tied: Callable[[int], list[int]]) -> CallInputs:
    """Rows of plus and minus ones; the vocabulary rows ``tied`` equal their signs and share the largest logit."""
    inputs = case.usual()
    x, w = _tensor(inputs, "x"), _tensor(inputs, "w")
    signs = case.random(x[0], 0, 2) * 2 - 1
    factors = torch.exp2(torch.arange(x.shape[0], device=x.device) % 3).float()
    rows = case.random(w, -1, 2)
    rows[:, 0] = 0  # no random row can equal the tied ones
    rows[tied(w.shape[0])] = signs
    return inputs.with_tensors({"x": (factors[:, None] * signs).to(x.dtype), "w": rows.to(w.dtype)})


def _all_equal(case: _Case) -> CallInputs:
    return _exact_rows(case, lambda vocab: list(range(vocab)))


def _last_row(case: _Case) -> CallInputs:
    return _exact_rows(case, lambda vocab: [vocab - 1])


def _far_ties(case: _Case) -> CallInputs:
    return _exact_rows(case, lambda vocab: [vocab // 7, vocab // 2, vocab - 1])


def _all_negative(case: _Case) -> CallInputs:
    inputs = case.usual()
    x, w = _tensor(inputs, "x"), _tensor(inputs, "w")
    return inputs.with_tensors({"x": case.positive(x), "w": -case.positive(w) / x.shape[1] ** 0.5})


# --- attention -------------------------------------------------------------------------------------------------------


def _one_token(case: _Case) -> CallInputs:
    count, longest = _sequences(case)
    return case.with_lengths([1] + [longest] * (count - 1))


def _full_blocks(case: _Case) -> CallInputs | None:
    size, longest = case.dims["block_size"], case.dims["context_len"]
    if longest < size:
        return None
    return case.with_lengths([longest // size * size] * case.dims["num_tokens"])


def _far_scores(case: _Case) -> CallInputs:
    return case.usual("large")


def _wild_entries(case: _Case) -> CallInputs:
    """Unused entries at the limits of int32; one short sequence leaves many of them."""
    count, longest = _sequences(case)
    inputs = case.with_lengths([max(1, longest // 2)] + [longest] * (count - 1))
    table = _tensor(inputs, "block_table")
    unused = (table < 0) | (table >= case.dims["num_blocks"])
    limits = torch.tensor([2**31 - 1, -(2**31)], dtype=torch.int32, device=table.device)
    wild = limits[torch.arange(table.shape[1], device=table.device) % 2].expand_as(table)
    return inputs.with_tensors({"block_table": torch.where(unused, wild, table)})


def _full_beside_short(case: _Case) -> CallInputs | None:
    count, longest = _sequences(case)
    if count == 1:
        return None
    return case.with_lengths([longest, max(1, longest // 5)] + [longest] * (count - 2))


def _infinite_padding(case: _Case) -> CallInputs:
    count, longest = _sequences(case)
    inputs = case.with_lengths([max(1, longest // 2)] * count, stale=False)
    qkv, lengths = _tensor(inputs, "qkv"), _tensor(inputs, "seq_lens")
    padding = torch.arange(longest, device=qkv.device) >= lengths[:, None]
    qkv[padding] = torch.where(case.random(qkv[padding], 0, 2) > 0, torch.inf, -torch.inf).to(qkv.dtype)
    return inputs


def _sequences(case: _Case) -> tuple[int, int]:
    dims = case.dims
    if "context_len" in dims:
        return dims["num_tokens"], dims["context_len"]
    return dims["batch_size"], dims["seq_len"]


# --- encoder ---------------------------------------------------------------------------------------------------------


def _constant_row(case: _Case) -> CallInputs:
    return case.usual("constant")


def _far_mean(case: _Case) -> CallInputs:
    """Mean 256, spread 3: the mean of squares minus the squared mean keeps few digits of the variance."""
    inputs = case.usual()
    x = _tensor(inputs, "x")
    return inputs.with_tensors({"x": (x.float() * 3 + 256).to(x.dtype)})


def _negative_activations(case: _Case) -> CallInputs:
    inputs = case.usual()
    bias = _tensor(inputs, "b_up")
    return inputs.with_tensors({"b_up": -20 * case.positive(bias) - 20})


_BUILDERS: dict[tuple[str, str], Callable[[_Case], CallInputs | None]] = {
    ("residual_rmsnorm", "a row of zeros gives zeros (eps keeps the root finite)"): _zero_row,
    ("residual_rmsnorm", "x and residual cancel"): _sum_cancels,
    ("rope", "position 0 leaves the head unchanged"): _positions(_first),
    ("rope", "the last row of the table"): _positions(_last),
    ("attention_prelude", "position 0"): _positions(_first),
    ("attention_prelude", "slots out of order"): _descending_slots,
    ("attention_prelude", "a head whose norm is dominated by eps"): _small_heads,
    ("kv_append", "slots out of order"): _descending_slots,
    ("kv_append", "first and last slot of the cache"): _outer_slots,
    ("gated_mlp_up", "a very negative gate gives zero, not NaN"): _gate(-400.0),
    ("gated_mlp_up", "a very large gate passes up through"): _gate(400.0),
    ("gated_mlp_down", "the projection cancels the residual"): _projection_cancels("x", "w_down"),
    ("gated_mlp_down", "a long sum with one large term"): _one_large_term,
    ("o_proj_residual_rmsnorm", "the projection cancels the residual"): _projection_cancels("attn", "w_o"),
    ("lm_head_argmax", "all logits equal gives index 0"): _all_equal,
    ("lm_head_argmax", "the largest logit is in the last row"): _last_row,
    ("lm_head_argmax", "all logits negative"): _all_negative,
    ("lm_head_argmax", "exact ties far apart"): _far_ties,
    ("paged_decode_attention", "a sequence of one token"): _one_token,
    ("paged_decode_attention", "a sequence that ends on a block's last slot"): _full_blocks,
    ("paged_decode_attention", "scores hundreds apart"): _far_scores,
    ("paged_decode_attention", "undefined block_table entries hold numbers outside the cache"): _wild_entries,
    ("encoder_attention", "a sequence of one token"): _one_token,
    ("encoder_attention", "a full sequence beside a short one"): _full_beside_short,
    ("encoder_attention", "padding holds infinities that must not leak"): _infinite_padding,
    ("encoder_qkv", "a constant row has variance 0"): _constant_row,
    ("encoder_qkv", "a mean much larger than the spread"): _far_mean,
    ("encoder_mlp", "a constant row has variance 0"): _constant_row,
    ("encoder_mlp", "large negative pre-activations give zero"): _negative_activations,
}
