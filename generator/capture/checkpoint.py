"""Capturing a checkpoint from its ``config.json`` alone: the model is built without memory and no weight is read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from generator.capture.call import Capture, capture

# A stack whose kinds of layer have not all come up by then shows only those that have.
_MOST_LAYERS = 8


class CheckpointError(ValueError):
    """A folder that describes no model that can be built: what is wrong, where, and what to do."""


@dataclass(frozen=True, slots=True)
class Example:
    """Sizes of the example call of a checkpoint."""

    batch: int = 1
    context: int = 16  # tokens cached before a decode step; one more than a sliding window, where that is more
    length: int = 16  # tokens of an encoder's sequence


def capture_checkpoint(model_dir: Path, *, layers: int | None = 1, example: Example | None = None) -> Capture:
    """The graph of a decode step of a decoder, or of a forward of an encoder, of the checkpoint in ``model_dir``.

    ``layers`` keeps the first layers of each stack, and more where its kinds of layer differ until there is one of each
    kind; None keeps all. A decode step reads one token a sequence, a cache that
    holds ``context`` tokens, and ends in the index of the largest score; an encoder reads ``length`` tokens a
    sequence, or one image. Raises CheckpointError when the folder has no config that transformers can build.
    """
    return capture_config(read_config(model_dir), layers=layers, example=example or Example(), where=model_dir)


def capture_config(
    config: Mapping[str, Any], *, layers: int | None = 1, example: Example | None = None, where: Path | None = None
) -> Capture:
    """As ``capture_checkpoint``, from a parsed config. Raises CheckpointError."""
    size = example or Example()
    try:
        model, is_decoder = _build(_shortened(dict(config), layers))
    except Exception as error:  # a config may fail anywhere in the code of its family
        place = where / "config.json" if where is not None else "the config"
        text = " ".join(str(error).split()) or type(error).__name__
        raise CheckpointError(f"{place}: transformers cannot build this model: {text}") from None
    if is_decoder:
        return capture(DecodeStep(model), _decode_inputs(model, size), prefix="model.")
    return capture(EncoderForward(model), _encoder_inputs(model, size), prefix="model.")


def read_config(model_dir: Path) -> dict[str, Any]:
    """The parsed ``config.json``. Raises CheckpointError."""
    path = model_dir / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror}); name a folder with a checkpoint") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path}: not JSON ({error})") from None
    if not isinstance(config, dict) or "model_type" not in config:
        raise CheckpointError(f"{path}: an object with model_type is needed")
    return config


class DecodeStep(torch.nn.Module):
    """One greedy decode step over a cache that grows by concatenation.

    ``input_ids`` and ``position_ids`` [batch, 1] (position ids may have leading axes, as multimodal rotary embeddings
    want), ``past`` a list of (keys, values), each [batch, kv heads, context, head_dim]. Returns the next ids [batch]
    and the grown keys and values.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, input_ids: torch.Tensor, position_ids: torch.Tensor, past: list[tuple[torch.Tensor, torch.Tensor]]
    ) -> tuple[torch.Tensor, list[tuple[torch.Tensor, torch.Tensor]]]:
        """See the class."""
        from transformers import cache_utils

        caches: Any = cache_utils  # its layers are untyped
        cache = caches.DynamicCache()
        for keys, values in past:
            layer = caches.DynamicLayer()
            layer.lazy_initialization(keys, values)
            layer.keys, layer.values = keys, values
            cache.layers.append(layer)
        out = self.model(input_ids=input_ids, position_ids=position_ids, past_key_values=cache, use_cache=True)
        return out.logits[:, -1].argmax(-1), [(layer.keys, layer.values) for layer in cache.layers]


