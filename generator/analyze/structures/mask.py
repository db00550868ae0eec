"""What an attention mask lets through, by computing it: most masks depend on positions alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from generator.analyze.trail import slice_bounds
from generator.ir import Arg, Extent, Graph, Node, Size, ValueKind, ValueRef

MaskKind = Literal["none", "causal", "window", "given", "other"]
_LARGEST = 1 << 24  # elements a mask may have to be computed here

Array = npt.NDArray[Any]
_BINARY: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "ge": np.greater_equal,
    "gt": np.greater,
    "le": np.less_equal,
    "lt": np.less,
    "eq": np.equal,
    "ne": np.not_equal,
    "bitwise_and": np.logical_and,
    "bitwise_or": np.logical_or,
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
    "minimum": np.minimum,
    "maximum": np.maximum,
}


@dataclass(frozen=True, slots=True)
class Mask:
    """``none``: every key counts. ``causal``: those up to the query. ``window``: the last ``window`` of them.
    ``given``: it depends on an argument of the call, ``detail``. ``other``: none of these.
    """

    kind: MaskKind
    window: int = 0
    detail: str = ""


class _UnknownMaskError(Exception):
    """A mask that cannot be computed here; ``given`` names the argument it depends on, if that is why."""

    def __init__(self, detail: str, *, given: bool = False) -> None:
        super().__init__(detail)
        self.given = given


def mask_of(graph: Graph, value: str | None, *, is_causal: bool) -> Mask:
    """What the mask ``value`` of scores [..., queries, keys] lets through; None is no mask."""
    if is_causal:
        return Mask("causal")
    if value is None:
        return Mask("none")
    try:
        table = _compute(graph, value, {})
    except _UnknownMaskError as error:
        return Mask("given" if error.given else "other", detail=str(error))
    return _classify(table)


def _classify(table: Array) -> Mask:
    if table.dtype == np.bool_:
        visible = table
    elif np.all((table == 0) | (table <= -1e4)):
        visible = table == 0
    else:
        return Mask("other", detail="it adds numbers to the scores")
    while visible.ndim < 2:
        visible = visible[None]
    if visible.all():
        return Mask("none")
    visible = np.broadcast_to(visible, np.broadcast_shapes(visible.shape, (1, 1)))
    flat = visible.reshape(-1, *visible.shape[-2:])
    if not (flat == flat[:1]).all():
        return Mask("other", detail="it differs between sequences or heads")
    queries, keys = flat.shape[-2:]
    distance = (np.arange(queries)[:, None] + keys - queries) - np.arange(keys)[None, :]
    if np.array_equal(flat[0], distance >= 0):
        return Mask("causal")
    window = int(flat[0].sum(axis=-1).max())
    if np.array_equal(flat[0], (distance >= 0) & (distance < window)):
        return Mask("window", window)
    return Mask("other", detail="it is neither causal nor a window")


def _compute(graph: Graph, value: str, done: dict[str, Array]) -> Array:
    """The value as an array, where it depends on numbers alone. Symbolic sizes stand for the least they may be."""
    if value in done:
        return done[value]
    node = graph.producer(value)
    if node is None:
        known = graph.values[value]
        if known.kind is ValueKind.INPUT:
            raise _UnknownMaskError(f"it depends on the argument {known.name or value}", given=True)
        raise _UnknownMaskError(f"it depends on {known.name or value}")
    shape = tuple(_number(size, graph.extents) for size in graph.values[value].shape)
    if math.prod(shape) > _LARGEST:
        raise _UnknownMaskError(f"it has {math.prod(shape)} elements")

    def read(arg: Arg) -> Any:
        if isinstance(arg, ValueRef):
            return _compute(graph, arg.id, done)
        return _number(arg.text, graph.extents) if isinstance(arg, Size) else arg

    result = _step(node, shape, read)
    if result.size != math.prod(shape):
        result = np.broadcast_to(result, shape)
    done[value] = result.reshape(shape)
    return done[value]


def _step(node: Node, shape: tuple[int, ...], read: Callable[[Arg], Any]) -> Array:
    name = node.target.removeprefix("aten.")
    if name == "arange":
        bounds = [read(arg) for arg in node.args]
        return np.arange(*bounds)
    if name in ("full", "scalar_tensor", "full_like", "zeros", "ones", "zeros_like", "ones_like"):
        filled = {"zeros": 0, "zeros_like": 0, "ones": 1, "ones_like": 1}.get(name)
        number = filled if filled is not None else read(node.args[0 if name == "scalar_tensor" else 1])
        return np.full(shape, number, dtype=np.bool_ if node.kwarg("dtype") == "torch.bool" else None)
    if name in ("view", "unsqueeze", "squeeze", "clone", "expand", "_unsafe_view", "reshape", "_to_copy"):
        array: Array = read(node.args[0])
        if name == "expand":
            return np.broadcast_to(array, shape)
        return array.astype(np.bool_) if node.kwarg("dtype") == "torch.bool" else array
    if name == "slice":
        dim, start, end, step = slice_bounds([read(arg) for arg in node.args[1:]])
        whole: Array = read(node.args[0])
        index = [slice(None)] * whole.ndim
        index[int(dim or 0)] = slice(start, end, step)
        return whole[tuple(index)]
    if name in _BINARY:
        return np.asarray(_BINARY[name](read(node.args[0]), read(node.args[1])))
    if name in ("bitwise_not", "logical_not"):
        return np.asarray(np.logical_not(read(node.args[0])))
    if name == "where":
        return np.asarray(np.where(read(node.args[0]), read(node.args[1]), read(node.args[2])))
    if name in ("tril", "triu"):
        diagonal = read(node.args[1]) if len(node.args) > 1 else 0
        return np.asarray((np.tril if name == "tril" else np.triu)(read(node.args[0]), diagonal))
    raise _UnknownMaskError(f"it is computed by {node.op}")


def _number(size: Extent | Arg, extents: Mapping[str, tuple[int, int]]) -> int:
    """A size with every symbol at a small value it may have; large enough to tell a window from a square."""
    if isinstance(size, int):
        return size
    text = str(size)
    if not all(part.isidentifier() or part.isdigit() for part in text.replace("+", "*").replace(" ", "").split("*")):
        raise _UnknownMaskError(f"its size is {text}")
    total = 0
    for term in text.replace(" ", "").split("+"):
        total += math.prod(int(f) if f.isdigit() else max(extents.get(f, (2, 2))[0], 3) for f in term.split("*"))
    return total
