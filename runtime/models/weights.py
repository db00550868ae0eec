"""Weights of a decoder, fused and laid out once at load.

Projections that read the same rows are stored as one ``[N, K]`` matrix: query, key and value rows; gate rows, then
up rows. Names, shapes and left-overs are checked on the files' headers, before anything is allocated.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from runtime.kv.pool import free_bytes
from runtime.models.safetensors_file import STAGING_BYTES, StoredTensor, read_into, stored_tensors
from runtime.models.spec import DecoderSpec, ModelError

# Buffers older exporters stored; they are recomputed, not loaded.
_RECOMPUTED = ("rotary_emb.inv_freq", "rotary_emb.cos_cached", "rotary_emb.sin_cached")


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer. Matrices are ``[N, K]`` row-contiguous in the storage dtype; absent parts are None."""

    input_norm: torch.Tensor  # [hidden_size]
    w_qkv: torch.Tensor  # [(num_heads + 2 * num_kv_heads) * head_dim, hidden_size]
    b_qkv: torch.Tensor | None
    q_norm: torch.Tensor | None  # [head_dim]
    k_norm: torch.Tensor | None
    w_o: torch.Tensor  # [hidden_size, num_heads * head_dim]
    b_o: torch.Tensor | None
    attention_out_norm: torch.Tensor | None  # sandwich norms only
    post_attention_norm: torch.Tensor
    w_gate_up: torch.Tensor  # [2 * intermediate_size, hidden_size], gate rows first
    w_down: torch.Tensor  # [hidden_size, intermediate_size]
    mlp_out_norm: torch.Tensor | None  # sandwich norms only


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """All weights. ``lm_head`` is ``embed`` itself when the embeddings are tied."""

    embed: torch.Tensor  # [vocab_size, hidden_size]
    layers: tuple[LayerWeights, ...]
    final_norm: torch.Tensor
    lm_head: torch.Tensor

    @property
    def nbytes(self) -> int:
        """Bytes of all distinct tensors."""
        return sum(t.nbytes for t in self._distinct())

    @property
    def bytes_per_token(self) -> int:
        """Bytes one decode step must read whatever the batch: all but the embedding rows that are not looked up."""
        return self.nbytes - (0 if self.lm_head is self.embed else self.embed.nbytes)

    def _distinct(self) -> Iterator[torch.Tensor]:
        yield from (self.embed, self.final_norm)
        if self.lm_head is not self.embed:
            yield self.lm_head
        for layer in self.layers:
            yield from (t for t in (getattr(layer, name) for name in layer.__slots__) if t is not None)


