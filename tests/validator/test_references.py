"""The references against what others wrote: transformers' layers and torch's, in float64 where they allow it."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
import torch
from torch.nn import functional

from kb.contract import Contract
from kb.dtype import DType
from kb.library import library_root, load_library
from validator.inputs import CallInputs, allocate_outputs, edge_inputs, make_inputs
from validator.references import Expected, reference
from validator.references.arithmetic import gelu

CONTRACTS = load_library(library_root(None)).contracts


def truth(contract_id: str, dims: Mapping[str, int], inputs: CallInputs) -> dict[str, Expected]:
    return reference(CONTRACTS[contract_id], dims, inputs)


def drawn(contract_id: str, dims: Mapping[str, int], storage: DType = DType.FLOAT32, seed: int = 3) -> CallInputs:
    return make_inputs(CONTRACTS[contract_id], dims, storage, "normal", seed)


def assert_near(got: torch.Tensor, want: torch.Tensor, tolerance: float) -> None:
    assert got.shape == want.shape
    assert torch.isfinite(got).all()
    assert float((got - want.detach()).abs().max()) <= tolerance


def linear64(weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.nn.Linear:
    layer = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(weight)
        if bias is not None:
            layer.bias.copy_(bias)
    return layer


@pytest.mark.parametrize("contract", CONTRACTS.values(), ids=CONTRACTS)
def test_every_written_tensor_gets_a_finite_truth_of_its_shape(contract: Contract) -> None:
    dims = contract.sweep.correctness[1]
    inputs = make_inputs(contract, dims, DType.BFLOAT16, "normal", 0)
    outputs = allocate_outputs(contract, dims, DType.BFLOAT16)
    full = inputs.with_tensors(outputs)
    expected = reference(contract, dims, inputs)
    written = {t.name for t in contract.tensors if t.role != "in" and contract.is_present(t, dims)}
    assert set(expected) == written
    for name, value in expected.items():
        tensor = full.tensors[name]
        assert tensor is not None
        assert value.written(tensor).shape == value.values.shape
        assert value.values.dtype == (torch.float64 if tensor.is_floating_point() else torch.int64)
        assert torch.isfinite(value.values.double()).all()


def test_residual_rmsnorm_rounds_where_llama_does() -> None:
    """In bfloat16 the rounded truth is bit for bit what the model's own norm returns, but for float32 near-ties."""
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    dims = {"num_tokens": 16, "hidden_size": 1024, "has_residual": 1}
    inputs = drawn("residual_rmsnorm", dims, DType.BFLOAT16)
    norm = LlamaRMSNorm(1024, eps=inputs.scalars["eps"]).bfloat16()
    with torch.no_grad():
        norm.weight.copy_(inputs.tensors["weight"])
        want = norm(inputs.tensors["x"] + inputs.tensors["residual"])
    got = truth("residual_rmsnorm", dims, inputs)["out"].values.bfloat16()
    assert float((got == want).double().mean()) > 0.999


@pytest.mark.parametrize("interleaved", [0, 1])
def test_rope_is_llamas_rotation_and_glms(interleaved: int) -> None:
    from transformers.models.glm4.modeling_glm4 import apply_rotary_pos_emb as glm
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb as llama

    dims = {"num_tokens": 5, "num_heads": 4, "num_kv_heads": 2, "head_dim": 64, "max_positions": 128}
    dims |= {"rotary_dim": 32 if interleaved else 64, "rope_interleaved": interleaved}
    inputs = drawn("rope", dims)
    cos, sin = inputs.tensors["cos_sin"][inputs.tensors["positions"].long()].double().chunk(2, dim=-1)
    both = torch.cat((cos, cos), -1)[None], torch.cat((sin, sin), -1)[None]
    q, k = (inputs.tensors[n].double().transpose(0, 1)[None] for n in ("q", "k"))
    want = (glm if interleaved else llama)(q, k, *both)
    for name, rotated in zip(("q", "k"), want, strict=True):
        expected = truth("rope", dims, inputs)[name]
        assert_near(expected.values, expected.written(rotated[0].transpose(0, 1)), 1e-14)


