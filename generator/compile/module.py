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
from generator.compile.calls import CallForm, OtherCallError
from generator.ir import Graph

# They state what the tracer knew and compute nothing; the values they look at may no longer exist.
_STATEMENTS = ("_assert_tensor_metadata",)


class CompiledModule:
    """Call it as the module. For inference: gradients are not recorded.

    Whatever fails, the module itself is called instead: ``fallbacks`` counts it, with a warning at the first time.
    ``kernels`` is False where the module was measured to be faster without; it is then called at once. ``regions`` is
    the number of calls of kernels, ``code`` the graph with them in place of operators, for whoever wants to read it.
    """

    def __init__(
        self, module: Callable[..., Any], rewritten: Rewritten, fallbacks: Fallbacks, *, kernels: bool = True
    ) -> None:
        self.module = module
        self.fallbacks = fallbacks
        self.kernels = kernels
        self.regions = rewritten.regions
        self.code = rewritten.code
        self._form = rewritten.form
        self._held = rewritten.held
        self._function = rewritten.function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the module returns."""
        with torch.no_grad():
            if self.kernels:
                try:
                    return self._form.unflatten(self._function(*self._held, *self._form.flatten(args, kwargs)))
                except OtherCallError as error:
                    self.fallbacks.add("the module", str(error))
                except Exception as error:  # a call that cannot be run this way is still a call of the module
                    self.fallbacks.add("the module", f"{type(error).__name__}: {str(error).strip()[:300]}")
            return self.module(*args, **kwargs)


@dataclass(frozen=True, slots=True)
class Replacement:
    """A region of the graph, by the ids of its nodes, and what is called instead."""

    nodes: Sequence[str]
    region: BoundRegion


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A captured program as a function of what the module holds and the call's flat values, in this order.

    ``left_out``: replacements that are not in it, with the reason.
    """

    function: Callable[..., Sequence[Any]]
    held: Sequence[Any]
    form: CallForm
    code: fx.Graph
    regions: int
    left_out: Sequence[tuple[Replacement, str]]


@dataclass(slots=True)
class _Rewriting:
    """State of one rewriting: the old nodes by the ids of their values, the new graph, and who is what in it."""

    names: Mapping[str, fx.Node]
    unit_of: Mapping[str, int]
    replacements: Sequence[Replacement]
    new: fx.Graph = field(default_factory=fx.Graph)
    made: dict[str, fx.Node] = field(default_factory=dict)
    done: set[int] = field(default_factory=set)


def rewritten(program: torch.export.ExportedProgram, graph: Graph, replacements: Sequence[Replacement]) -> Rewritten:
    """The exported program with one call for every replacement.

    A replacement is left out where something outside reads a size off a value that no longer exists. Regions must not
    depend on each other in a circle, which the analyzer sees to. What the module holds is looked up once, here.
    """
    old = program.module(check_guards=False)
    assert isinstance(old, fx.GraphModule)
    kept, left_out = _possible(old, replacements)
    unit_of = {node: number for number, item in enumerate(kept) for node in item.nodes}
    work = _Rewriting(_by_value(old, program), unit_of, kept)
    attributes = [node for node in old.graph.nodes if node.op == "get_attr"]
    for number, node in enumerate(attributes):
        work.made[node.name] = work.new.placeholder(f"held_{number}")
    for node in old.graph.nodes:
        _emit(node, work)
    work.new.lint()
    held = [operator.attrgetter(str(node.target))(old) for node in attributes]
    function = fx.GraphModule(old, work.new).forward
    return Rewritten(function, held, CallForm(program, graph), work.new, len(kept), left_out)


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
