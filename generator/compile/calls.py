"""From a call's arguments to the flat values of the captured graph, checked against what was captured, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.export.graph_signature import ConstantArgument, InputKind
from torch.utils import _pytree as pytree

from generator.ir import Graph
from kb.expr import parse


class OtherCallError(Exception):
    """A call that is not like the captured one; the module itself must answer it."""


class CallForm:
    """The form of the captured call: its structure, and what each value must be.

    Sizes that were captured as numbers must be those numbers; a symbol must be the same everywhere and within its
    range. What a value's strides are is left to whoever reads it.
    """

    def __init__(self, program: torch.export.ExportedProgram, graph: Graph) -> None:
        self._inside = program.call_spec.in_spec
        self._outside = program.call_spec.out_spec
        specs = [s for s in program.graph_signature.input_specs if s.kind is InputKind.USER_INPUT]
        self._checks = [_check(spec.arg, graph, number) for number, spec in enumerate(specs)]
        self._ranges = dict(graph.extents)
        self._count = len(specs)
        self._plain_in = self._inside == pytree.tree_structure(((None,) * self._count, {}), is_leaf=_is_none)
        leaves = (None,) * self._outside.num_leaves
        self._tuple_out = self._outside == pytree.tree_structure(leaves, is_leaf=_is_none)
        self._single_out = self._outside == pytree.tree_structure(None, is_leaf=_is_none)

    def flatten(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Sequence[Any]:
        """The graph's own inputs, in order. Raises OtherCallError."""
        if self._plain_in and not kwargs and len(args) == self._count:
            values: Sequence[Any] = args
        else:
            values, found = pytree.tree_flatten((args, dict(kwargs)))
            if found != self._inside:
                values, found = pytree.tree_flatten((args, self._reordered(kwargs)))
            if found != self._inside:
                raise OtherCallError("arguments of another structure than the captured ones")
        sizes: dict[str, int] = {}
        for value, check in zip(values, self._checks, strict=True):
            check(value, sizes)
        for name, size in sizes.items():
            low, high = self._ranges[name]
            if not low <= size <= high:
                raise OtherCallError(f"{name} = {size} is outside {low} to {high}")
        return values

    def unflatten(self, values: Sequence[Any]) -> Any:
        """What the module returns."""
        if self._single_out:
            return values[0]
        return tuple(values) if self._tuple_out else pytree.tree_unflatten(list(values), self._outside)

    def _reordered(self, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Keyword arguments in the captured order."""
        names = list(self._inside.children()[1].context or ())
        return {name: kwargs[name] for name in names if name in kwargs} | dict(kwargs)


def _check(argument: object, graph: Graph, number: int) -> Callable[[Any, dict[str, int]], None]:
    """A check of one flat argument that also notes the sizes of symbols."""
    if isinstance(argument, ConstantArgument):
        constant = argument.value

        def same(value: Any, _sizes: dict[str, int]) -> None:
            if type(value) is not type(constant) or value != constant:
                raise OtherCallError(f"argument {number} is {value!r}; {constant!r} was captured")

        return same
    wanted = graph.values.get(str(getattr(argument, "name", "")))
    if wanted is None:
        return lambda _value, _sizes: None
    dtype = getattr(torch, wanted.dtype)
    shape, rank = wanted.shape, wanted.rank

    if wanted.is_static:

        def static(value: Any, _sizes: dict[str, int]) -> None:
            if not isinstance(value, torch.Tensor) or value.shape != shape or value.dtype is not dtype:
                raise OtherCallError(_difference(value, number, shape, dtype))

        return static

    def symbolic(value: Any, sizes: dict[str, int]) -> None:
        if not isinstance(value, torch.Tensor) or value.dim() != rank or value.dtype is not dtype:
            raise OtherCallError(_difference(value, number, shape, dtype))
        for extent, size in zip(shape, value.shape, strict=True):
            if isinstance(extent, str) and extent.isidentifier():
                wanted_size = sizes.setdefault(extent, size)
            else:
                wanted_size = parse(str(extent)).evaluate_int(sizes)
            if size != wanted_size:
                raise OtherCallError(_difference(value, number, shape, dtype))

    return symbolic


def _difference(value: Any, number: int, shape: Sequence[object], dtype: torch.dtype) -> str:
    found = f"{value.dtype} {list(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__
    return f"argument {number} is {found}; {dtype} [{', '.join(map(str, shape))}] was captured"


def _is_none(value: object) -> bool:
    return value is None


__all__ = ["CallForm", "OtherCallError"]
