"""Rotation tables are float32, scaled as the config says, and nothing unknown is ignored."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from runtime.models.rope import Rope, UnsupportedRopeError, cos_sin_table, inverse_frequencies, read_rope

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def read(config: dict[str, Any], head_dim: int = 64) -> Rope:
    base = {"max_position_embeddings": 131072, "rope_theta": 500000.0}
    return read_rope({**base, **config}, head_dim=head_dim, default_theta=1e4, default_partial=1.0, interleaved=False)


@pytest.mark.parametrize(
    "scaling",
    [
        LLAMA3,
        {"rope_type": "linear", "factor": 4.0},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
        {
            "rope_type": "yarn",
            "factor": 40.0,
            "original_max_position_embeddings": 4096,
            "mscale": 1.0,
            "mscale_all_dim": 0.707,
            "beta_fast": 24.0,
            "truncate": False,
        },
    ],
    ids=["llama3", "linear", "yarn", "yarn-mscale"],
)
def test_scaled_frequencies_are_those_of_transformers(scaling: dict[str, Any]) -> None:
    config = LlamaConfig(
        head_dim=64, max_position_embeddings=131072, rope_parameters={"rope_theta": 500000.0, **scaling}
    )
    truth, attention = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](config, torch.device("cpu"))
    rope = read({"rope_scaling": scaling})
    torch.testing.assert_close(inverse_frequencies(rope), truth, rtol=1e-6, atol=0)
    assert rope.attention_factor == pytest.approx(attention)


def test_older_and_newer_spelling_say_the_same() -> None:
    older = read({"rope_theta": 1e6, "rope_scaling": {**LLAMA3, "type": "llama3"}})
    newer = read({"rope_theta": None, "rope_parameters": {"rope_theta": 1e6, **LLAMA3}})
    assert older == newer


@pytest.mark.parametrize("kind", ["longrope", "dynamic", "proportional", "su"])
def test_unknown_types_raise(kind: str) -> None:
    with pytest.raises(UnsupportedRopeError, match=f"rope type '{kind}' is not implemented"):
        read({"rope_scaling": {"type": kind, "factor": 2.0}})


def test_a_rotation_that_differs_by_layer_raises() -> None:
    with pytest.raises(UnsupportedRopeError, match="differ by layer"):
        read({"rope_parameters": {"full_attention": {"rope_type": "default"}}})


@pytest.mark.parametrize("factor", [None, 0, "8"])
def test_a_scaling_without_a_usable_factor_raises(factor: object) -> None:
    with pytest.raises(ValueError, match="needs a positive 'factor'"):
        read({"rope_scaling": {**LLAMA3, "factor": factor}})


def test_several_position_axes_are_the_plain_rotation_for_text() -> None:
    assert read({"rope_scaling": {"type": "mrope", "mrope_section": [16, 8, 8]}}) == read({})


def test_part_of_a_head_rotates() -> None:
    assert read({"partial_rotary_factor": 0.5}).rotary_dim == 32
    with pytest.raises(ValueError, match="rotates 3 elements"):
        read({"partial_rotary_factor": 0.05})


def test_the_table_is_float32_and_exact_far_out() -> None:
    table = cos_sin_table(read({}), 100_000, torch.device("cpu"))
    assert table.dtype == torch.float32
    frequency = 500000.0 ** (-2 / 64)
    position = torch.tensor(99_999.0) * torch.tensor(frequency, dtype=torch.float32)
    assert table[99_999, 1].item() == pytest.approx(position.cos().item(), abs=1e-6)
    assert table[99_999, 33].item() == pytest.approx(position.sin().item(), abs=1e-6)


def test_reading_a_config_changes_nothing_in_it() -> None:
    config = {"rope_parameters": {"rope_theta": 1e4, **LLAMA3}}
    read(config)
    assert config == {"rope_parameters": {"rope_theta": 1e4, **LLAMA3}}
