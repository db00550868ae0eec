"""Runs the Triton baselines under Triton's interpreter, in a process of its own: the switch is read at import.

Prints one JSON object: contract id -> list of problems. The interpreter multiplies bfloat16 tiles as raw bits, so
tensor-core paths are shown in float16 and float32 only.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

os.environ["TRITON_INTERPRET"] = "1"

from kb.contract import Contract
from kb.dtype import DType, Target
from kb.library import library_root, load_library
from runtime.baselines import Baseline, get_baseline
from tests.runtime.against_reference import assert_right, run
from validator.inputs import allocate_outputs, edge_inputs, make_inputs

Dims = dict[str, int]
MLP = {"hidden_size": 40, "intermediate_size": 72}
PRELUDE = {"hidden_size": 72, "num_heads": 4, "num_kv_heads": 2, "head_dim": 24, "block_size": 4, "num_blocks": 7}
PRELUDE |= {"max_positions": 50}
PLAIN = {"has_qkv_bias": 0, "has_qk_norm": 0, "rope_interleaved": 0, "rotary_dim": 24}
RICH = {"has_qkv_bias": 1, "has_qk_norm": 1, "rope_interleaved": 1, "rotary_dim": 16}
ROPE = {"num_heads": 5, "num_kv_heads": 1, "head_dim": 24, "max_positions": 30}
PAGED = {"head_dim": 24, "block_size": 4, "num_blocks": 400, "max_blocks_per_seq": 40, "context_len": 150}
# One row (no tensor cores), a few, more than one tile of sixteen.
ROWS = (1, 3, 17)
SHAPES: Mapping[str, list[Dims]] = {
    "residual_rmsnorm": [{"num_tokens": 3, "hidden_size": 40, "has_residual": flag} for flag in (0, 1)],
    "rope": [
        ROPE | {"num_tokens": 3, "rotary_dim": width, "rope_interleaved": style}
        for width in (12, 24)
        for style in (0, 1)
    ],
    "kv_append": [{"num_tokens": 5, "num_kv_heads": 3, "head_dim": 24, "block_size": 4, "num_blocks": 3}],
    "attention_prelude": [PRELUDE | style | {"num_tokens": rows} for rows in ROWS for style in (PLAIN, RICH)],
    "gated_mlp_up": [MLP | {"num_tokens": rows} for rows in ROWS],
    # A long K is split over programs, a short one is not.
    "gated_mlp_down": [
        {"hidden_size": 40, "num_tokens": rows, "intermediate_size": k} for rows in ROWS for k in (72, 1032)
    ],
    "o_proj_residual_rmsnorm": [{"hidden_size": 40, "num_tokens": rows, "in_features": 1032} for rows in ROWS],
    "lm_head_argmax": [{"hidden_size": 40, "num_tokens": rows, "vocab_size": 133} for rows in ROWS],
    "encoder_qkv": [
        {"num_tokens": 37, "hidden_size": 72, "num_heads": 1, "head_dim": 40, "has_pre_norm": flag} for flag in (0, 1)
    ],
    "paged_decode_attention": [
        PAGED | {"num_tokens": 1, "num_heads": 4, "num_kv_heads": 2, "sliding_window": 0},
        PAGED | {"num_tokens": 5, "num_heads": 2, "num_kv_heads": 2, "sliding_window": 0},
        PAGED | {"num_tokens": 6, "num_heads": 3, "num_kv_heads": 1, "sliding_window": 37},
        PAGED | {"num_tokens": 2, "num_heads": 70, "num_kv_heads": 1, "sliding_window": 0},
    ],
}


def problems(contract: Contract, baseline: Baseline) -> list[str]:
    found = []
    for dims in SHAPES[contract.id]:
        one_row = dims.get("num_tokens") == 1 and contract.id != "paged_decode_attention"
        pointwise = contract.id in ("residual_rmsnorm", "rope", "kv_append")
        for storage in (DType.BFLOAT16,) if one_row or pointwise else (DType.FLOAT16, DType.FLOAT32):
            cases = [("normal", make_inputs(contract, dims, storage, "normal", 1))]
            if storage is not DType.FLOAT32 and dims is SHAPES[contract.id][-1]:
                cases += edge_inputs(contract, dims, storage, 1)
            for case, inputs in cases:
                try:
                    got = run(baseline, contract, dims, storage, inputs)
                    assert_right(contract, dims, storage, case, got, inputs)
                except Exception as error:
                    found.append(f"{dims} {storage} {case}: {type(error).__name__}: {error}")
    return found


def follows_new_lengths(contract: Contract, baseline: Baseline) -> list[str]:
    """One prepared call, replayed with other lengths and tables, as a captured step is."""
    dims, storage = SHAPES[contract.id][2], DType.FLOAT16
    bound = make_inputs(contract, dims, storage, "normal", 1)
    bound = bound.with_tensors(allocate_outputs(contract, dims, storage))
    call = baseline.prepare(contract, dims, storage, bound.tensors, bound.scalars)
    found = []
    for seed, longest in ((2, 150), (3, 1), (4, 9), (5, 150)):
        other = make_inputs(contract, dims | {"context_len": longest}, storage, "normal", seed)
        for name, tensor in other.tensors.items():
            target = bound.tensors[name]
            assert tensor is not None
            assert target is not None
            target.copy_(tensor)
        try:
            call()
            assert_right(contract, dims, storage, f"lengths up to {longest}", bound, other)
        except Exception as error:
            found.append(f"{type(error).__name__}: {error}")
    return found


def main() -> None:
    report = {}
    for contract in load_library(library_root(None)).contracts.values():
        for name in contract.baselines[Target.CUDA]:
            if name.startswith("triton"):
                report[contract.id] = problems(contract, get_baseline(contract.id, name))
    contract = load_library(library_root(None)).contracts["paged_decode_attention"]
    report["paged_decode_attention"] += follows_new_lengths(
        contract, get_baseline(contract.id, f"triton_{contract.id}")
    )
    print(json.dumps(report))


if __name__ == "__main__":
    main()
