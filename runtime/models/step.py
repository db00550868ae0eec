"""The buffers a step runs over. They are allocated once, at the largest size, and sliced per batch bucket."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import torch

from runtime.kv.zeros import zeros
from runtime.models.spec import DecoderSpec
from runtime.sites import PackedSegments, Segment


@dataclass(frozen=True, slots=True)
class StepBuffers:
    """Static device memory of a step, sliced per batch bucket. Every field says who writes it.

    Rows past the step's own are padding: token 0 at position 0 of the dummy block, a sequence of one token, slot
    ``max_batch``. They are computed and never read.
    """

    # Written by the executor from the plan.
    input_ids: torch.Tensor  # int32 [rows]; decode rows: by `fetch_tokens`, on the device
    positions: torch.Tensor  # int32 [rows]
    slot_mapping: torch.Tensor  # int32 [rows], slot in the KV cache
    block_table: torch.Tensor  # int32 [sequences, max_blocks_per_seq]
    seq_lens: torch.Tensor  # int32 [sequences], the row's own token included; 1 for prompts: segments say theirs
    request_slots: torch.Tensor  # int32 [sequences], row of `last_tokens`
    sample_rows: torch.Tensor  # int32 [sequences], rows whose next token is wanted (mixed steps)
    # Written by the step.
    residual: torch.Tensor  # T [rows, hidden_size], by `embed`, then by every residual add
    x: torch.Tensor  # T [rows, hidden_size], by every norm
    q: torch.Tensor  # T [rows, num_heads, head_dim], by `attention_prelude`
    attention: torch.Tensor  # T [rows, num_heads, head_dim], by attention
    projected: torch.Tensor  # T [rows, hidden_size], by `linear` where a projection is not fused with its add
    activated: torch.Tensor  # T [rows, intermediate_size], by `gated_mlp_up`
    sampled_rows: torch.Tensor  # T [sequences, hidden_size], by `gather_rows` (mixed steps)
    out_ids: torch.Tensor  # int32 [sequences], by `lm_head_argmax` or the sampler
    out_max: torch.Tensor  # float32 [sequences], by `lm_head_argmax`
    # Outlive a step: written by `publish_tokens`, read by the next step's `fetch_tokens`.
    last_tokens: torch.Tensor  # int32 [max_batch + 1], newest token of every request slot; the last row is padding's

    def sliced(self, rows: int, sequences: int) -> StepBuffers:
        """The same memory, cut to ``rows`` rows and ``sequences`` sequences."""
        cut = {f.name: getattr(self, f.name) for f in fields(self)}
        for name, tensor in cut.items():
            if name != "last_tokens":
                cut[name] = tensor[: sequences if name in _PER_SEQUENCE else rows]
        return StepBuffers(**cut)


_PER_SEQUENCE = frozenset(
    {"block_table", "seq_lens", "request_slots", "sample_rows", "sampled_rows", "out_ids", "out_max"}
)


@dataclass(frozen=True, slots=True)
class Step:
    """What the decoder's definition needs to know about a step besides its buffers.

    ``num_decode``: leading rows that are one sequence each. ``segments``: the sequences of the other rows; none in a
    decode step. ``num_sampled``: rows of ``sample_rows`` in use (mixed steps). ``packed``: the segments side by side,
    where the device attends to them in one call.
    """

    buffers: StepBuffers
    num_decode: int
    segments: tuple[Segment, ...] = ()
    num_sampled: int = 0
    packed: PackedSegments | None = None


@dataclass(frozen=True, slots=True)
class Sizes:
    """Largest step: ``rows`` tokens of ``sequences`` sequences, each with up to ``blocks_per_sequence`` blocks."""

    rows: int
    sequences: int
    blocks_per_sequence: int


@dataclass(frozen=True, slots=True)
class Metadata:
    """The integers a step is told, views of one ``flat`` allocation, so that one copy brings them to a device.

    The block table is last: a step that uses few of its rows copies a prefix.
    """

    flat: torch.Tensor
    input_ids: torch.Tensor
    positions: torch.Tensor
    slot_mapping: torch.Tensor
    seq_lens: torch.Tensor
    request_slots: torch.Tensor
    sample_rows: torch.Tensor
    block_table: torch.Tensor

    def used(self, sequences: int) -> int:
        """Leading elements of ``flat`` that a step of so many sequences reads."""
        unused_rows = self.block_table.shape[0] - sequences
        return self.flat.numel() - unused_rows * self.block_table.shape[1]


def allocate_metadata(sizes: Sizes, device: torch.device, pin_memory: bool = False) -> Metadata:
    """Zeroed metadata: every row is padding until it is written."""
    shapes = {
        **dict.fromkeys(("input_ids", "positions", "slot_mapping"), (sizes.rows,)),
        **dict.fromkeys(("seq_lens", "request_slots", "sample_rows"), (sizes.sequences,)),
        "block_table": (sizes.sequences, sizes.blocks_per_sequence),
    }
    # Every part starts on 64 bytes, whatever the sizes: kernels may load them in vectors.
    padded = {name: -(-math.prod(shape) // 16) * 16 for name, shape in shapes.items()}
    total = sum(padded.values()) - padded["block_table"] + math.prod(shapes["block_table"])
    flat = torch.zeros(total, dtype=torch.int32, device=device, pin_memory=pin_memory)
    views, start = {}, 0
    for name, shape in shapes.items():
        views[name] = flat[start : start + math.prod(shape)].view(shape)
        start += padded[name]
    return Metadata(flat, **views)


def allocate_buffers(spec: DecoderSpec, sizes: Sizes, metadata: Metadata, dtype: torch.dtype) -> StepBuffers:
    """Buffers for steps up to ``sizes`` on the device of ``metadata``, whose views they take in."""
    device = metadata.flat.device

    def rows(*shape: int) -> torch.Tensor:
        return zeros((sizes.rows, *shape), dtype, device)

    def ints(count: int) -> torch.Tensor:
        return torch.zeros(count, dtype=torch.int32, device=device)

    return StepBuffers(
        **{f.name: getattr(metadata, f.name) for f in fields(metadata) if f.name != "flat"},
        residual=rows(spec.hidden_size),
        x=rows(spec.hidden_size),
        q=rows(spec.num_heads, spec.head_dim),
        attention=rows(spec.num_heads, spec.head_dim),
        projected=rows(spec.hidden_size),
        activated=rows(spec.intermediate_size),
        sampled_rows=torch.zeros((sizes.sequences, spec.hidden_size), dtype=dtype, device=device),
        out_ids=ints(sizes.sequences),
        out_max=torch.zeros(sizes.sequences, dtype=torch.float32, device=device),
        last_tokens=ints(sizes.sequences + 1),
    )
