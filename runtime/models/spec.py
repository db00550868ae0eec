"""The typed description of a decoder, read from a checkpoint's ``config.json``.

Everything the engine branches on is a field here; nothing after this file reads a config. A config that asks for
something the engine does not implement ends here, with one line, before any memory is allocated.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kb.dtype import DType
from runtime.models.rope import Rope, UnsupportedRopeError, read_rope


class ModelError(ValueError):
    """A checkpoint that cannot be run: what is wrong, in which file, and what to do."""


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """One decoder-only transformer.

    ``layer_windows``: tokens each layer's attention sees, 0 for all. ``sandwich_norms``: attention and MLP outputs
    are normalised once more before they are added to the residual (GLM-4-0414). ``fused_gate_up``: the checkpoint
    already stores gate and up rows in one tensor. ``weight_prefix``: where the decoder's tensors sit in the
    checkpoint; ``ignored_prefixes``: tensors of parts this engine does not run. ``eos_token_ids``: all of them.
    """

    family: str
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    rms_norm_eps: float
    rope: Rope
    max_position_embeddings: int
    qk_norm: bool
    qkv_bias: bool
    o_bias: bool
    tied_embeddings: bool
    layer_windows: tuple[int, ...]
    sandwich_norms: bool
    fused_gate_up: bool
    weight_prefix: str
    ignored_prefixes: tuple[str, ...]
    dtype: DType
    eos_token_ids: tuple[int, ...]

    @property
    def scale(self) -> float:
        """Softmax scale."""
        return float(self.head_dim**-0.5)

    @property
    def qkv_rows(self) -> int:
        """Rows of the joint projection: query, key and value heads."""
        return (self.num_heads + 2 * self.num_kv_heads) * self.head_dim

    def kv_bytes_per_token(self, itemsize: int) -> int:
        """Bytes one token's keys and values take in all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * itemsize


@dataclass(frozen=True, slots=True)
class _Family:
    """What a model type fixes that its config does not say."""

    qk_norm: bool = False
    interleaved: bool = False
    partial_rotary: float = 1.0
    theta: float = 10_000.0
    sandwich_norms: bool = False
    fused_gate_up: bool = False
    attention_bias: bool = False
    o_follows_bias: bool = True  # o_proj has a bias where the joint projection has one
    default_window: int | None = None
    windows_are_opt_in: bool = False  # `use_sliding_window` must be true
    weight_prefix: str = "model."
    ignored_prefixes: tuple[str, ...] = ()


_GLM = _Family(interleaved=True, partial_rotary=0.5, fused_gate_up=True, attention_bias=True, o_follows_bias=False)
_FAMILIES: dict[str, _Family] = {
    "qwen3": _Family(qk_norm=True, windows_are_opt_in=True),
    "llama": _Family(),
    "mistral": _Family(default_window=4096, o_follows_bias=False),
    "glm": _GLM,
    "glm4": replace(_GLM, sandwich_norms=True),
    "qwen3_vl": _Family(
        qk_norm=True,
        theta=500_000.0,
        weight_prefix="model.language_model.",
        ignored_prefixes=("model.visual.",),
    ),
}


def read_spec(model_dir: Path) -> DecoderSpec:
    """Spec of the checkpoint in ``model_dir``. Raises ModelError with one line that names the file and the field."""
    path = model_dir / "config.json"
    config = _read_json(path)
    generation = model_dir / "generation_config.json"
    try:
        return spec_from_config(config, _read_json(generation) if generation.exists() else {})
    except (ModelError, UnsupportedRopeError) as error:
        raise ModelError(f"{path}: {error}") from None
    except (KeyError, TypeError, ValueError) as error:
        text = f"field {error} is missing" if isinstance(error, KeyError) else str(error)
        raise ModelError(f"{path}: {text}") from None


