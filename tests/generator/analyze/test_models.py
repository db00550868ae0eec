"""The patterns of every contract in small random models of every family, and the whole report of each as a file.

Names of nodes and lines of source are those of one version of torch and transformers, so the files hold for the
versions they name; what is found where, with which dims, holds for every version. With UPDATE_SNAPSHOTS=1 in the
environment this writes the files anew.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest
import torch
import transformers

from generator.analyze import Analysis, analyze, patterns_of_checkpoint, report, report_data
from generator.analyze.analyzer import own_contracts
from generator.capture import Capture, capture_config
from kb.contract import DimKind
from tests.generator.analyze.models import DECODERS, ENCODERS, MODELS

GOLDENS = Path(__file__).with_name("goldens")
VERSIONS = f"torch {torch.__version__.split('+')[0]}, transformers {transformers.__version__}"
CONTRACTS = own_contracts()

_STEP = {"num_tokens": 1, "hidden_size": 64}
_HEADS = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 16}
_WIDE = {"num_heads": 2, "num_kv_heads": 1, "head_dim": 32}
_PLAIN = {"has_qkv_bias": 0, "has_qk_norm": 0, "rope_interleaved": 0}
# What each decoder differs in; everything else is the same decode step.
PRELUDES: Mapping[str, Mapping[str, int]] = {
    "qwen3": _HEADS | _PLAIN | {"rotary_dim": 16, "has_qk_norm": 1},
    "llama": _HEADS | _PLAIN | {"rotary_dim": 16},
    "falcon3": _WIDE | _PLAIN | {"rotary_dim": 32},
    "mistral": _HEADS | _PLAIN | {"rotary_dim": 16},
    "glm": _HEADS | _PLAIN | {"rotary_dim": 8, "has_qkv_bias": 1, "rope_interleaved": 1},
    "glm4": _HEADS | _PLAIN | {"rotary_dim": 8, "has_qkv_bias": 1, "rope_interleaved": 1},
    "qwen3_vl": _HEADS | _PLAIN | {"rotary_dim": 16, "has_qk_norm": 1},
}
SANDWICHED = ("glm4",)  # attention and MLP outputs are normalised before they are added
ENCODER_TOKENS = {"bert": 16, "vit": 17, "siglip": 16}


@cache
def captured(name: str) -> Capture:
    return capture_config(MODELS[name], layers=1)


@cache
def analysis(name: str) -> Analysis:
    return analyze(captured(name).graph, CONTRACTS)


def dims(name: str, contract: str) -> list[dict[str, int]]:
    return [dict(match.dims) for match in analysis(name).pattern(contract).found]


def reasons(name: str, contract: str) -> list[str]:
    return [skip.reason for skip in analysis(name).pattern(contract).skipped]


@pytest.mark.parametrize("name", MODELS)
def test_the_report_is_the_recorded_one(name: str):
    path = GOLDENS / f"{name}.md"
    text = f"<!-- {VERSIONS} -->\n\n" + report(analysis(name), captured(name).graph, title=name)
    if os.environ.get("UPDATE_SNAPSHOTS"):
        GOLDENS.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert path.exists(), f"{path} is missing; UPDATE_SNAPSHOTS=1 writes it"
    recorded = path.read_text(encoding="utf-8")
    if not recorded.startswith(f"<!-- {VERSIONS} -->"):
        pytest.skip(f"recorded with {recorded.splitlines()[0]}, here is {VERSIONS}")
    assert text == recorded, f"{path} differs; look at it, then UPDATE_SNAPSHOTS=1"


def test_every_recorded_report_has_its_model():
    assert {path.stem for path in GOLDENS.glob("*.md")} == set(MODELS)


@pytest.mark.parametrize("name", MODELS)
def test_models_are_captured_whole(name: str):
    assert captured(name).is_whole
    assert captured(name).problems == ()


@pytest.mark.parametrize("name", MODELS)
def test_every_contract_is_found_or_skipped_with_a_reason(name: str):
    results = analysis(name).patterns
    assert {result.contract for result in results} == set(CONTRACTS)
    for result in results:
        assert result.found or result.skipped
        assert all(skip.reason for skip in result.skipped)
        for match in result.found:
            contract = CONTRACTS[result.contract]
            assert list(match.dims) == list(contract.dims_of(DimKind.STATIC, DimKind.FLAG))
            assert set(match.nodes) <= {node.id for node in captured(name).graph.nodes}


@pytest.mark.parametrize("name", DECODERS)
def test_the_attention_of_every_decoder_is_found_with_its_dims(name: str):
    heads = {key: PRELUDES[name][key] for key in ("num_heads", "num_kv_heads", "head_dim")}
    assert dims(name, "attention_prelude") == [_STEP | {"block_size": 16} | PRELUDES[name]]
    rotation = {key: PRELUDES[name][key] for key in ("rotary_dim", "rope_interleaved")}
    assert dims(name, "rope") == [{"num_tokens": 1} | heads | rotation]
    assert dims(name, "kv_append") == [
        {"num_tokens": 1, "num_kv_heads": heads["num_kv_heads"], "head_dim": heads["head_dim"], "block_size": 16}
    ]
    window = 8 if name == "mistral" else 0
    expected = {"num_tokens": 1, "block_size": 16, "sliding_window": window} | heads
    assert dims(name, "paged_decode_attention") == [expected]
    for contract in ("attention_prelude", "kv_append", "paged_decode_attention"):
        assert [match.assumed for match in analysis(name).pattern(contract).found] == [("block_size",)]


@pytest.mark.parametrize("name", DECODERS)
def test_the_residual_stream_and_mlp_of_every_decoder_are_found_or_skipped_for_their_norms(name: str):
    sandwiched = name in SANDWICHED
    assert dims(name, "gated_mlp_up") == [_STEP | {"intermediate_size": 96}]
    assert dims(name, "gated_mlp_down") == [] if sandwiched else [_STEP | {"intermediate_size": 96}]
    assert dims(name, "o_proj_residual_rmsnorm") == ([] if sandwiched else [_STEP | {"in_features": 64}])
    for contract in ("gated_mlp_down", "o_proj_residual_rmsnorm"):
        assert all("single-user: the projection is normalised" in reason for reason in reasons(name, contract))
        assert len(reasons(name, contract)) == sandwiched
    norms = [found["has_residual"] for found in dims(name, "residual_rmsnorm")]
    assert norms == ([0, 0, 1, 0, 1] if sandwiched else [0, 1, 1])
    heads = [reason for reason in reasons(name, "residual_rmsnorm") if "normalises heads of 16" in reason]
    assert len(heads) == 2 * PRELUDES[name]["has_qk_norm"]


@pytest.mark.parametrize("name", DECODERS)
def test_the_head_of_every_decoder_is_found_and_no_encoder_pattern_is(name: str):
    assert dims(name, "lm_head_argmax") == [_STEP | {"vocab_size": 256}]
    (head,) = analysis(name).pattern("lm_head_argmax").found
    assert ("the weight is also the embedding table" in head.notes) == (name == "qwen3")
    for contract in ("encoder_qkv", "encoder_attention"):
        assert reasons(name, contract) == ["bidirectional: keys and values are cached, as a decoder's are"]
    assert len(reasons(name, "encoder_mlp")) == 1


@pytest.mark.parametrize("name", ENCODERS)
def test_the_layers_of_every_encoder_are_found_with_their_dims(name: str):
    tokens, pre_norm = ENCODER_TOKENS[name], int(name != "bert")
    rows = {"num_tokens": tokens, "hidden_size": 64}
    heads = {"num_heads": 4, "head_dim": 16}
    assert dims(name, "encoder_qkv") == [rows | heads | {"has_pre_norm": pre_norm}]
    assert dims(name, "encoder_attention") == [{"batch_size": 1, "seq_len": tokens} | heads]
    tanh = int(name == "siglip")
    assert dims(name, "encoder_mlp") == [rows | {"intermediate_size": 96, "has_pre_norm": pre_norm, "gelu_tanh": tanh}]
    storage = "float16" if name == "siglip" else "float32"
    assert {match.storage for match in analysis(name).pattern("encoder_mlp").found} == {storage}


@pytest.mark.parametrize("name", ENCODERS)
def test_no_decoder_pattern_is_found_in_an_encoder(name: str):
    for contract in sorted(set(CONTRACTS) - {"encoder_qkv", "encoder_attention", "encoder_mlp"}):
        assert dims(name, contract) == []
        assert reasons(name, contract)


def test_a_folder_with_only_a_config_is_enough_and_layers_of_every_kind_are_looked_at(tmp_path: Path):
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    mixed = {"num_hidden_layers": 3, "layer_types": kinds, "sliding_window": 8, "use_sliding_window": True}
    (tmp_path / "config.json").write_text(json.dumps(MODELS["qwen3"] | mixed), encoding="utf-8")
    results = {result.contract: result.found for result in patterns_of_checkpoint(tmp_path, contracts=CONTRACTS)}
    decode = results["paged_decode_attention"]
    assert [match.dims["sliding_window"] for match in decode] == [8, 0]
    assert [match.module for match in decode] == ["model.layers.0.self_attn", "model.layers.1.self_attn"]
    assert [match.module for match in results["gated_mlp_up"]] == ["model.layers.0.mlp", "model.layers.1.mlp"]


def test_the_report_as_data_is_json_and_says_the_same():
    data = json.loads(json.dumps(report_data(analysis("qwen3"), captured("qwen3").graph)))
    assert data["nodes"] == len(captured("qwen3").graph.nodes)
    assert [item["contract"] for item in data["patterns"]] == [r.contract for r in analysis("qwen3").patterns]
    assert sum(len(region["nodes"]) for region in data["regions"]) == data["nodes"]
    prelude = next(item for item in data["patterns"] if item["contract"] == "attention_prelude")
    assert prelude["found"][0]["dims"]["has_qk_norm"] == 1


@pytest.mark.parametrize("name", ["qwen3", "glm4", "vit"])
def test_each_norm_rotation_and_projection_is_one_region(name: str):
    found = analysis(name)
    categories = [region.category.value for region in found.regions]
    norms = {"qwen3": 5, "glm4": 5, "vit": 3}[name]
    assert categories.count("norm") == norms
    assert categories.count("rotary") == (2 if name in DECODERS else 0)
    assert categories.count("attention") == 1
    products = {"qwen3": 8, "glm4": 7, "vit": 6}[name]
    assert categories.count("gemv" if name in DECODERS else "gemm") == products
    labels = [region.label for region in found.regions]
    assert "linear + gelu" in labels if name == "vit" else any("silu" in label for label in labels)
