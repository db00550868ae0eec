"""Small randomly initialised checkpoints of every supported family, written by transformers itself."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

VOCAB = 211


@dataclass(frozen=True)
class Shape:
    """A checkpoint to make: transformers' config class, model class, and what differs from the defaults below."""

    config: str
    model: str
    overrides: dict[str, Any]


_SMALL = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,  # not hidden_size / num_attention_heads
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "initializer_range": 0.2,  # wide enough that the two best logits are far apart
    "tie_word_embeddings": False,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
_YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32}
_MROPE = {
    "rope_type": "default",
    "rope_theta": 500000.0,
    "mrope_section": [4, 2, 2],
    "mrope_interleaved": True,
}


def _shape(family: str, **overrides: Any) -> Shape:
    return Shape(f"{family}Config", f"{family}ForCausalLM", overrides)


SHAPES: dict[str, Shape] = {
    "qwen3": _shape("Qwen3", rope_parameters={"rope_type": "default", "rope_theta": 1e6}),
    "qwen3-tied-mha": _shape("Qwen3", tie_word_embeddings=True, num_key_value_heads=6),
    "qwen3-bias-yarn": _shape("Qwen3", attention_bias=True, rope_parameters=_YARN),
    "qwen3-half-windowed": _shape("Qwen3", use_sliding_window=True, sliding_window=9, max_window_layers=1),
    "llama": _shape("Llama", rope_parameters=_LLAMA3),
    "llama-tied-mqa": _shape("Llama", rope_parameters=_LLAMA3, tie_word_embeddings=True, num_key_value_heads=1),
    "llama-linear-bias": _shape(
        "Llama",
        attention_bias=True,
        rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
    ),
    "falcon3": _shape("Llama", head_dim=32, num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=1e-6),
    "mistral-v0.1": _shape("Mistral", sliding_window=13),
    "mistral-v0.3": _shape("Mistral", sliding_window=None, num_key_value_heads=3, head_dim=8),
    "glm": _shape("Glm", num_key_value_heads=2),
    "glm-mqa-no-bias": _shape("Glm", num_key_value_heads=1, attention_bias=False, head_dim=24),
    "glm4": _shape("Glm4"),
    "glm4-tied-mha": _shape("Glm4", num_key_value_heads=6, tie_word_embeddings=True, head_dim=8),
    "qwen3-vl": Shape("Qwen3VLConfig", "Qwen3VLForConditionalGeneration", {"rope_parameters": _MROPE}),
    "qwen3-vl-tied": Shape(
        "Qwen3VLConfig",
        "Qwen3VLForConditionalGeneration",
        {"rope_parameters": _MROPE, "tie_word_embeddings": True, "num_key_value_heads": 3},
    ),
}
_VISION = {
    "depth": 1,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_heads": 2,
    "out_hidden_size": 48,
    "deepstack_visual_indexes": [0],
    "patch_size": 4,
    "num_position_embeddings": 16,
}


def build(name: str, seed: int = 0) -> Any:
    """The transformers model called ``name`` in SHAPES, float32, eager attention, with norms that are not all one."""
    shape = SHAPES[name]
    settings = {**_SMALL, **shape.overrides}
    if shape.config == "Qwen3VLConfig":
        tied = settings.pop("tie_word_embeddings")
        config = transformers.Qwen3VLConfig(text_config=settings, vision_config=_VISION, tie_word_embeddings=tied)
    else:
        config = getattr(transformers, shape.config)(**settings)
    config._attn_implementation = "eager"
    torch.manual_seed(seed)
    model = getattr(transformers, shape.model)(config).eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if "norm" in parameter_name or parameter_name.endswith(".bias"):
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def save(model: Any, folder: Path, **how: Any) -> Path:
    """Write ``model`` as a checkpoint folder."""
    model.save_pretrained(folder, **how)
    return folder


def greedy(model: Any, prompt: list[int], count: int) -> list[int]:
    """Greedy continuation of ``prompt`` by transformers, one token at a time with its cache, never stopping early."""
    with torch.no_grad():
        tokens = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=count,
            min_new_tokens=count,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
    return tokens[0, len(prompt) :].tolist()