def spec_from_config(config: Mapping[str, Any], generation: Mapping[str, Any]) -> DecoderSpec:
    """Spec described by a parsed ``config.json`` and ``generation_config.json``.

    Raises ModelError, UnsupportedRopeError, KeyError (a missing field) or ValueError (one that makes no sense).
    """
    family_name = str(config.get("model_type"))
    family = _FAMILIES.get(family_name)
    if family is None:
        known = ", ".join(sorted(_FAMILIES))
        raise ModelError(f"model_type '{family_name}' is not supported; {known} are")
    text: Mapping[str, Any] = config.get("text_config", config)
    _refuse(config, text)
    hidden_size, num_heads = _size(text, "hidden_size"), _size(text, "num_attention_heads")
    num_kv_heads = int(text.get("num_key_value_heads") or num_heads)
    head_dim = int(text.get("head_dim") or hidden_size // num_heads)
    if num_heads % num_kv_heads:
        raise ModelError(f"{num_heads} query heads cannot share {num_kv_heads} key and value heads evenly")
    num_layers = _size(text, "num_hidden_layers")
    bias = bool(text.get("attention_bias", family.attention_bias))
    return DecoderSpec(
        family=family_name,
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        intermediate_size=_size(text, "intermediate_size"),
        vocab_size=_size(text, "vocab_size"),
        rms_norm_eps=float(text["rms_norm_eps"]),
        rope=read_rope(
            text,
            head_dim=head_dim,
            default_theta=family.theta,
            default_partial=family.partial_rotary,
            interleaved=family.interleaved,
        ),
        max_position_embeddings=_size(text, "max_position_embeddings"),
        qk_norm=family.qk_norm,
        qkv_bias=bias,
        o_bias=bias and family.o_follows_bias,
        tied_embeddings=bool(config.get("tie_word_embeddings", text.get("tie_word_embeddings", False))),
        layer_windows=_windows(text, family, num_layers),
        sandwich_norms=family.sandwich_norms,
        fused_gate_up=family.fused_gate_up,
        weight_prefix=family.weight_prefix,
        ignored_prefixes=family.ignored_prefixes,
        dtype=_dtype(config, text),
        eos_token_ids=_eos(config, text, generation),
    )


def _refuse(config: Mapping[str, Any], text: Mapping[str, Any]) -> None:
    """Raise ModelError for what the engine would otherwise compute wrongly."""
    architectures = config.get("architectures") or []
    if architectures and not any(str(a).endswith(("ForCausalLM", "ForConditionalGeneration")) for a in architectures):
        raise ModelError(f"architecture {architectures[0]} does not generate text")
    if config.get("quantization_config") or text.get("quantization_config"):
        raise ModelError("quantized checkpoints are not supported; use the bfloat16 or float16 one")
    if text.get("hidden_act", "silu") not in ("silu", "swish"):
        raise ModelError(f"hidden_act '{text['hidden_act']}' is not supported; silu is")
    if text.get("mlp_bias"):
        raise ModelError("mlp_bias is not supported")


def _windows(text: Mapping[str, Any], family: _Family, num_layers: int) -> tuple[int, ...]:
    window = text.get("sliding_window", family.default_window)
    if family.windows_are_opt_in and not text.get("use_sliding_window"):
        window = None
    size = int(window or 0)
    kinds = text.get("layer_types")
    if kinds is None:
        first = int(text.get("max_window_layers", 28)) if family.windows_are_opt_in else 0
        return tuple(size if layer >= first else 0 for layer in range(num_layers))
    unknown = sorted(set(kinds) - {"full_attention", "sliding_attention"})
    if unknown:
        raise ModelError(f"layer type '{unknown[0]}' is not supported; full and sliding attention are")
    if len(kinds) != num_layers:
        raise ModelError(f"layer_types has {len(kinds)} entries for {num_layers} layers")
    if family.default_window is not None:  # one window for all layers, whatever layer_types says
        return (size,) * num_layers
    return tuple(size if kind == "sliding_attention" else 0 for kind in kinds)


def _dtype(config: Mapping[str, Any], text: Mapping[str, Any]) -> DType:
    names = (section.get(key) for section in (config, text) for key in ("dtype", "torch_dtype"))
    name = next((str(n).removeprefix("torch.") for n in names if n), "float32")
    if name not in ("bfloat16", "float16", "float32"):
        raise ModelError(f"dtype '{name}' is not supported; bfloat16, float16 and float32 are")
    return DType(name)


def _eos(config: Mapping[str, Any], text: Mapping[str, Any], generation: Mapping[str, Any]) -> tuple[int, ...]:
    """All ids of the generation config; only without one does the model config decide."""
    for section in (generation, config, text):
        ids = section.get("eos_token_id")
        if ids is not None:
            return tuple(sorted({ids} if isinstance(ids, int) else {int(i) for i in ids}))
    return ()


def _size(config: Mapping[str, Any], key: str) -> int:
    value = config[key]
    if not isinstance(value, int) or value < 1:
        raise ModelError(f"{key} is {value!r}; a positive integer is needed")
    return value


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror}); name a folder with a checkpoint") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ModelError(f"{path}: not JSON ({error})") from None
    if not isinstance(value, dict):
        raise ModelError(f"{path}: an object is needed")
    return value
