"""The names a condition may use under ``features`` and ``without``: what a model has, and what a target can do.

One list for everybody: the linter rejects any other name, the analyzer says which of them a model has, and the
prompt renderer adds what an architecture implies. A name is never reused with another meaning.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from kb.dtype import Target

# Read from a model's config or graph. What a contract already has as a dim or flag is better asked of that dim.
MODEL_FEATURES: Mapping[str, str] = MappingProxyType(
    {
        "gqa": "Query heads share key and value heads, more than one query head each.",
        "mha": "Every query head has its own key and value head.",
        "qk_norm": "RMSNorm on every query and key head before the rotation.",
        "qkv_bias": "The query, key and value projections have a bias.",
        "partial_rotary": "Only the leading elements of a head rotate.",
        "rope_interleaved": "Rotation pairs are neighbouring elements, not half a rotary dimension apart.",
        "sliding_window": "Attention sees only the last tokens of a sequence.",
        "tied_embeddings": "The vocabulary projection is the embedding table.",
        "pre_norm": "The norm comes before the projection and belongs to the same block.",
        "gelu_tanh": "GELU is the tanh approximation.",
        "padded_batch": "Sequences of unequal length are padded to one length.",
    }
)

# Of the machine a kernel runs on.
TARGET_FEATURES: Mapping[str, str] = MappingProxyType(
    {
        "tensor_cores": "Warp-level matrix instructions on 16-bit operands with float32 accumulators.",
        "async_copy": "Copies from device memory to shared memory that bypass registers.",
        "programmatic_dependent_launch": "A kernel may start before its predecessor in the stream has finished.",
        "clusters": "Thread-block clusters with distributed shared memory.",
        "bulk_copy": "Bulk tensor copies issued by one thread and tracked by a barrier in shared memory.",
        "avx2": "256-bit integer and floating-point vectors with fused multiply-add.",
        "avx512": "512-bit vectors with masks (F, BW, VL and DQ).",
        "avx512_bf16": "Dot products of bfloat16 pairs into float32 lanes.",
        "amx": "Tile matrix registers with bfloat16 products.",
        "neon": "128-bit vectors of aarch64.",
        "sve": "Scalable vectors of aarch64.",
        "numa": "More than one memory node; where a page lives decides how fast a core reads it.",
        "smt": "Several hardware threads a core.",
    }
)

FEATURES: Mapping[str, str] = MappingProxyType({**MODEL_FEATURES, **TARGET_FEATURES})

_AMPERE = ("tensor_cores", "async_copy")
_HOPPER = (*_AMPERE, "programmatic_dependent_launch", "clusters", "bulk_copy")


# Bytes of shared memory a block may have at most, by compute capability (CUDA C++ programming guide, "Technical
# specifications per compute capability").
_SHARED_BYTES = {80: 166_912, 86: 101_376, 87: 166_912, 89: 101_376, 90: 232_448, 100: 232_448, 103: 232_448}


def block_shared_bytes(capability: int) -> int:
    """Most shared memory of a block on compute capability ``capability`` (90 for sm_90), in bytes."""
    return _SHARED_BYTES.get(capability, 101_376)


def target_features(target: Target, arch: str) -> frozenset[str]:
    """What ``arch`` alone implies, for a situation that is known by its architecture.

    ``cpu`` implies next to nothing: vector extensions differ between machines of one architecture and are read
    from the machine (``/proc/cpuinfo``), not from its name.
    """
    if target is Target.CPU:
        return frozenset({"neon"} if arch == "aarch64" else ())
    capability = int(arch.removeprefix("sm_"))
    if capability >= 90:
        return frozenset(_HOPPER)
    return frozenset(_AMPERE if capability >= 80 else ())
