"""Settings of an engine, and the sizes they come to on a device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from runtime.kv.pool import affordable_blocks, spare_bytes
from runtime.models.spec import DecoderSpec
from runtime.models.weights import DecoderWeights


class ConfigError(ValueError):
    """Settings that contradict each other or do not fit the device: which, and what to change."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Settings. None means: decided from the model and the device.

    ``max_batch``: requests that run at once. ``max_step_tokens``: rows of one step, decode and prompts together.
    ``max_model_len``: prompt and output of a request, at most. ``kv_blocks``: blocks of the KV cache, the dummy
    block included. ``memory_share``: part of a GPU's memory the engine may fill. ``swap_bytes``: host memory for
    preempted sequences. ``watermark``: share of the cache that admission leaves free. ``buckets``: batch sizes decode
    steps are padded to. ``lookahead``: steps in flight while the next is planned, 0 or 1. ``graphs``: on a GPU, replay
    decode steps as CUDA graphs. ``fast_prompts``: run steps with prompts in them on what is faster than the library
    path where it is there: fused norms and rotations, attention of all prompts in one call, the chosen decode
    attention. ``seed``: seeds the requests that bring none.
    """

    max_batch: int = 64
    max_step_tokens: int | None = None
    max_model_len: int | None = None
    block_size: int = 16
    kv_blocks: int | None = None
    memory_share: float = 0.9
    swap_bytes: int = 0
    watermark: float = 0.01
    prefix_cache: bool = True
    preemption: Literal["recompute", "swap"] = "recompute"
    buckets: tuple[int, ...] | None = None
    lookahead: int | None = None
    graphs: bool = True
    fast_prompts: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        checks = (
            (self.max_batch >= 1, "max_batch", "1 or more"),
            (self.max_model_len is None or self.max_model_len >= 2, "max_model_len", "2 or more"),
            (1 <= self.block_size <= 256, "block_size", "1 to 256"),
            (self.kv_blocks is None or self.kv_blocks >= 2, "kv_blocks", "2 or more"),
            (0 < self.memory_share <= 1, "memory_share", "above 0 and at most 1"),
            (self.swap_bytes >= 0, "swap_bytes", "0 or more"),
            (0 <= self.watermark < 1, "watermark", "0 or more and below 1"),
            (self.lookahead in (None, 0, 1), "lookahead", "0 or 1"),
            (self.preemption in ("recompute", "swap"), "preemption", "recompute or swap"),
            (self.buckets is None or all(b >= 1 for b in self.buckets), "buckets", "sizes of 1 or more"),
        )
        for holds, name, allowed in checks:
            if not holds:
                raise ConfigError(f"{name} is {getattr(self, name)!r}; {allowed} is possible")


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Sizes everything is allocated at."""

    max_batch: int
    max_step_tokens: int
    max_model_len: int
    block_size: int
    num_blocks: int
    blocks_per_sequence: int
    swap_blocks: int
    watermark_blocks: int
    buckets: tuple[int, ...]
    lookahead: int


def plan_memory(config: EngineConfig, spec: DecoderSpec, weights: DecoderWeights) -> MemoryPlan:
    """Sizes for ``spec`` on the device that holds ``weights``. Raises ConfigError when they cannot work."""
    device, itemsize = weights.embed.device, weights.embed.itemsize
    on_gpu = device.type == "cuda"
    step_tokens = config.max_step_tokens or max(2048 if on_gpu else 512, 2 * config.max_batch)
    if step_tokens <= config.max_batch:
        raise ConfigError(f"max_step_tokens {step_tokens} must be above max_batch {config.max_batch}; raise it")
    longest = config.max_model_len or spec.max_position_embeddings
    if longest > spec.max_position_embeddings:
        raise ConfigError(f"max_model_len {longest} is beyond the model's {spec.max_position_embeddings} positions")
    num_blocks = config.kv_blocks
    if num_blocks is None:
        affordable = affordable_blocks(spec, config.block_size, itemsize, spare_bytes(device, config.memory_share))
        num_blocks = min(affordable, 1 + config.max_batch * -(-longest // config.block_size))
        if num_blocks < 2:
            raise ConfigError(f"no memory is left on {device} for a KV cache beside {weights.nbytes} bytes of weights")
    usable = num_blocks - 1
    if config.max_model_len is None:  # what cannot be held is not promised
        longest = min(longest, usable * config.block_size)
    block_bytes = config.block_size * spec.kv_bytes_per_token(itemsize)
    return MemoryPlan(
        max_batch=config.max_batch,
        max_step_tokens=step_tokens,
        max_model_len=longest,
        block_size=config.block_size,
        num_blocks=num_blocks,
        blocks_per_sequence=-(-longest // config.block_size),
        swap_blocks=config.swap_bytes // block_bytes,
        watermark_blocks=int(config.watermark * usable),
        buckets=config.buckets or _powers_of_two(config.max_batch),
        lookahead=int(on_gpu) if config.lookahead is None else config.lookahead,
    )


def _powers_of_two(most: int) -> tuple[int, ...]:
    """1, 2, 4, … and ``most`` itself."""
    return (*(1 << i for i in range(most.bit_length()) if 1 << i < most), most)
