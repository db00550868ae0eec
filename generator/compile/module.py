"""The captured module as a callable in which kernels stand for regions, and the framework for everything else."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from generator.compile.bound import BoundRegion, Fallbacks

# They state what the tracer knew and compute nothing; the values they look at may no longer exist.
_STATEMENTS = ("_assert_tensor_metadata",)


class CompiledModule:
    """Call it as the module. For inference: gradients are not recorded.

    Whatever fails, the module itself is called instead: ``fallbacks`` counts it, with a warning at the first time.
    ``kernels`` is False where the module was measured to be faster without; it is then called at once.
    """

    def __init__(
        self, module: torch.nn.Module, graph: torch.nn.Module, fallbacks: Fallbacks, *, kernels: bool = True
    ) -> None:
        self.module = module
        self.graph = graph
        self.fallbacks = fallbacks
        self.kernels = kernels

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the module returns."""
        with torch.no_grad():
            if self.kernels:
                try:
                    return self.graph(*args, **kwargs)
                except Exception as error:  # a call that was not captured is still a call of the module
                    self.fallbacks.add("the module", f"{type(error).__name__}: {str(error).strip()[:300]}")
            return self.module(*args, **kwargs)


@dataclass(frozen=True, slots=True)
class Replacement:
    """A region of the graph, by the ids of its nodes, and what is called instead."""

    nodes: Sequence[str]
    region: BoundRegion


@dataclass(slots=True)
class _Rewriting:
    """State of one rewriting: the old nodes by name, the new graph, and who is what in it."""

    old: fx.GraphModule
    names: Mapping[str, fx.Node]
    unit_of: Mapping[str, int]
    replacements: Sequence[Replacement]
    new: fx.Graph = field(default_factory=fx.Graph)
    made: dict[str, fx.Node] = field(default_factory=dict)
    done: set[int] = field(default_factory=set)


def rewritten(
    program: torch.export.ExportedProgram, replacements: Sequence[Replacement]
) -> tuple[torch.nn.Module, list[tuple[Replacement, str]]]:
    """The exported program as a module in which every replacement is one call.

    Also returns the replacements that were left out, with the reason: where something outside reads a size off a value
    that no longer exists. Regions must not depend on each other in a circle, which the analyzer sees to.
    """
    old = program.module()
    assert isinstance(old, fx.GraphModule)
    kept, left_out = _possible(old, replacements)
    names = _by_value(old, program)
    unit_of = {node: number for number, item in enumerate(kept) for node in item.nodes}
    work = _Rewriting(old, names, unit_of, kept)
    for node in old.graph.nodes:
        _emit(node, work)
    work.new.set_codegen(old.graph._codegen)
    module = fx.GraphModule(old, work.new)
    module.graph.lint()
    return module, left_out


def _possible(
    old: fx.GraphModule, replacements: Sequence[Replacement]
) -> tuple[list[Replacement], list[tuple[Replacement, str]]]:
    kept: list[Replacement] = []
    left_out = []
    by_name = {node.name: node for node in old.graph.nodes}
    for item in replacements:
        inside, seen = set(item.nodes), set(item.region.outputs)
        reason = ""
        for name in item.nodes:
            users = [u for u in by_name[name].users if u.name not in inside and not _is_statement(u)]
            if users and name not in seen and not all(u.name in seen for u in users):
                reason = f"{users[0].name} reads '{name}', which the region does not return"
        if reason:
            left_out.append((item, reason))
        else:
            kept.append(item)
    return kept, left_out


def _by_value(old: fx.GraphModule, program: torch.export.ExportedProgram) -> dict[str, fx.Node]:
    """Nodes by the ids values have in the graph: computed ones by name, what the module holds by its place in it."""
    held = {node.target: node for node in old.graph.nodes if node.op == "get_attr"}
    found = {node.name: node for node in old.graph.nodes if node.op != "get_attr"}
    signature = program.graph_signature
    places = {
        **signature.inputs_to_parameters,
        **signature.inputs_to_buffers,
        **signature.inputs_to_lifted_tensor_constants,
    }
    return found | {value: held[target] for value, target in places.items() if target in held}


def _emit(node: fx.Node, work: _Rewriting) -> None:
    """Put ``node``, or the region it is in, into the new graph, after everything it reads."""
    if node.name in work.made or _is_statement(node):
        return
    unit = work.unit_of.get(node.name)
    if unit is None:
        for source in node.all_input_nodes:
            _emit(source, work)
        work.made[node.name] = work.new.node_copy(node, lambda n: work.made[n.name])
        return
    if unit in work.done:
        return
    work.done.add(unit)
    region = work.replacements[unit].region
    sources = [work.names[value] for value in region.inputs]
    for source in sources:
        _emit(source, work)
    call = work.new.call_function(_function(region), tuple(work.made[s.name] for s in sources))
    for number, value in enumerate(region.outputs):
        work.made[work.names[value].name] = work.new.call_function(operator.getitem, (call, number))


def _function(region: BoundRegion) -> Callable[..., tuple[torch.Tensor, ...]]:
    """The region as a plain function: a module's call would cost as much as a small kernel."""
    call = region.__call__

    def run_region(*values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return call(*values)

    run_region.__name__ = run_region.__qualname__ = re.sub(r"\W", "_", f"region_{region.name}")
    return run_region


def _is_statement(node: fx.Node) -> bool:
    return node.op == "call_function" and any(word in str(node.target) for word in _STATEMENTS)


__all__ = ["CompiledModule", "Replacement", "rewritten"]
