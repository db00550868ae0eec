"""Rotary embedding: the parameters read from a config, and the float32 table a step looks positions up in."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

RopeType = Literal["default", "linear", "llama3", "yarn"]

# Names that only say "several position axes": for text alone these are the plain rotation.
_PLAIN = {"default", "mrope"}


class UnsupportedRopeError(ValueError):
    """The config asks for a rotation this engine does not implement."""


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotation of the first ``rotary_dim`` elements of every query and key head.

    ``interleaved``: pairs are neighbours, else half a ``rotary_dim`` apart. ``original_positions`` is the length the
    model was trained at, before scaling. The fields after it belong to one scaling type each.
    """

    theta: float
    rotary_dim: int
    interleaved: bool = False
    type: RopeType = "default"
    factor: float = 1.0
    original_positions: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float = 1.0


def read_rope(
    config: Mapping[str, Any],
    *,
    head_dim: int,
    default_theta: float,
    default_partial: float,
    interleaved: bool,
) -> Rope:
    """Rotation described by ``config``, in the older spelling (``rope_theta`` and ``rope_scaling``) or the newer one
    (``rope_parameters``). Raises UnsupportedRopeError for a type that is not implemented, ValueError for a field that
    is missing or out of range."""
    nested = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    if any(isinstance(value, Mapping) for value in nested.values()):
        raise UnsupportedRopeError("rope_parameters differ by layer type; one rotation for all layers is supported")
    kind = nested.get("rope_type") or nested.get("type") or "default"
    theta = float(nested.get("rope_theta") or config.get("rope_theta") or default_theta)
    partial = nested.get("partial_rotary_factor") or config.get("partial_rotary_factor") or default_partial
    rotary_dim = int(head_dim * float(partial))
    if rotary_dim < 2 or rotary_dim % 2 or rotary_dim > head_dim:
        raise ValueError(f"partial_rotary_factor {partial} of head_dim {head_dim} rotates {rotary_dim} elements")
    if kind in _PLAIN:
        return Rope(theta, rotary_dim, interleaved)
    if kind == "linear":
        return Rope(theta, rotary_dim, interleaved, "linear", factor=_number(nested, "factor", kind))
    positions = int(config["max_position_embeddings"])
    original = int(nested.get("original_max_position_embeddings") or positions)
    if kind == "llama3":
        return Rope(
            theta,
            rotary_dim,
            interleaved,
            "llama3",
            factor=_number(nested, "factor", kind),
            original_positions=original,
            low_freq_factor=_number(nested, "low_freq_factor", kind),
            high_freq_factor=_number(nested, "high_freq_factor", kind),
        )
    if kind == "yarn":
        factor = float(nested.get("factor") or positions / original)
        return Rope(
            theta,
            rotary_dim,
            interleaved,
            "yarn",
            factor=factor,
            original_positions=original,
            beta_fast=float(nested.get("beta_fast") or 32),
            beta_slow=float(nested.get("beta_slow") or 1),
            truncate=bool(nested.get("truncate", True)),
            attention_factor=_yarn_attention_factor(nested, factor),
        )
    raise UnsupportedRopeError(f"rope type '{kind}' is not implemented; default, linear, llama3 and yarn are")


def cos_sin_table(rope: Rope, positions: int, device: torch.device) -> torch.Tensor:
    """``[positions, rotary_dim]`` float32: cosines in the first half of a row, sines in the second."""
    angles = torch.arange(positions, dtype=torch.float32)[:, None] * inverse_frequencies(rope)[None, :]
    return (torch.cat((angles.cos(), angles.sin()), dim=1) * rope.attention_factor).to(device)


def inverse_frequencies(rope: Rope) -> torch.Tensor:
    """``[rotary_dim / 2]`` float32, scaled as the rope type says."""
    exponents = torch.arange(0, rope.rotary_dim, 2, dtype=torch.float32) / rope.rotary_dim
    plain = 1.0 / rope.theta**exponents
    if rope.type == "linear":
        return plain / rope.factor
    if rope.type == "llama3":
        return _llama3(plain, rope)
    if rope.type == "yarn":
        return _yarn(plain, rope)
    return plain


def _llama3(plain: torch.Tensor, rope: Rope) -> torch.Tensor:
    """Long wavelengths are stretched by ``factor``, short ones kept, those between blended (Llama 3.1 report)."""
    rotations = rope.original_positions * plain / (2 * math.pi)  # turns within the original context
    blend = (rotations - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    blend = blend.clamp(0, 1)
    return (1 - blend) * plain / rope.factor + blend * plain


def _yarn(plain: torch.Tensor, rope: Rope) -> torch.Tensor:
    """As llama3, with a ramp that is linear in the dimension index (arXiv 2309.00071, section 3.2)."""

    def dimension_of(rotations: float) -> float:
        turns = math.log(rope.original_positions / (rotations * 2 * math.pi))
        return rope.rotary_dim * turns / (2 * math.log(rope.theta))

    low, high = dimension_of(rope.beta_fast), dimension_of(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.rotary_dim - 1)
    width = high - low or 0.001
    ramp = ((torch.arange(rope.rotary_dim // 2, dtype=torch.float32) - low) / width).clamp(0, 1)
    return plain / rope.factor * ramp + plain * (1 - ramp)


def _yarn_attention_factor(nested: Mapping[str, Any], factor: float) -> float:
    given = nested.get("attention_factor")
    if given is not None:
        return float(given)

    def scale(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    over, under = nested.get("mscale"), nested.get("mscale_all_dim")
    return scale(over) / scale(under) if over and under else scale(1.0)


def _number(nested: Mapping[str, Any], key: str, kind: str) -> float:
    value = nested.get(key)
    if not isinstance(value, int | float) or value <= 0:
        raise ValueError(f"rope type '{kind}' needs a positive '{key}', found {value!r}")
    return float(value)
