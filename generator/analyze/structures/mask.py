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
        return _classify(_compute(graph, value, {}))
    except _UnknownMaskError as error:
        kind: MaskKind = "given" if error.given else "other"
        return _of_one_position(graph, value) or Mask(kind, detail=str(error))


def _of_one_position(graph: Graph, value: str) -> Mask | None:
    """The mask of one query whose position the graph is given: a cache of fixed size is masked like that.

    The position is tried at two places; what is visible must follow it.
    """
    shape = graph.values[value].shape
    keys = shape[-1] if shape else 0
    if len(shape) < 2 or shape[-2] != 1 or not isinstance(keys, int) or keys < 4:
        return None
    places = (keys // 2, keys - 1)
    try:
        rows = [_one_table(_compute(graph, value, {}, position=place))[0] for place in places]
    except _UnknownMaskError:
        return None
    distances = [place - np.arange(keys) for place in places]
    window = int(rows[1].sum())
    followed = all(
        np.array_equal(row, (distance >= 0) & (distance < window))
        for row, distance in zip(rows, distances, strict=True)
    )
    if not followed:
        return None
    return Mask("causal") if window == keys else Mask("window", window)


def _one_table(table: Array) -> Array:
    """What is visible [queries, keys], where it is the same for all sequences and heads."""
    if table.dtype == np.bool_:
        visible = table
    elif np.all((table == 0) | (table <= -1e4)):
        visible = table == 0
    else:
        raise _UnknownMaskError("it adds numbers to the scores")
    visible = np.atleast_2d(visible)
    flat = visible.reshape(-1, *visible.shape[-2:])
    if not (flat == flat[:1]).all():
        raise _UnknownMaskError("it differs between sequences or heads")
    return np.asarray(flat[0])


def _classify(table: Array) -> Mask:
    visible = _one_table(table)
    if visible.all():
        return Mask("none")
    queries, keys = visible.shape
    distance = (np.arange(queries)[:, None] + keys - queries) - np.arange(keys)[None, :]
    if np.array_equal(visible, distance >= 0):
        return Mask("causal")
    window = int(visible.sum(axis=-1).max())
    if np.array_equal(visible, (distance >= 0) & (distance < window)):
        return Mask("window", window)
    return Mask("other", detail="it is neither causal nor a window")


def _compute(graph: Graph, value: str, done: dict[str, Array], *, position: int | None = None) -> Array:
    """The value as an array, where it depends on numbers alone. Symbolic sizes stand for the least they may be.

    With a ``position``, single integers that the graph is given are taken to be that.
    """
    if value in done:
        return done[value]
    node = graph.producer(value)
    if node is None:
        known = graph.values[value]
        if position is not None and known.dtype in ("int64", "int32") and known.shape[-1:] in ((), (1,)):
            return np.full([_number(size, graph.extents) for size in known.shape], position)
        if known.kind is ValueKind.INPUT:
            raise _UnknownMaskError(f"it depends on the argument {known.name or value}", given=True)
        raise _UnknownMaskError(f"it depends on {known.name or value}")
    shape = tuple(_number(size, graph.extents) for size in graph.values[value].shape)
    if math.prod(shape) > _LARGEST:
        raise _UnknownMaskError(f"it has {math.prod(shape)} elements")

    def read(arg: Arg) -> Any:
        if isinstance(arg, ValueRef):
            return _compute(graph, arg.id, done, position=position)
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