def test_rope_leaves_what_lies_beyond_rotary_dim_out_of_the_truth() -> None:
    dims = {"num_tokens": 2, "num_heads": 2, "num_kv_heads": 1, "head_dim": 16, "rotary_dim": 8}
    dims |= {"rope_interleaved": 1, "max_positions": 9}
    inputs = drawn("rope", dims)
    expected = truth("rope", dims, inputs)["q"]
    before = inputs.tensors["q"]
    after = before.clone()
    after[..., :8] = 7
    assert expected.values.shape == (2, 2, 8)
    assert expected.first_change(before, after) is None
    after[1, 0, 8] += 1
    assert expected.first_change(before, after) == (1, 0, 8)


def test_attention_prelude_is_qwen3s_projection_norm_and_rotation() -> None:
    from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm, apply_rotary_pos_emb

    dims = dict(CONTRACTS["attention_prelude"].sweep.correctness[0]) | {"num_tokens": 3}
    inputs = drawn("attention_prelude", dims)
    tensors = inputs.tensors
    heads = linear64(tensors["w_qkv"])(tensors["x"].double()).view(1, 3, -1, 128).transpose(1, 2)
    q, k, v = heads.split((8, 2, 2), dim=1)
    for name in ("q_norm", "k_norm"):
        norm = Qwen3RMSNorm(128, eps=inputs.scalars["eps"])
        with torch.no_grad():
            norm.weight.copy_(tensors[name])
        q, k = (norm(q), k) if name == "q_norm" else (q, norm(k))
    cos, sin = tensors["cos_sin"][tensors["positions"].long()].double().chunk(2, dim=-1)
    q, k = apply_rotary_pos_emb(
        q.double(), k.double(), torch.cat((cos, cos), -1)[None], torch.cat((sin, sin), -1)[None]
    )
    expected = truth("attention_prelude", dims, inputs)
    for name, want in (("q_out", q), ("k_cache", k), ("v_cache", v)):
        assert_near(expected[name].values, want[0].transpose(0, 1), 2e-6)  # the norm computes in float32
    assert expected["k_cache"].rows.tolist() == tensors["slot_mapping"].tolist()


def test_gated_mlp_is_llamas() -> None:
    from transformers.models.llama.modeling_llama import LlamaConfig, LlamaMLP

    up = {"num_tokens": 3, "hidden_size": 64, "intermediate_size": 96}
    first = drawn("gated_mlp_up", up)
    mlp = LlamaMLP(LlamaConfig(hidden_size=64, intermediate_size=96)).double()
    second = drawn("gated_mlp_down", up)
    gate, upper = first.tensors["w_gate_up"].double().chunk(2)
    with torch.no_grad():
        mlp.gate_proj.weight.copy_(gate)
        mlp.up_proj.weight.copy_(upper)
        mlp.down_proj.weight.copy_(second.tensors["w_down"])
        want = mlp(first.tensors["x"].double())
        assert_near(mlp.down_proj(truth("gated_mlp_up", up, first)["out"].values), want, 1e-14)
        activated = torch.randn(3, 96)
        residual = second.tensors["residual"].double()
        got = truth("gated_mlp_down", up, second.with_tensors({"x": activated}))["residual"].values
        assert_near(got, residual + mlp.down_proj(activated.double()), 1e-6)


def test_o_proj_residual_rmsnorm_is_a_projection_followed_by_residual_rmsnorm() -> None:
    dims = {"num_tokens": 4, "hidden_size": 128, "in_features": 64}
    inputs = drawn("o_proj_residual_rmsnorm", dims, DType.FLOAT16)
    y = linear64(inputs.tensors["w_o"])(inputs.tensors["attn"].double()).detach().half()
    norm = CallInputs(
        {"x": y, "residual": inputs.tensors["residual"], "weight": inputs.tensors["weight"]}, inputs.scalars
    )
    want = truth("residual_rmsnorm", {"num_tokens": 4, "hidden_size": 128, "has_residual": 1}, norm)
    got = truth("o_proj_residual_rmsnorm", dims, inputs)
    for name in ("out", "residual"):
        assert torch.equal(got[name].values, want[name].values)


def test_a_binding_rounding_point_changes_the_truth() -> None:
    dims = {"num_tokens": 4, "hidden_size": 64, "intermediate_size": 512}
    inputs = drawn("gated_mlp_down", dims, DType.BFLOAT16)
    tensors = inputs.tensors
    unrounded = tensors["residual"].double() + tensors["x"].double() @ tensors["w_down"].double().t()
    got = truth("gated_mlp_down", dims, inputs)["residual"].values
    assert 1e-4 < float((got - unrounded).abs().max()) < 1e-1


