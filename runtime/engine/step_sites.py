"""Which sites a model's decode steps have, known from its spec alone: no weights, no device, no memory.

The decoder's own definition is asked, over tensors that have shapes only, so these are the very dims that the engine
will look kernels up by.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from kb.dtype import DType
from runtime.engine.splitting import SPLITTINGS
from runtime.kv.pool import KVPool
from runtime.models.decoder import Decoder
from runtime.models.spec import DecoderSpec
from runtime.models.step import Sizes, Step, allocate_buffers, allocate_metadata
from runtime.models.weights import absent_weights
from runtime.sites import CONTRACT_OPERATIONS, Site, Splitting

BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True)
class StepSite:
    """A site of a decode step. ``calls``: how often a step runs it. ``part_of``: the fused operation it is a part of;
    None for what the step itself calls."""

    site: Site
    calls: int
    part_of: str | None = None


def step_sites(
    spec: DecoderSpec, bucket: int, storage: DType, *, block_size: int = BLOCK_SIZE, positions: int = 8192
) -> list[StepSite]:
    """The contract sites of a greedy decode step of ``bucket`` sequences, in the order they run, each once; after each
    fused one, the sites that it can be taken apart into."""
    dtype = getattr(torch, storage.value)
    meta = torch.device("meta")
    blocks_each = -(-positions // block_size)
    pool = KVPool(spec, 1 + bucket * blocks_each, block_size, dtype, meta)
    decoder = Decoder(spec, absent_weights(spec, dtype), pool, min(positions, spec.max_position_embeddings))
    sizes = Sizes(bucket, bucket, blocks_each)
    buffers = allocate_buffers(spec, sizes, allocate_metadata(sizes, meta), dtype)
    calls = [*decoder.calls(Step(buffers, num_decode=bucket)), decoder.argmax(buffers)]
    counts: dict[tuple[Site, str | None], int] = {}
    for call in calls:
        if call.site.operation not in CONTRACT_OPERATIONS:
            continue
        counts[call.site, None] = counts.get((call.site, None), 0) + 1
        splitting = SPLITTINGS.get(call.site.operation)
        made = splitting() if splitting is not None else None
        if isinstance(made, Splitting):
            for part in made.parts(call):
                if part.site.operation in CONTRACT_OPERATIONS:
                    key = (part.site, call.site.operation)
                    counts[key] = counts.get(key, 0) + 1
    return [StepSite(site, count, part_of) for (site, part_of), count in counts.items()]


def features_of(spec: DecoderSpec) -> frozenset[str]:
    """The names of ``kb.features.MODEL_FEATURES`` that a decoder has."""
    has: Mapping[str, bool] = {
        "gqa": spec.num_kv_heads < spec.num_heads,
        "mha": spec.num_kv_heads == spec.num_heads,
        "qk_norm": spec.qk_norm,
        "qkv_bias": spec.qkv_bias,
        "partial_rotary": spec.rope.rotary_dim < spec.head_dim,
        "rope_interleaved": spec.rope.interleaved,
        "sliding_window": any(spec.layer_windows),
        "tied_embeddings": spec.tied_embeddings,
    }
    return frozenset(name for name, holds in has.items() if holds)


def sites_of_buckets(
    spec: DecoderSpec, buckets: Sequence[int], storage: DType, *, block_size: int = BLOCK_SIZE
) -> list[StepSite]:
    """``step_sites`` of every bucket, each once, bucket by bucket."""
    found: dict[tuple[Site, str | None], StepSite] = {}
    for bucket in buckets:
        for place in step_sites(spec, bucket, storage, block_size=block_size):
            found.setdefault((place.site, place.part_of), place)
    return list(found.values())
