"""Sets of inputs for timing: enough of them that one call's data has left the cache before it is used again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from kb.contract import Contract
from kb.dtype import DType
from validator.inputs import structure
from validator.inputs.call_inputs import CallInputs, allocate_outputs
from validator.inputs.distributions import generator
from validator.inputs.make import fill, structural

MAX_SETS = 64


def make_timing_inputs(
    contract: Contract,
    dims: Mapping[str, int],
    storage: DType,
    device: torch.device | str,
    min_total_bytes: int,
    *,
    seed: int = 0,
    max_sets: int = MAX_SETS,
    max_allocated_bytes: int = 8 << 30,
) -> Sequence[CallInputs]:
    """Complete calls, outputs included, that together move at least ``min_total_bytes``; always at least two.

    Every sequence has the contract's ``context_len`` (or ``seq_len``) tokens. Sets of a contract that only reads its
    cache share one and differ in their blocks, as sequences of one engine do. Fewer sets than asked for come back where
    ``max_sets`` (calls that move little are bound by latency, not by the cache) or ``max_allocated_bytes`` is reached.
    """
    contract.check_dims(dims)
    count = -(-min_total_bytes // max(1, contract.bytes_moved(dims, storage)))
    count = max(2, min(count, max_sets))
    if "block_table" in {t.name for t in contract.tensors}:
        return _sharing_caches(contract, dims, storage, device, count, seed)
    sets: list[CallInputs] = []
    allocated = 0
    while len(sets) < count:
        made = _one(contract, dims, storage, device, seed + len(sets), _lengths(dims))
        sets.append(made)
        allocated += made.nbytes
        if len(sets) >= 2 and allocated + made.nbytes > max_allocated_bytes:
            break
    return sets


def _one(
    contract: Contract,
    dims: Mapping[str, int],
    storage: DType,
    device: torch.device | str,
    seed: int,
    lengths: torch.Tensor | None,
) -> CallInputs:
    indices = structural(contract, dims, seed, lengths)
    made = fill(contract, dims, storage, "normal", seed, device, indices, stale=False)
    return made.with_tensors(allocate_outputs(contract, dims, storage, device))


def _lengths(dims: Mapping[str, int]) -> torch.Tensor | None:
    if "context_len" in dims:
        return torch.full((dims["num_tokens"],), dims["context_len"], dtype=torch.int32)
    if "batch_size" in dims:
        return torch.full((dims["batch_size"],), dims["seq_len"], dtype=torch.int32)
    return None


def _sharing_caches(
    contract: Contract,
    dims: Mapping[str, int],
    storage: DType,
    device: torch.device | str,
    count: int,
    seed: int,
) -> list[CallInputs]:
    """Sets whose block tables take consecutive parts of a permutation of one cache, then of the next."""
    lengths = _lengths(dims)
    needed = [-(-int(n) // dims["block_size"]) for n in lengths] if lengths is not None else []
    per_cache = dims["num_blocks"] // sum(needed)
    sets: list[CallInputs] = []
    for i in range(count):
        if i % per_cache == 0:
            first = _one(contract, dims, storage, device, seed + i, lengths)
            order = torch.randperm(dims["num_blocks"], generator=generator("cpu", seed + i, "order"))
        part = order[i % per_cache * sum(needed) :]
        table = structure.fill_table(needed, dims["max_blocks_per_seq"], dims["num_blocks"], part)
        q = first.tensors["q"]
        assert q is not None
        outputs = allocate_outputs(contract, dims, storage, device)
        sets.append(first.with_tensors({"block_table": table.to(device), "q": q.clone(), **outputs}))
    return sets