@dataclass(frozen=True, slots=True)
class Part:
    """One tensor of the engine, made of ``sources`` stacked by rows."""

    field: str
    sources: tuple[tuple[str, tuple[int, ...]], ...]  # checkpoint name, shape

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape after stacking."""
        first = self.sources[0][1]
        return (sum(shape[0] for _, shape in self.sources), *first[1:])


def load_weights(model_dir: Path, spec: DecoderSpec, device: torch.device, dtype: torch.dtype) -> DecoderWeights:
    """Load the checkpoint in ``model_dir`` onto ``device`` as ``dtype``.

    Peak memory is the weights and a staging buffer of 16 MiB. Raises ModelError naming every missing, unexpected or
    misshaped tensor, or the memory that is short, before anything is allocated.
    """
    stored = stored_tensors(model_dir)
    check_names_and_shapes(spec, stored, model_dir)
    needed, free = weight_bytes(spec, dtype.itemsize), free_bytes(device)
    if needed > free:
        raise ModelError(
            f"{model_dir}: the weights take {needed / 2**30:.1f} GiB as {str(dtype).removeprefix('torch.')} and "
            f"{device} has {free / 2**30:.1f} GiB free; use a narrower dtype or another device"
        )
    pinned = device.type == "cuda"
    staging = torch.empty(STAGING_BYTES, dtype=torch.uint8, pin_memory=pinned)

    def load(part: Part) -> torch.Tensor:
        out = torch.empty(part.shape, dtype=dtype, device=device)
        row = 0
        for name, shape in part.sources:
            read_into(stored[name], out[row : row + shape[0]], staging)
            row += shape[0]
        return out

    def load_all(parts: Sequence[Part]) -> dict[str, torch.Tensor]:
        return {part.field: load(part) for part in parts}

    top = load_all(_top_parts(spec))
    layers = tuple(_layer(load_all(_layer_parts(spec, i))) for i in range(spec.num_layers))
    return DecoderWeights(top["embed"], layers, top["final_norm"], top.get("lm_head", top["embed"]))


def random_weights(
    spec: DecoderSpec, device: torch.device, dtype: torch.dtype, seed: int = 0, std: float = 0.02
) -> DecoderWeights:
    """Weights of the right shapes, normally distributed, norms at one: for measuring without a checkpoint."""
    generator = torch.Generator(device).manual_seed(seed)

    def draw(part: Part) -> torch.Tensor:
        if part.field.endswith("_norm"):
            return torch.ones(part.shape, dtype=dtype, device=device)
        return torch.empty(part.shape, dtype=dtype, device=device).normal_(0, std, generator=generator)

    def draw_all(parts: Sequence[Part]) -> dict[str, torch.Tensor]:
        return {part.field: draw(part) for part in parts}

    top = draw_all(_top_parts(spec))
    layers = tuple(_layer(draw_all(_layer_parts(spec, i))) for i in range(spec.num_layers))
    return DecoderWeights(top["embed"], layers, top["final_norm"], top.get("lm_head", top["embed"]))


def absent_weights(spec: DecoderSpec, dtype: torch.dtype) -> DecoderWeights:
    """Weights of the right shapes without memory (on torch's ``meta`` device), for asking what a step would do."""

    def make_all(parts: Sequence[Part]) -> dict[str, torch.Tensor]:
        return {part.field: torch.empty(part.shape, dtype=dtype, device="meta") for part in parts}

    top = make_all(_top_parts(spec))
    layers = tuple(_layer(make_all(_layer_parts(spec, i))) for i in range(spec.num_layers))
    return DecoderWeights(top["embed"], layers, top["final_norm"], top.get("lm_head", top["embed"]))


def named_tensors(spec: DecoderSpec, weights: DecoderWeights) -> Iterator[tuple[str, torch.Tensor]]:
    """The weights under their checkpoint names, as views of what the engine holds: what ``load_weights`` read."""
    top = {"embed": weights.embed, "final_norm": weights.final_norm, "lm_head": weights.lm_head}
    held = [(part, top[part.field]) for part in _top_parts(spec)]
    for i, layer in enumerate(weights.layers):
        held += [(part, getattr(layer, part.field)) for part in _layer_parts(spec, i)]
    for part, tensor in held:
        row = 0
        for name, shape in part.sources:
            yield name, tensor[row : row + shape[0]]
            row += shape[0]


def weight_bytes(spec: DecoderSpec, itemsize: int) -> int:
    """Bytes ``load_weights`` will allocate."""
    return sum(math.prod(part.shape) for part in all_parts(spec)) * itemsize


def all_parts(spec: DecoderSpec) -> list[Part]:
    """Every tensor the engine holds and what it is made of, in the order it is loaded."""
    return [*_top_parts(spec), *(part for i in range(spec.num_layers) for part in _layer_parts(spec, i))]


def check_names_and_shapes(spec: DecoderSpec, stored: dict[str, StoredTensor], where: Path) -> None:
    """Raise ModelError when the checkpoint lacks a tensor, has one nobody reads, or one of another shape."""
    wanted = {name: shape for part in all_parts(spec) for name, shape in part.sources}
    missing = [name for name in wanted if name not in stored]
    extra = [name for name in stored if name not in wanted and not _may_stay(name, spec)]
    shapes = [
        f"{name} is {list(stored[name].shape)}, the config says {list(shape)}"
        for name, shape in wanted.items()
        if name in stored and stored[name].shape != shape
    ]
    for kind, names in (("missing", missing), ("unexpected", extra), ("misshaped", shapes)):
        if names:
            raise ModelError(f"{where}: {len(names)} {kind} tensor{'s' * (len(names) > 1)}: {_listed(names)}")


def _may_stay(name: str, spec: DecoderSpec) -> bool:
    """True for tensors that are rightly not loaded."""
    if name == "lm_head.weight":
        return spec.tied_embeddings
    return name.startswith(spec.ignored_prefixes or ("\0",)) or name.endswith(_RECOMPUTED)


def _top_parts(spec: DecoderSpec) -> list[Part]:
    table = (spec.vocab_size, spec.hidden_size)
    parts = [
        Part("embed", ((f"{spec.weight_prefix}embed_tokens.weight", table),)),
        Part("final_norm", ((f"{spec.weight_prefix}norm.weight", (spec.hidden_size,)),)),
    ]
    if not spec.tied_embeddings:
        parts.append(Part("lm_head", (("lm_head.weight", table),)))
    return parts


def _layer_parts(spec: DecoderSpec, layer: int) -> list[Part]:
    at = f"{spec.weight_prefix}layers.{layer}"
    hidden, head = spec.hidden_size, spec.head_dim
    heads = {"q": spec.num_heads * head, "k": spec.num_kv_heads * head, "v": spec.num_kv_heads * head}
    parts = [
        Part("input_norm", ((f"{at}.input_layernorm.weight", (hidden,)),)),
        Part("w_qkv", tuple((f"{at}.self_attn.{p}_proj.weight", (rows, hidden)) for p, rows in heads.items())),
        Part("w_o", ((f"{at}.self_attn.o_proj.weight", (hidden, heads["q"])),)),
        Part("post_attention_norm", ((f"{at}.post_attention_layernorm.weight", (hidden,)),)),
        Part("w_gate_up", _gate_up(spec, at)),
        Part("w_down", ((f"{at}.mlp.down_proj.weight", (hidden, spec.intermediate_size)),)),
    ]
    if spec.qkv_bias:
        parts.append(Part("b_qkv", tuple((f"{at}.self_attn.{p}_proj.bias", (rows,)) for p, rows in heads.items())))
    if spec.o_bias:
        parts.append(Part("b_o", ((f"{at}.self_attn.o_proj.bias", (hidden,)),)))
    if spec.qk_norm:
        parts += [Part(f"{p}_norm", ((f"{at}.self_attn.{p}_norm.weight", (head,)),)) for p in "qk"]
    if spec.sandwich_norms:
        parts.append(Part("attention_out_norm", ((f"{at}.post_self_attn_layernorm.weight", (hidden,)),)))
        parts.append(Part("mlp_out_norm", ((f"{at}.post_mlp_layernorm.weight", (hidden,)),)))
    return parts


def _gate_up(spec: DecoderSpec, at: str) -> tuple[tuple[str, tuple[int, ...]], ...]:
    rows, hidden = spec.intermediate_size, spec.hidden_size
    if spec.fused_gate_up:
        return ((f"{at}.mlp.gate_up_proj.weight", (2 * rows, hidden)),)
    return tuple((f"{at}.mlp.{p}_proj.weight", (rows, hidden)) for p in ("gate", "up"))


def _layer(tensors: dict[str, torch.Tensor]) -> LayerWeights:
    return LayerWeights(
        input_norm=tensors["input_norm"],
        w_qkv=tensors["w_qkv"],
        b_qkv=tensors.get("b_qkv"),
        q_norm=tensors.get("q_norm"),
        k_norm=tensors.get("k_norm"),
        w_o=tensors["w_o"],
        b_o=tensors.get("b_o"),
        attention_out_norm=tensors.get("attention_out_norm"),
        post_attention_norm=tensors["post_attention_norm"],
        w_gate_up=tensors["w_gate_up"],
        w_down=tensors["w_down"],
        mlp_out_norm=tensors.get("mlp_out_norm"),
    )


def _listed(names: list[str], most: int = 5) -> str:
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest
