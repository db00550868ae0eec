"""What is compiled: a checkpoint's folder, or a function that gives a module and its example call."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from generator.capture import CheckpointError, Example
from generator.capture.checkpoint import DecodeStep, EncoderForward, read_config


class SubjectError(Exception):
    """Nothing that can be compiled: what is wrong, where, and what to do."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A module, an example call of it, and a name. ``dynamic`` as for ``generator.capture.capture``."""

    name: str
    module: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    dynamic: Mapping[str, Any] | None = None
    prefix: str = ""

    def to(self, device: str) -> Subject:
        """The same on another device."""
        module = self.module.to(device)
        moved = torch.utils._pytree.tree_map_only(torch.Tensor, lambda t: t.to(device), (self.args, dict(self.kwargs)))
        return Subject(self.name, module, moved[0], moved[1], self.dynamic, self.prefix)


def load_subject(text: str, example: Example | None = None) -> Subject:
    """``MODEL_DIR`` or ``module:fn``. Raises SubjectError.

    ``fn`` takes no arguments and returns a module with ``example_inputs``, or a tuple of the module, its positional
    arguments and, if there are any, its keyword arguments and its dynamic dims.
    """
    folder = Path(text)
    if folder.is_dir():
        return _from_checkpoint(folder, example or Example())
    place, colon, name = text.partition(":")
    if not colon or not place or not name.isidentifier():
        raise SubjectError(f"'{text}' is neither a folder with a checkpoint nor module:function")
    return _from_function(place, name)


def _from_function(place: str, name: str) -> Subject:
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        function = getattr(importlib.import_module(place), name)
    except ImportError as error:
        raise SubjectError(f"{place}: cannot be imported ({error})") from None
    except AttributeError:
        raise SubjectError(f"{place} has no function '{name}'") from None
    try:
        made = function()
    except Exception as error:  # the user's own code
        raise SubjectError(f"{place}:{name} failed with {type(error).__name__}: {error}") from error
    if isinstance(made, torch.nn.Module):
        made = (made, getattr(made, "example_inputs", None))
    if not (isinstance(made, tuple) and len(made) in (2, 3, 4) and isinstance(made[0], torch.nn.Module)):
        raise SubjectError(f"{place}:{name} must return a module and its arguments, as (module, args[, kwargs])")
    module, args, *rest = made
    if not isinstance(args, tuple | list):
        raise SubjectError(f"{place}:{name} must give the module's positional arguments as a tuple")
    kwargs = rest[0] if rest else {}
    return Subject(f"{place}:{name}", module.eval(), tuple(args), kwargs or {}, rest[1] if len(rest) > 1 else None)


def _from_checkpoint(folder: Path, example: Example) -> Subject:
    """A decode step of a decoder, or a forward of an encoder, with the folder's weights."""
    import transformers

    try:
        names = [str(n) for n in read_config(folder).get("architectures") or ()]
        generates = bool(names) and names[0].endswith(("ForCausalLM", "ForConditionalGeneration"))
        kind: Any = getattr(transformers, names[0], None) if names else None
        kind = kind or (transformers.AutoModelForCausalLM if generates else transformers.AutoModel)
        model = kind.from_pretrained(folder, dtype="auto", attn_implementation="sdpa", local_files_only=True).eval()
    except CheckpointError as error:
        raise SubjectError(str(error)) from None
    except (ImportError, ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise SubjectError(f"{folder}: transformers cannot load this model: {error}") from None
    model.requires_grad_(False)
    if generates:
        return Subject(str(folder), DecodeStep(model), _decode_call(model, example), prefix="model.")
    return Subject(str(folder), EncoderForward(model), _encoder_call(model, example), prefix="model.")


def _decode_call(model: Any, size: Example) -> tuple[Any, ...]:
    """One new token a sequence after ``context`` cached ones, whose keys and values are random."""
    text = model.config.get_text_config()
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    gen = torch.Generator().manual_seed(0)
    dtype = next(model.parameters()).dtype
    ids = torch.randint(text.vocab_size, (size.batch, 1), generator=gen)
    positions = torch.full((size.batch, 1), size.context)
    if "mrope_section" in (getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None) or {}):
        positions = positions.expand(3, -1, -1).clone()

    def cached() -> torch.Tensor:
        return torch.randn(size.batch, heads, size.context, width, generator=gen).to(dtype)

    return ids, positions, [(cached(), cached()) for _ in range(text.num_hidden_layers)]


def _encoder_call(model: Any, size: Example) -> tuple[torch.Tensor]:
    gen = torch.Generator().manual_seed(0)
    if getattr(model, "main_input_name", "input_ids") != "pixel_values":
        return (torch.randint(model.config.vocab_size, (size.batch, size.length), generator=gen),)
    sides = model.config.image_size
    rows, columns = sides if isinstance(sides, tuple | list) else (sides, sides)
    channels = getattr(model.config, "num_channels", 3)
    dtype = next(model.parameters()).dtype
    return (torch.randn(size.batch, channels, rows, columns, generator=gen).to(dtype),)
