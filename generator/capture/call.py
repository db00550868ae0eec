"""Capturing a call: the whole module where it can be traced, else the parts of it that can."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from generator.capture.convert import convert
from generator.capture.problem import Problem, problem_of_exception
from generator.capture.trace import trace
from generator.ir import Graph, Value

_NOTHING = Graph((), {}, (), ())


@dataclass(frozen=True, slots=True)
class Part:
    """A submodule captured alone, because a module around it could not be: its path, and its own graph and program."""

    module: str
    graph: Graph
    program: torch.export.ExportedProgram


@dataclass(frozen=True, slots=True)
class Capture:
    """One captured call.

    Where the whole module was traced, ``program`` is set, ``graph`` holds all of it and ``parts`` is empty. Else
    ``graph`` is empty, ``program`` None, and ``parts`` holds the outermost submodules that could be traced; what is in
    none of them runs in the framework. ``problems`` says what and why, and also names operators inside a graph that
    only the framework can run.
    """

    graph: Graph
    program: torch.export.ExportedProgram | None
    problems: tuple[Problem, ...] = ()
    parts: tuple[Part, ...] = ()

    @property
    def is_whole(self) -> bool:
        """True where nothing is left to the framework's own control."""
        return self.program is not None


def capture(
    module: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic: Mapping[str, Any] | None = None,
    prefix: str = "",
) -> Capture:
    """The graph of ``module(*args, **kwargs)``; never raises for what a module does.

    ``dynamic`` maps argument names to the dimensions whose size may change (see ``generator.capture.trace``). Where a
    size turns out to be fixed, that is a problem, and the call is captured at the sizes of the example. ``prefix`` is
    a leading module path to leave out of names.
    """
    problems: list[Problem] = []
    try:
        program = trace(module, args, kwargs or {}, dynamic)
        graph = convert(program, prefix=prefix)
    except Exception as error:  # whatever a module's own code raises under the tracer is a finding
        problems.append(problem_of_exception(error, ""))
        if dynamic is not None:
            fixed = capture(module, args, kwargs, prefix=prefix)
            first = problems[0]
            if fixed.is_whole:
                message = f"{first.message.removesuffix('; runs in the framework')}; captured at the example's sizes"
                first = Problem(first.construct, message, first.where)
            others = fixed.problems if fixed.is_whole else fixed.problems[1:]
            return Capture(fixed.graph, fixed.program, (first, *others), fixed.parts)
        parts, more = _parts(module, args, kwargs or {})
        return Capture(_NOTHING, None, (*problems, *more), parts)
    return Capture(graph, program, tuple(_in_graph(graph)))


def _parts(
    module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[tuple[Part, ...], tuple[Problem, ...]]:
    """Submodules that can be traced, found by running the module once in the framework and recording their calls."""
    children = dict(_callable_children(module))
    calls: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {}

    def recorder(path: str) -> Any:
        def record(_: torch.nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
            calls.setdefault(path, (given, named))

        return record

    hooks = [child.register_forward_pre_hook(recorder(p), with_kwargs=True) for p, child in children.items()]
    try:
        with torch.no_grad():
            module(*args, **kwargs)
    except Exception as error:  # the framework itself cannot run the call: the parts reached until then still count
        return (), (problem_of_exception(error, ""),) if not calls else ()
    finally:
        for hook in hooks:
            hook.remove()
    parts: list[Part] = []
    problems: list[Problem] = []
    for path, (given, named) in calls.items():
        inner = capture(children[path], given, named)
        if inner.program is not None:
            parts.append(Part(path, inner.graph, inner.program))
        parts.extend(Part(f"{path}.{part.module}", part.graph, part.program) for part in inner.parts)
        problems.extend(
            Problem(p.construct, p.message, p.where, f"{path}.{p.module}".rstrip(".")) for p in inner.problems
        )
    return tuple(parts), tuple(problems)


def _callable_children(module: torch.nn.Module, path: str = "") -> Iterator[tuple[str, torch.nn.Module]]:
    """Direct children with a forward of their own; through lists and dictionaries of modules, which have none."""
    for name, child in module.named_children():
        if isinstance(child, (torch.nn.ModuleList, torch.nn.ModuleDict)):
            yield from _callable_children(child, f"{path}{name}.")
        else:
            yield f"{path}{name}", child


def _in_graph(graph: Graph) -> Iterator[Problem]:
    """Operators of a captured graph that no kernel can replace: another library's, control flow, sizes from data."""
    decided: set[str] = set()
    for node in graph.nodes:
        fresh = {size for value in node.outputs for size in _sizes_from_data(graph.values[value])} - decided
        decided |= fresh
        namespace = node.op.split(".", 1)[0]
        if namespace == "higher_order":
            yield Problem(node.op, "control flow inside the graph; runs in the framework", node.where, node.module)
        elif namespace not in ("aten", "prims", "_operator", "math", "torch"):
            yield Problem(node.op, "an operator of another library; runs in the framework", node.where, node.module)
        elif fresh or node.target == "aten._local_scalar_dense":
            yield Problem(node.op, "a size or number decided by data; runs in the framework", node.where, node.module)


def _sizes_from_data(value: Value) -> set[str]:
    return set(re.findall(r"\bu\d+\b", " ".join(map(str, value.shape))))
