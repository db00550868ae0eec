"""Inputs drawn for a contract: which tensor is what, and how large its values are."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from kb.contract import Contract, Role, Tensor
from kb.dtype import DType
from runtime.programs import find_program
from validator.inputs import structure
from validator.inputs.call_inputs import TORCH_DTYPES, CallInputs
from validator.inputs.contents import draw_content
from validator.inputs.distributions import draw, generator, normal

# What a tensor of this name holds, in every contract. Weights keep the variance of their input; the distribution
# asked for is that of the activations.
_ACTIVATIONS = frozenset({"x", "q", "k", "v", "attn", "residual", "qkv", "k_cache", "v_cache"})
_WEIGHTS = frozenset({"w", "w_qkv", "w_gate_up", "w_down", "w_o", "w_up"})
_GAMMAS = frozenset({"weight", "q_norm", "k_norm", "ln_weight"})
_BIASES = frozenset({"b_qkv", "b_up", "b_down", "ln_bias"})

# Scores of queries and keys sixteen times the usual are hundreds apart and still distinct in float32.
_LARGE_ATTENTION = 16.0
_ATTENTION = frozenset({"q", "k", "v", "qkv", "k_cache", "v_cache"})

# What lies in slots and padding that must not be read: finite, and large enough to be seen when it leaks.
_STALE_FACTOR = 64.0


def make_inputs(
    contract: Contract,
    dims: Mapping[str, int],
    storage: DType,
    distribution: str,
    seed: int,
    device: torch.device | str = "cpu",
) -> CallInputs:
    """All ``in`` and ``inout`` tensors and scalars of one call; equal arguments give equal bits on one device type.

    Sequence lengths are ragged, slots and blocks permuted, unused table entries outside the cache, unused slots and
    padding large. Raises ValueError for dims the contract refuses, an unknown distribution, or a tensor whose name
    says nothing about its contents.
    """
    contract.check_dims(dims)
    return fill(contract, dims, storage, distribution, seed, device, structural(contract, dims, seed), stale=True)


def fill(
    contract: Contract,
    dims: Mapping[str, int],
    storage: DType,
    distribution: str,
    seed: int,
    device: torch.device | str,
    indices: Mapping[str, torch.Tensor],
    *,
    stale: bool,
) -> CallInputs:
    """Draw every tensor that ``indices`` (CPU tensors by name) does not give.

    ``stale``: enlarge what must not be read (unused cache slots, padding rows), so that a leak is seen.
    """
    tensors: dict[str, torch.Tensor | None] = {}
    for tensor in contract.tensors:
        if tensor.role is Role.OUT:
            continue
        if not contract.is_present(tensor, dims):
            tensors[tensor.name] = None
        elif tensor.name in indices:
            tensors[tensor.name] = indices[tensor.name].to(device)
        else:
            gen = generator(device, seed, tensor.name)
            tensors[tensor.name] = _draw(contract, dims, storage, distribution, tensor, gen)
    inputs = CallInputs(tensors, scalars(contract, dims))
    if stale:
        _enlarge_stale(dims, inputs)
    return inputs


def scalars(contract: Contract, dims: Mapping[str, int]) -> dict[str, float]:
    """Scalars as a float32 holds them: ``scale`` from the head's width, the rest the contract's examples."""
    values = {s.name: s.example for s in contract.scalars}
    if "scale" in values and "head_dim" in dims:
        values["scale"] = 1 / math.sqrt(dims["head_dim"])
    return {name: float(torch.tensor(value, dtype=torch.float32)) for name, value in values.items()}


def structural(
    contract: Contract, dims: Mapping[str, int], seed: int, lengths: torch.Tensor | None = None
) -> dict[str, torch.Tensor]:
    """The index tensors and tables of a contract, CPU. ``lengths``: sequence lengths instead of ragged ones."""
    names = {t.name for t in contract.tensors if contract.is_present(t, dims)}
    made: dict[str, torch.Tensor] = {}

    def gen(name: str) -> torch.Generator:
        return generator("cpu", seed, name)

    if "cos_sin" in names:
        made["cos_sin"] = structure.cos_sin_table(dims["max_positions"], dims["rotary_dim"])
    if "positions" in names:
        made["positions"] = structure.positions(dims["num_tokens"], dims["max_positions"], gen("positions"))
    if "slot_mapping" in names:
        num_slots = dims["num_blocks"] * dims["block_size"]
        made["slot_mapping"] = structure.slots(dims["num_tokens"], num_slots, gen("slot_mapping"))
    if "seq_lens" in names:
        made["seq_lens"] = _lengths(dims, seed, gen("seq_lens")) if lengths is None else lengths
    if "block_table" in names:
        made["block_table"] = structure.block_table(
            made["seq_lens"],
            dims["max_blocks_per_seq"],
            dims["block_size"],
            dims["num_blocks"],
            gen("block_table"),
        )
    return made


def _lengths(dims: Mapping[str, int], seed: int, gen: torch.Generator) -> torch.Tensor:
    if "context_len" in dims:
        return structure.ragged_lengths(dims["num_tokens"], dims["context_len"], dims["block_size"], gen)
    count, longest = dims["batch_size"], dims["seq_len"]
    if count == 1 and seed % 2:  # one sequence: full for even seeds, padded for odd ones
        return torch.randint(1, longest + 1, (1,), generator=gen, dtype=torch.int32)
    return structure.ragged_lengths(count, longest, 1, gen)


def _draw(
    contract: Contract,
    dims: Mapping[str, int],
    storage: DType,
    distribution: str,
    tensor: Tensor,
    gen: torch.Generator,
) -> torch.Tensor:
    shape = contract.shape_of(tensor, dims)
    dtype = TORCH_DTYPES[tensor.dtype.bind(storage)]
    if (program := find_program(contract.id)) is not None and (given := program.input(tensor.name)) is not None:
        return draw_content(given, shape, dtype, distribution, dims, gen)
    if tensor.name in _WEIGHTS:
        return normal(shape, dtype, gen, std=1 / math.sqrt(shape[-1]))
    if tensor.name in _GAMMAS:
        return normal(shape, dtype, gen, std=0.1, mean=1.0)
    if tensor.name in _BIASES:
        return normal(shape, dtype, gen, std=0.1)
    if tensor.name not in _ACTIVATIONS:
        raise ValueError(
            f"{contract.id}: nothing is known about what '{tensor.name}' holds; add it to validator.inputs"
        )
    if tensor.name.endswith("_cache") and tensor.role is Role.INOUT:  # old contents, not an input of the formula
        return normal(shape, dtype, gen)
    if tensor.name in _ATTENTION:
        return draw(distribution, shape, dtype, gen, large=_LARGE_ATTENTION)
    return draw(distribution, shape, dtype, gen)


def _enlarge_stale(dims: Mapping[str, int], inputs: CallInputs) -> None:
    """Multiply cache slots no sequence holds, tokens outside the window, and padding rows, in place."""
    lengths = inputs.tensors.get("seq_lens")
    if lengths is None:
        return
    lengths = lengths.cpu()
    qkv = inputs.tensors.get("qkv")
    if qkv is not None:
        padding = torch.arange(dims["seq_len"]) >= lengths[:, None]
        qkv[padding.to(qkv.device)] *= _STALE_FACTOR
        return
    table = inputs.tensors["block_table"]
    assert table is not None
    table = table.cpu()
    size, blocks, window = dims["block_size"], dims["num_blocks"], dims["sliding_window"]
    live = structure.live_slots(table, lengths, size, blocks)
    if window:
        live &= ~structure.live_slots(table, (lengths - window).clamp(min=0), size, blocks)
    for name in ("k_cache", "v_cache"):
        cache = inputs.tensors[name]
        assert cache is not None
        cache.flatten(0, 1)[~live.to(cache.device)] *= _STALE_FACTOR
