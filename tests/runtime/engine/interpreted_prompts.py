"""Runs the fused kernels of prompts under Triton's interpreter, in a process of its own: the switch is read at import.

Prints a JSON list: what differs from the library path by more than roundings.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence

os.environ["TRITON_INTERPRET"] = "1"

import torch

from kb.dtype import DType
from runtime.engine.library_ops import Library
from runtime.engine.prompt_ops import FusedLibrary
from runtime.sites import Site, SiteCall

ROWS, HIDDEN, WIDE = 5, 40, 72
Tensors = Mapping[str, torch.Tensor | None]
# (heads, key heads, head_dim, rotary_dim, interleaved, norm, bias)
PRELUDES = [(5, 2, 24, 24, 0, 1, 0), (8, 2, 16, 8, 1, 0, 1), (3, 1, 32, 32, 0, 0, 0)]


def differences(operation: str, dims: Mapping[str, int], tensors: Tensors, written: Sequence[str]) -> list[str]:
    """Where the fused kernel and the library leave different values."""
    dtype = next(t.dtype for t in tensors.values() if t is not None)
    results = []
    for implementation in (Library(), FusedLibrary()):
        own = {name: None if t is None else t.clone() for name, t in tensors.items()}
        site = Site(operation, tuple(sorted(dims.items())), DType(str(dtype).removeprefix("torch.")))
        implementation.bind(SiteCall(site, own, {"eps": 1e-6}))()
        results.append(own)
    allowed = 4 * torch.finfo(dtype).eps
    found = []
    for name in written:
        expected, got = (r[name].double() for r in results)
        error = float((got - expected).norm() / expected.norm())
        if not error <= allowed:
            found.append(f"{operation} {dict(dims)} {dtype}: {name} differs by {error:.2e}")
    return found


def main() -> None:
    torch.manual_seed(0)
    found: list[str] = []
    for dtype in (torch.float32, torch.float16):

        def draw(*shape: int, dtype: torch.dtype = dtype) -> torch.Tensor:
            return torch.randn(*shape).to(dtype)

        for heads, kv_heads, width, rotary, interleaved, norm, bias in PRELUDES:
            dims = {
                "num_tokens": ROWS, "num_heads": heads, "num_kv_heads": kv_heads, "head_dim": width,
                "rotary_dim": rotary, "rope_interleaved": interleaved, "has_qk_norm": norm, "has_qkv_bias": bias,
            }  # fmt: skip
            rows = (heads + 2 * kv_heads) * width
            tensors = {
                "x": draw(ROWS, HIDDEN), "w_qkv": draw(rows, HIDDEN) * 0.1, "b_qkv": draw(rows) if bias else None,
                "q_norm": draw(width) if norm else None, "k_norm": draw(width) if norm else None,
                "cos_sin": torch.randn(50, rotary), "positions": torch.randint(0, 50, (ROWS,)).int(),
                "slot_mapping": torch.randperm(36)[:ROWS].int(), "q_out": draw(ROWS, heads, width),
                "k_cache": draw(9, 4, kv_heads, width), "v_cache": draw(9, 4, kv_heads, width),
            }  # fmt: skip
            found += differences("attention_prelude", dims, tensors, ("q_out", "k_cache", "v_cache"))
        up = {"x": draw(ROWS, HIDDEN), "w_gate_up": draw(2 * WIDE, HIDDEN) * 0.2, "out": draw(ROWS, WIDE)}
        found += differences("gated_mlp_up", {"num_tokens": ROWS}, up, ("out",))
        norm_of = {"weight": draw(HIDDEN), "out": draw(ROWS, HIDDEN)}
        plain = {"x": draw(ROWS, HIDDEN), "residual": None, **norm_of}
        found += differences("residual_rmsnorm", {"num_tokens": ROWS, "has_residual": 0}, plain, ("out",))
        projected = {"attn": draw(ROWS, 48), "w_o": draw(HIDDEN, 48), "residual": draw(ROWS, HIDDEN), **norm_of}
        found += differences("o_proj_residual_rmsnorm", {"num_tokens": ROWS}, projected, ("residual", "out"))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