class EncoderForward(torch.nn.Module):
    """The last hidden state of an encoder, of token ids [batch, length] or of pixels [batch, channels, rows, cols]."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        """See the class."""
        hidden: torch.Tensor = self.model(given)[0]
        return hidden


def _shortened(config: dict[str, Any], layers: int | None) -> dict[str, Any]:
    """The config with this many layers in every stack, text and vision alike, or as many as show each kind of layer."""
    if layers is None:
        return config
    kinds = config.get("layer_types")
    if isinstance(kinds, list) and kinds:
        layers = max(layers, min(max(kinds.index(kind) for kind in kinds) + 1, _MOST_LAYERS))
    short: dict[str, Any] = {}
    for key, value in config.items():
        if key in ("num_hidden_layers", "n_layers", "n_layer", "depth") and isinstance(value, int):
            short[key] = min(value, layers)
        elif key == "layer_types" and isinstance(value, list):
            short[key] = value[:layers]
        elif key == "deepstack_visual_indexes":
            short[key] = [0]
        elif key.endswith("_config") and isinstance(value, Mapping) and key != "quantization_config":
            short[key] = _shortened(dict(value), layers)
        else:
            short[key] = value
    return short


def _build(config: dict[str, Any]) -> tuple[torch.nn.Module, bool]:
    """The model on the meta device, and whether it generates text."""
    import transformers

    kind = str(config["model_type"])
    if kind not in transformers.CONFIG_MAPPING:
        raise ValueError(f"model_type '{kind}' is unknown to transformers {transformers.__version__}")
    if config.get("quantization_config"):
        raise ValueError("quantized checkpoints are not supported; use the bfloat16 or float16 one")
    dtype = _dtype(config)
    settings = transformers.CONFIG_MAPPING[kind].from_dict(config)
    names = [str(name) for name in config.get("architectures") or ()]
    named = getattr(transformers, names[0], None) if names else None
    generates = (
        names[0].endswith(("ForCausalLM", "ForConditionalGeneration", "LMHeadModel")) if names else _is_causal(settings)
    )
    if named is None:
        named = transformers.AutoModelForCausalLM if generates else transformers.AutoModel
    build = getattr(named, "_from_config", None) or named.from_config
    with torch.device("meta"):
        try:
            model = build(settings, dtype=dtype, attn_implementation="sdpa")
        except (ValueError, ImportError):  # some models bias their scores in a way that the operator cannot
            model = build(settings, dtype=dtype, attn_implementation="eager")
    return model.eval(), generates


def _is_causal(settings: Any) -> bool:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as GENERATING
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES as ENCODING

    kind = settings.model_type
    return kind in GENERATING and (kind not in ENCODING or bool(getattr(settings, "is_decoder", False)))


def _dtype(config: Mapping[str, Any]) -> torch.dtype:
    sections = [config, *(v for k, v in config.items() if k == "text_config" and isinstance(v, Mapping))]
    names = (section.get(key) for section in sections for key in ("dtype", "torch_dtype"))
    name = next((str(n).removeprefix("torch.") for n in names if n), "float32")
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise ValueError(f"dtype '{name}' is no floating-point type")
    return dtype


def _decode_inputs(model: Any, size: Example) -> tuple[Any, ...]:
    text = model.config.get_text_config()
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    head_dim = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    dtype = next(model.parameters()).dtype
    ids = torch.zeros(size.batch, 1, dtype=torch.long, device="meta")
    positions = torch.zeros(size.batch, 1, dtype=torch.long, device="meta")
    if "mrope_section" in (getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None) or {}):
        positions = positions.expand(3, -1, -1).clone()

    context = max(size.context, int(getattr(text, "sliding_window", None) or 0) + 1)

    def cached() -> torch.Tensor:
        return torch.zeros(size.batch, heads, context, head_dim, dtype=dtype, device="meta")

    return ids, positions, [(cached(), cached()) for _ in range(text.num_hidden_layers)]


def _encoder_inputs(model: Any, size: Example) -> tuple[torch.Tensor]:
    if getattr(model, "main_input_name", "input_ids") != "pixel_values":
        return (torch.zeros(size.batch, size.length, dtype=torch.long, device="meta"),)
    sides = model.config.image_size
    rows, columns = sides if isinstance(sides, (tuple, list)) else (sides, sides)
    channels = getattr(model.config, "num_channels", 3)
    dtype = next(model.parameters()).dtype
    return (torch.zeros(size.batch, channels, rows, columns, dtype=dtype, device="meta"),)
