"""Tracing one module with torch.export, down to operators that still mean something."""

from __future__ import annotations

import contextlib
import inspect
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

# Decomposed, they would be a dozen nodes whose meaning a reader must find again; whole, each is one node that a kernel
# family answers. A linear layer keeps its weight as it is stored, rows contiguous. Everything else is decomposed, so
# that a pattern has few spellings.
KEPT = (
    "linear.default",
    "matmul.default",
    "scaled_dot_product_attention.default",
    "layer_norm.default",
    "rms_norm.default",
    "silu.default",
    "gelu.default",
)


def trace(
    module: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    dynamic: Mapping[str, Any] | None,
) -> torch.export.ExportedProgram:
    """The exported program of one call, functional: no operator in it overwrites a value.

    ``dynamic`` maps an argument's name to a mapping from a dimension's index to a name, to (name, least, most), or to
    anything torch.export takes there. Raises whatever the exporter or the module raises.
    """
    shapes = None if dynamic is None else _dynamic_shapes(module, args, kwargs, dynamic)
    with torch.no_grad(), _quiet():
        program = torch.export.export(module, tuple(args), dict(kwargs), dynamic_shapes=shapes, strict=False)
        decomposed: torch.export.ExportedProgram = program.run_decompositions(_table())
        return decomposed


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's warnings of its own deprecations, and without its log of what it then raises."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    level = log.level
    log.setLevel(logging.CRITICAL + 1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)


def _table() -> Any:
    table: Any = torch.export.default_decompositions()
    for name in KEPT:
        packet, overload = name.split(".")
        table.pop(getattr(getattr(torch.ops.aten, packet), overload), None)
    return table


def _dynamic_shapes(
    module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], dynamic: Mapping[str, Any]
) -> dict[str, Any]:
    bound = inspect.signature(module.forward).bind(*args, **kwargs)
    unknown = sorted(set(dynamic) - set(bound.arguments) - set(kwargs))
    if unknown:
        raise ValueError(f"dynamic names '{unknown[0]}', which is no argument of this call")
    dims: dict[str, Any] = {}
    shapes: dict[str, Any] = {}
    for name in bound.arguments:
        given = dynamic.get(name)
        is_dims = isinstance(given, Mapping) and all(isinstance(axis, int) for axis in given)
        shapes[name] = {axis: _dim(size, dims) for axis, size in given.items()} if is_dims and given else given
    return shapes


def _dim(size: Any, dims: dict[str, Any]) -> Any:
    """One torch Dim a name, so that the same name means the same size."""
    if isinstance(size, str):
        return dims.setdefault(size, torch.export.Dim(size))
    if isinstance(size, tuple):
        name, least, most = size
        return dims.setdefault(name, torch.export.Dim(name, min=least, max=most))
    return size
