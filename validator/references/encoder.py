"""References of the encoder contracts."""

from __future__ import annotations

import torch

from validator.references.arithmetic import attend, gelu, kept, layer_norm, linear, rounded
from validator.references.call import Call
from validator.references.expected import Expected


def encoder_qkv(call: Call) -> dict[str, Expected]:
    """LayerNorm (not rounded: keeping float32 is allowed) and the joint projection."""
    y = linear(_normed(call), call["w_qkv"], call["b_qkv"])
    return {"qkv": Expected(y.view(-1, 3, call.dims["num_heads"], call.dims["head_dim"]))}


def encoder_attention(call: Call) -> dict[str, Expected]:
    """Padding is never read, so infinities there cannot reach the truth; padding rows are zeros."""
    qkv = call["qkv"]
    out = torch.zeros(qkv.shape[0], qkv.shape[1], *qkv.shape[3:], dtype=torch.float64, device=qkv.device)
    for b, length in enumerate(call["seq_lens"].tolist()):
        q, k, v = qkv[b, :length].double().permute(1, 2, 0, 3)
        out[b, :length] = attend(q, k, v, call.scalars["scale"]).transpose(0, 1)
    return {"out": Expected(out)}


def encoder_mlp(call: Call) -> dict[str, Expected]:
    """The second projection is rounded before the residual is added."""
    x = call["x"]

    def projected() -> torch.Tensor:
        approximate = "tanh" if call.dims["gelu_tanh"] else "none"
        a = gelu(linear(_normed(call), call["w_up"], call["b_up"]), approximate=approximate)
        return linear(a, call["w_down"], call["b_down"])

    y = rounded(kept(call.tensors, "y", projected), x.dtype)
    return {"out": Expected(y + x.double())}


def _normed(call: Call) -> torch.Tensor:
    if not call.dims["has_pre_norm"]:
        return call["x"].double()
    return layer_norm(call["x"], call["ln_weight"], call["ln_bias"], call.scalars["eps"])
