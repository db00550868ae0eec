"""From an exported program to the graph: plain data, sizes as numbers or text, writes as nodes of their own."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch.export.graph_signature import InputKind, InputSpec, OutputKind

from generator.capture.problem import location_of_trace
from generator.ir import Arg, Extent, Graph, Node, Size, Value, ValueKind, ValueRef, product

_KINDS = {
    InputKind.USER_INPUT: ValueKind.INPUT,
    InputKind.PARAMETER: ValueKind.PARAMETER,
    InputKind.BUFFER: ValueKind.BUFFER,
    InputKind.CONSTANT_TENSOR: ValueKind.CONSTANT,
}
# They state what the tracer already knows, or give a tensor another name: no work, no value of their own.
_SAME = ("aten.alias.default", "aten.detach.default", "aten.detach_.default", "aten.lift_fresh_copy.default")
_STATEMENTS = (
    "aten._assert_tensor_metadata.default",
    "aten._assert_scalar.default",
    "aten.sym_constrain_range_for_size.default",
    "aten.sym_constrain_range.default",
)
_UNBOUNDED = 2**63 - 1


def convert(program: torch.export.ExportedProgram, *, prefix: str = "") -> Graph:
    """The graph of an exported program.

    ``prefix`` is a leading module path, such as ``model.``, that names of parameters and modules are shortened by.
    Writes to buffers and arguments, which an exporter turns into extra outputs, become ``aten.copy_`` nodes at the
    end whose ``mutates`` names the value written. Raises GraphError when the program is not a graph.
    """
    return _Conversion(program, prefix).graph()


class _Conversion:
    def __init__(self, program: torch.export.ExportedProgram, prefix: str) -> None:
        self._program = program
        self._prefix = prefix
        self._values: dict[str, Value] = {}
        self._names: dict[str, str] = {}  # what the program calls a value -> the value's id
        self._several: dict[str, tuple[str, ...]] = {}  # nodes with a tuple of outputs -> their values' ids
        self._symbols: dict[str, str] = {}  # the exporter's size symbols -> s0, s1, ... (u0, ... where data decides)

    def graph(self) -> Graph:
        specs = {spec.arg.name: spec for spec in self._program.graph_signature.input_specs if hasattr(spec.arg, "name")}
        nodes: list[Node] = []
        inputs: list[str] = []
        returned: tuple[Any, ...] = ()
        for fx in self._program.graph.nodes:
            if fx.op == "placeholder":
                if isinstance(fx.meta.get("val"), torch.Tensor):
                    inputs.append(self._input(fx, specs[fx.name]))
            elif fx.op == "call_function":
                node = self._node(fx)
                if node is not None:
                    nodes.append(node)
            elif fx.op == "output":
                returned = tuple(fx.args[0])
        writes, outputs = self._writes(returned)
        return Graph(
            nodes=(*nodes, *writes),
            values=self._values,
            inputs=tuple(inputs),
            outputs=outputs,
            extents=self._extents(),
        )

    def _input(self, fx: torch.fx.Node, spec: InputSpec) -> str:
        name = self._short(spec.target) if spec.target is not None else fx.name
        value = self._value(fx.name, fx.meta["val"], _KINDS.get(spec.kind, ValueKind.CONSTANT), producer=None)
        self._values[value.id] = replace(value, name=name)
        self._names[fx.name] = value.id
        return value.id

    def _node(self, fx: torch.fx.Node) -> Node | None:
        op = str(fx.target) if not hasattr(fx.target, "__name__") else _operator_name(fx.target)
        result = fx.meta.get("val")
        if op in _STATEMENTS or (_is_symbolic(result) and not self._decided_by_data(result)):
            return None
        first = fx.args[0] if fx.args else None
        if isinstance(first, torch.fx.Node) and (op in _SAME or self._is_needless_copy(fx, op, first)):
            self._names[fx.name] = self._names[first.name]
            return None
        if op == "_operator.getitem" and isinstance(fx.args[0], torch.fx.Node) and fx.args[0].name in self._several:
            self._names[fx.name] = self._several[fx.args[0].name][int(str(fx.args[1]))]
            return None
        outputs = self._outputs(fx, result)
        return Node(
            id=fx.name,
            op=op,
            args=tuple(self._arg(arg) for arg in fx.args),
            kwargs=tuple((name, self._arg(arg)) for name, arg in fx.kwargs.items()),
            outputs=outputs,
            mutates=self._mutated(fx),
            where=location_of_trace(fx.meta.get("stack_trace")),
            module=self._module(fx),
        )

    def _is_needless_copy(self, fx: torch.fx.Node, op: str, copied: torch.fx.Node) -> bool:
        """A copy in the same layout of a value that nothing overwrites, as dropout leaves behind outside training."""
        if op != "aten.clone.default" or fx.kwargs.get("memory_format") not in (None, torch.preserve_format):
            return False
        source = self._values.get(self._names.get(copied.name, ""))
        return source is not None and self._values[source.alias_of or source.id].kind is ValueKind.COMPUTED

    def _outputs(self, fx: torch.fx.Node, result: object) -> tuple[str, ...]:
        if isinstance(result, (tuple, list)):
            picked = {int(str(u.args[1])): u.name for u in fx.users if _operator_name(u.target) == "_operator.getitem"}
            ids = []
            for index, item in enumerate(result):
                if isinstance(item, torch.Tensor):
                    name = picked.get(index, f"{fx.name}_{index}")
                    self._values[name] = self._value(name, item, ValueKind.COMPUTED, fx.name, self._alias(fx, index))
                    ids.append(name)
            self._several[fx.name] = tuple(ids)
            return tuple(ids)
        if isinstance(result, torch.Tensor):
            value = self._value(fx.name, result, ValueKind.COMPUTED, fx.name, self._alias(fx, 0))
        elif _is_symbolic(result):
            value = Value(fx.name, (), "int64", (), ValueKind.COMPUTED, producer=fx.name)
        else:
            return ()
        self._values[fx.name] = value
        self._names[fx.name] = fx.name
        return (fx.name,)

    def _alias(self, fx: torch.fx.Node, index: int) -> str | None:
        """The value whose storage output ``index`` shares by the operator's own schema."""
        schema = getattr(fx.target, "_schema", None)
        if schema is None or not schema.returns:
            return None
        shared = schema.returns[min(index, len(schema.returns) - 1)].alias_info
        if shared is None:
            return None
        of_list = "List" in str(schema.returns[0].type)  # the annotation is on the elements, and its names out of reach
        for position, argument in enumerate(schema.arguments):
            info = argument.alias_info
            if info is None or not (of_list or set(info.before_set) & set(shared.before_set)):
                continue
            given = fx.args[position] if position < len(fx.args) else fx.kwargs.get(argument.name)
            if isinstance(given, torch.fx.Node) and given.name in self._names:
                source = self._values[self._names[given.name]]
                return source.alias_of or source.id
        return None

    def _mutated(self, fx: torch.fx.Node) -> tuple[str, ...]:
        schema = getattr(fx.target, "_schema", None)
        if schema is None:
            return ()
        found = []
        for position, argument in enumerate(schema.arguments):
            given = fx.args[position] if position < len(fx.args) else fx.kwargs.get(argument.name)
            written = argument.alias_info is not None and argument.alias_info.is_write
            if written and isinstance(given, torch.fx.Node) and given.name in self._names:
                found.append(self._names[given.name])
        return tuple(found)

    def _writes(self, returned: tuple[Any, ...]) -> tuple[tuple[Node, ...], tuple[str, ...]]:
        by_target = {value.name: value.id for value in self._values.values() if value.kind is not ValueKind.COMPUTED}
        writes: list[tuple[str, str]] = []  # what is overwritten, and with what
        outputs: list[str] = []
        for spec, item in zip(self._program.graph_signature.output_specs, returned, strict=True):
            if not isinstance(item, torch.fx.Node) or item.name not in self._names:
                continue
            value = self._names[item.name]
            if spec.kind in (OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION) and spec.target is not None:
                writes.append((by_target.get(self._short(spec.target)) or self._names[spec.target], value))
            else:
                outputs.append(value)
        copies, nodes = [], []
        overwritten = {target for target, _ in writes}
        for index, (target, value) in enumerate(write for write in writes if write[0] != write[1]):
            source = self._values[value]
            if (source.alias_of or source.id) in overwritten:  # an earlier write must not change what this one reads
                copied = replace(source, id=f"kept_{index}", producer=f"kept_{index}", kind=ValueKind.COMPUTED)
                self._values[copied.id] = replace(copied, alias_of=None, name="")
                copies.append(Node(copied.id, "aten.clone.default", (ValueRef(value),), outputs=(copied.id,)))
                value = copied.id
            args = (ValueRef(target), ValueRef(value))
            nodes.append(Node(f"write_{index}", "aten.copy_.default", args, mutates=(target,)))
        return (*copies, *nodes), tuple(outputs)

    def _value(
        self, name: str, tensor: torch.Tensor, kind: ValueKind, producer: str | None, alias_of: str | None = None
    ) -> Value:
        dense = tensor.layout is torch.strided
        return Value(
            id=name,
            shape=tuple(self._extent(size) for size in tensor.shape),
            dtype=_dtype_name(tensor.dtype),
            strides=tuple(self._extent(stride) for stride in tensor.stride()) if dense else (0,) * tensor.dim(),
            kind=kind,
            producer=producer,
            alias_of=alias_of,
        )

    def _arg(self, arg: Any) -> Arg:
        match arg:
            case torch.fx.Node():
                result = arg.meta.get("val")
                if arg.name in self._names:
                    return ValueRef(self._names[arg.name])
                if arg.name in self._several:
                    return tuple(ValueRef(name) for name in self._several[arg.name])
                return self._symbolic_arg(result) if _is_symbolic(result) else f"graph:{arg.name}"
            case list() | tuple():
                return tuple(self._arg(item) for item in arg)
            case torch.dtype() | torch.layout() | torch.memory_format():
                return str(arg)
            case None | bool() | int() | float() | str():
                return arg
            case torch.SymInt() | torch.SymFloat() | torch.SymBool():
                return self._symbolic_arg(arg)
            case _:
                return str(arg)

    def _symbolic_arg(self, size: object) -> Arg:
        extent = self._extent(size)
        return Size(extent) if isinstance(extent, str) else extent

    def _extent(self, size: object) -> Extent:
        if isinstance(size, int):
            return size
        expression = getattr(size, "node", size)
        text = str(getattr(expression, "expr", expression))
        if text.lstrip("-").isdigit():
            return int(text)
        renamed = re.sub(r"\b[suz]\d+\b", lambda match: self._symbol(match[0]), text)
        if not re.fullmatch(r"[\w*]+", renamed):
            return renamed
        factors: list[Extent] = [int(factor) if factor.isdigit() else factor for factor in renamed.split("*")]
        return functools.reduce(product, factors)

    def _symbol(self, exported: str) -> str:
        if exported not in self._symbols:
            letter = "u" if exported.startswith("u") else "s"
            count = sum(name.startswith(letter) for name in self._symbols.values())
            self._symbols[exported] = f"{letter}{count}"
        return self._symbols[exported]

    def _decided_by_data(self, size: object) -> bool:
        extent = self._extent(size)
        return isinstance(extent, str) and re.search(r"\bu\d+\b", extent) is not None

    def _extents(self) -> Mapping[str, tuple[int, int]]:
        found = {}
        for symbol, bounds in self._program.range_constraints.items():
            if str(symbol) in self._symbols:
                found[self._symbols[str(symbol)]] = (_bound(bounds.lower), _bound(bounds.upper))
        return dict(sorted(found.items()))

    def _module(self, fx: torch.fx.Node) -> str:
        stack: Iterable[tuple[str, Any]] = (fx.meta.get("nn_module_stack") or {}).values()
        path = ""
        for entry in stack:
            path = entry[0]
        return self._short(path)

    def _short(self, path: str) -> str:
        return path.removeprefix(self._prefix) if path != self._prefix.rstrip(".") else ""


def _operator_name(target: Any) -> str:
    if isinstance(target, torch._ops.HigherOrderOperator):
        return f"higher_order.{target._name}"
    if isinstance(target, torch._ops.OpOverload):
        return str(target)
    return f"{getattr(target, '__module__', '')}.{getattr(target, '__name__', target)}"


def _is_symbolic(result: object) -> bool:
    return isinstance(result, (torch.SymInt, torch.SymFloat, torch.SymBool))


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _bound(bound: object) -> int:
    text = str(bound)
    return int(text) if text.lstrip("-").isdigit() else _UNBOUNDED
