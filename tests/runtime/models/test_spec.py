"""A config becomes a spec, or one line that says what cannot be run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kb.dtype import DType
from runtime.models.spec import DecoderSpec, ModelError, read_spec, spec_from_config

QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_act": "silu",
    "max_position_embeddings": 40960,
    "max_window_layers": 36,
    "rms_norm_eps": 1e-6,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "use_sliding_window": False,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "vocab_size": 151936,
    "eos_token_id": 151645,
}
MISTRAL = {
    "model_type": "mistral",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 4,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "vocab_size": 32000,
}


def spec(config: dict[str, Any], **changes: Any) -> DecoderSpec:
    return spec_from_config({**config, **changes}, {})


def test_a_config_in_the_older_spelling_is_read() -> None:
    s = spec(QWEN3)
    assert (s.head_dim, s.qk_norm, s.tied_embeddings, s.dtype) == (128, True, True, DType.BFLOAT16)
    assert (s.rope.theta, s.rope.rotary_dim, s.qkv_rows) == (1e6, 128, 48 * 128)
    assert s.layer_windows == (0,) * 36


def test_a_config_in_the_newer_spelling_is_read() -> None:
    newer = {k: v for k, v in QWEN3.items() if k not in ("rope_theta", "rope_scaling", "torch_dtype")}
    newer |= {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}, "dtype": "bfloat16"}
    assert spec_from_config(newer, {}) == spec(QWEN3)


def test_mistral_has_a_window_in_its_first_version_alone() -> None:
    assert spec(MISTRAL, sliding_window=4096).layer_windows == (4096,) * 4
    assert spec(MISTRAL, sliding_window=None).layer_windows == (0,) * 4


def test_a_window_the_config_switches_off_does_not_act() -> None:
    assert set(spec(QWEN3, sliding_window=4096).layer_windows) == {0}
    on = spec(QWEN3, sliding_window=4096, use_sliding_window=True, max_window_layers=30)
    assert on.layer_windows == (0,) * 30 + (4096,) * 6


def test_glm_rotates_half_a_head_in_neighbouring_pairs() -> None:
    glm = {**MISTRAL, "model_type": "glm", "head_dim": 128}
    s = spec_from_config(glm, {})
    assert (s.rope.rotary_dim, s.rope.interleaved, s.qkv_bias, s.o_bias) == (64, True, True, False)
    assert not s.sandwich_norms
    assert spec(glm, model_type="glm4").sandwich_norms


def test_the_text_stack_of_a_vision_model_is_read_from_its_own_section() -> None:
    text = {k: v for k, v in QWEN3.items() if k not in ("model_type", "architectures", "tie_word_embeddings")}
    s = spec_from_config(
        {
            "model_type": "qwen3_vl",
            "architectures": ["Qwen3VLForConditionalGeneration"],
            "text_config": {**text, "rope_scaling": {"rope_type": "default", "mrope_section": [24, 20, 20]}},
            "tie_word_embeddings": True,
        },
        {},
    )
    assert (s.weight_prefix, s.tied_embeddings, s.hidden_size) == ("model.language_model.", True, 2560)


def test_end_of_sequence_ids_are_all_of_those_in_the_generation_config() -> None:
    assert spec_from_config(QWEN3, {"eos_token_id": [151645, 151643]}).eos_token_ids == (151643, 151645)
    assert spec_from_config(QWEN3, {}).eos_token_ids == (151645,)
    assert spec(QWEN3, eos_token_id=None).eos_token_ids == ()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gemma3"}, "model_type 'gemma3' is not supported; glm"),
        ({"model_type": "mamba"}, "is not supported"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "rope type 'longrope' is not implemented"),
        ({"quantization_config": {"bits": 4}}, "quantized"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"torch_dtype": "float8_e4m3fn"}, "dtype 'float8_e4m3fn'"),
        ({"architectures": ["Qwen3ForSequenceClassification"]}, "does not generate text"),
        ({"num_key_value_heads": 5}, "cannot share 5"),
        ({"hidden_size": None}, "hidden_size is None"),
        ({"layer_types": ["linear_attention"] * 36}, "layer type 'linear_attention'"),
        ({"layer_types": ["full_attention"] * 3}, "3 entries for 36 layers"),
    ],
)
def test_what_the_engine_would_compute_wrongly_is_refused(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**QWEN3, **changes}))
    with pytest.raises(ModelError) as caught:
        read_spec(tmp_path)
    line = str(caught.value)
    assert message.split(";")[0] in line
    assert line.startswith(str(tmp_path / "config.json"))
    assert "\n" not in line


def test_a_missing_field_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({k: v for k, v in QWEN3.items() if k != "vocab_size"}))
    with pytest.raises(ModelError, match="field 'vocab_size' is missing"):
        read_spec(tmp_path)


@pytest.mark.parametrize("content", [None, "{", "[]", "\udcff"])
def test_a_config_that_cannot_be_read_is_one_line(content: str | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "config.json").write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(ModelError, match=r"config\.json") as caught:
        read_spec(tmp_path)
    assert "\n" not in str(caught.value)