@pytest.mark.parametrize("window", [0, 5])
def test_paged_attention_is_sdpa_over_the_gathered_tokens(window: int) -> None:
    dims = {"num_tokens": 4, "num_heads": 6, "num_kv_heads": 2, "head_dim": 16, "block_size": 4}
    dims |= {"sliding_window": window, "num_blocks": 40, "max_blocks_per_seq": 7, "context_len": 26}
    inputs = drawn("paged_decode_attention", dims)
    tensors, got = inputs.tensors, truth("paged_decode_attention", dims, inputs)["out"].values
    for t in range(4):
        length = int(tensors["seq_lens"][t])
        tokens = range(max(0, length - window) if window else 0, length)
        rows = [(int(tensors["block_table"][t, j // 4]), j % 4) for j in tokens]
        k, v = (
            torch.stack([tensors[name][b, o] for b, o in rows]).double().transpose(0, 1)[None]
            for name in ("k_cache", "v_cache")
        )
        q = tensors["q"][t].double()[None, :, None]
        want = functional.scaled_dot_product_attention(q, k, v, scale=inputs.scalars["scale"], enable_gqa=True)
        assert_near(got[t], want[0, :, 0], 1e-13)


def test_lm_head_takes_the_lowest_of_equal_logits_and_shows_them_all() -> None:
    contract = CONTRACTS["lm_head_argmax"]
    dims = {"num_tokens": 3, "hidden_size": 64, "vocab_size": 211}
    cases = dict(edge_inputs(contract, dims, DType.BFLOAT16, 1))
    ties = truth("lm_head_argmax", dims, cases["exact ties far apart"])
    assert ties["out_ids"].values.tolist() == [211 // 7] * 3
    scores = ties["out_ids"].scores
    assert scores is not None
    assert torch.equal(scores[:, 211 // 7], scores[:, 210])
    assert truth("lm_head_argmax", dims, cases["all logits equal gives index 0"])["out_ids"].values.tolist() == [0] * 3
    last = truth("lm_head_argmax", dims, cases["the largest logit is in the last row"])
    assert last["out_ids"].values.tolist() == [210] * 3
    negative = truth("lm_head_argmax", dims, cases["all logits negative"])
    assert bool((negative["out_max"].values < 0).all())


def test_kv_append_names_the_rows_it_writes_and_ignores_shared_ones() -> None:
    dims = {"num_tokens": 4, "num_kv_heads": 1, "head_dim": 8, "block_size": 4, "num_blocks": 3}
    inputs = drawn("kv_append", dims)
    slots = torch.tensor([9, 2, 11, 11], dtype=torch.int32)  # two padding rows share slot 11
    expected = truth("kv_append", dims, inputs.with_tensors({"slot_mapping": slots}))["k_cache"]
    before = inputs.tensors["k_cache"]
    after = before.clone()
    flat = after.flatten(0, 1)
    flat[9], flat[2], flat[11] = inputs.tensors["k"][0], inputs.tensors["k"][1], 5
    assert torch.equal(expected.written(after).double(), expected.values)
    assert expected.first_change(before, after) is None
    flat[3, 0, 7] = 1
    assert expected.first_change(before, after) == (0, 3, 0, 7)


def test_an_encoder_layer_of_torch_is_the_three_encoder_contracts() -> None:
    """torch.nn.TransformerEncoderLayer, pre-norm and GELU, in float64; the padded rows of the batch are masked."""
    batch, length, heads, width, inner = 2, 9, 4, 16, 96
    hidden = heads * width
    tokens = {"num_tokens": batch * length, "hidden_size": hidden, "has_pre_norm": 1}
    qkv_dims = tokens | {"num_heads": heads, "head_dim": width}
    mlp_dims = tokens | {"intermediate_size": inner, "gelu_tanh": 0}
    attention_dims = {"batch_size": batch, "seq_len": length, "num_heads": heads, "head_dim": width}
    first, last = drawn("encoder_qkv", qkv_dims), drawn("encoder_mlp", mlp_dims)
    lengths = torch.tensor([9, 5], dtype=torch.int32)
    layer = torch.nn.TransformerEncoderLayer(
        hidden, heads, inner, 0.0, "gelu", 1e-12, batch_first=True, norm_first=True, dtype=torch.float64
    )
    w_out = torch.randn(hidden, hidden) / 8
    values = {
        "norm1.weight": first.tensors["ln_weight"],
        "norm1.bias": first.tensors["ln_bias"],
        "self_attn.in_proj_weight": first.tensors["w_qkv"],
        "self_attn.in_proj_bias": first.tensors["b_qkv"],
        "self_attn.out_proj.weight": w_out,
        "self_attn.out_proj.bias": torch.zeros(hidden),
        "norm2.weight": last.tensors["ln_weight"],
        "norm2.bias": last.tensors["ln_bias"],
        "linear1.weight": last.tensors["w_up"],
        "linear1.bias": last.tensors["b_up"],
        "linear2.weight": last.tensors["w_down"],
        "linear2.bias": last.tensors["b_down"],
    }
    layer.load_state_dict({name: value.double() for name, value in values.items()})
    padding = torch.arange(length) >= lengths[:, None]
    x = first.tensors["x"]
    # Training mode (without dropout) keeps torch off its own fused path, which skips padding.
    want = layer.train()(x.double().view(batch, length, hidden), src_key_padding_mask=padding)

    qkv = truth("encoder_qkv", qkv_dims, first)["qkv"].values
    scale = {"scale": width**-0.5}
    attention = CallInputs({"qkv": qkv.view(batch, length, 3, heads, width), "seq_lens": lengths}, scale)
    out = truth("encoder_attention", attention_dims, attention)["out"].values
    assert bool((out[1, 5:] == 0).all())
    between = (x.double() + out.view(-1, hidden) @ w_out.double().t()).float()
    got = truth("encoder_mlp", mlp_dims, last.with_tensors({"x": between}))["out"].values
    real = ~padding.view(-1)
    assert_near(got[real], want.detach().view(-1, hidden)[real], 3e-6)


def test_bert_feeds_forward_as_encoder_mlp_without_its_norm() -> None:
    from transformers.models.bert.modeling_bert import BertConfig, BertIntermediate, BertOutput

    dims = {"num_tokens": 5, "hidden_size": 32, "intermediate_size": 64, "has_pre_norm": 0, "gelu_tanh": 1}
    inputs = drawn("encoder_mlp", dims)
    config = BertConfig(hidden_size=32, intermediate_size=64, hidden_act="gelu_pytorch_tanh", hidden_dropout_prob=0.0)
    up, down = BertIntermediate(config).double(), BertOutput(config).double()
    with torch.no_grad():
        up.dense.weight.copy_(inputs.tensors["w_up"])
        up.dense.bias.copy_(inputs.tensors["b_up"])
        down.dense.weight.copy_(inputs.tensors["w_down"])
        down.dense.bias.copy_(inputs.tensors["b_down"])
        x = inputs.tensors["x"].double()
        want = down.dense(up(x)) + x
    assert_near(truth("encoder_mlp", dims, inputs)["out"].values, want, 1e-6)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_keeps_its_digits_in_the_tail(approximate: str) -> None:
    """One plus erf and one plus tanh are exactly zero there, and what is right would differ from that by everything."""
    x = torch.tensor([-10.0, -1.0, 0.0, 2.0], dtype=torch.float64)
    found = gelu(x, approximate=approximate)
    assert_near(found[1:], torch.nn.functional.gelu(x, approximate=approximate)[1:], 1e-15)
    u = math.sqrt(2 / math.pi) * (-10 - 44.715)
    want = -5 * math.erfc(10 / math.sqrt(2)) if approximate == "none" else -10 / (1 + math.exp(-2 * u))
    assert float(found[0]) == pytest.approx(want, rel=1e-12, abs=0)


def test_an_unknown_reference_is_named() -> None:
    contract = CONTRACTS["rope"]
    numerics = contract.numerics.model_copy(update={"reference": "roap"})
    dims = contract.sweep.correctness[0]
    inputs = drawn("rope", dims)
    with pytest.raises(ValueError, match="no reference is called 'roap'"):
        reference(contract.model_copy(update={"numerics": numerics}), dims, inputs)
