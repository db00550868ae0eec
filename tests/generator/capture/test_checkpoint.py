"""Checkpoints from their config alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from generator.capture import CheckpointError, Example, capture_checkpoint
from tests.generator.analyze.models import MODELS


def write(folder: Path, config: object) -> Path:
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def test_a_decoder_is_captured_as_a_decode_step_without_any_weight(tmp_path: Path):
    captured = capture_checkpoint(write(tmp_path, MODELS["llama"]), layers=1, example=Example(batch=3, context=5))
    graph = captured.graph
    assert captured.is_whole
    inputs = {graph.values[value].name: graph.values[value] for value in graph.inputs}
    assert inputs["input_ids"].shape == (3, 1)
    assert [graph.values[value].shape for value in graph.outputs] == [(3,), (3, 2, 6, 16), (3, 2, 6, 16)]
    # Names are the checkpoint's own.
    assert inputs["model.layers.0.mlp.down_proj.weight"].shape == (64, 96)
    assert {node.module for node in graph.nodes} >= {"model.layers.0.mlp", "lm_head"}


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"model_type": "no_such_model"}, "model_type 'no_such_model' is unknown to transformers"),
        ({"hidden_size": 4}, "an object with model_type is needed"),
        ([1], "an object with model_type is needed"),
        (MODELS["llama"] | {"dtype": "float4"}, "dtype 'float4' is no floating-point type"),
        (MODELS["llama"] | {"quantization_config": {"bits": 4}}, "quantized checkpoints are not supported"),
        (MODELS["llama"] | {"num_attention_heads": 0}, "transformers cannot build this model"),
    ],
)
def test_a_config_that_describes_no_model_is_refused_in_one_line(tmp_path: Path, config: object, says: str):
    with pytest.raises(CheckpointError, match=says) as error:
        capture_checkpoint(write(tmp_path, config))
    assert str(error.value).startswith(str(tmp_path / "config.json"))


def test_a_folder_without_a_config_is_refused(tmp_path: Path):
    with pytest.raises(CheckpointError, match=r"config\.json: cannot be read"):
        capture_checkpoint(tmp_path)
