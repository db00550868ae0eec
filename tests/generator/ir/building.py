"""Graphs for tests: by hand, one operator a call, or drawn by hypothesis."""

from __future__ import annotations

from hypothesis import strategies as st

from generator.ir import Arg, Extent, Graph, Node, Size, Value, ValueKind, ValueRef, dense_strides


class Builder:
    """Collects operators; every method returns the id of the value it makes."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.values: dict[str, Value] = {}
        self.given: list[str] = []

    def input(self, *shape: Extent, dtype: str = "float32", kind: ValueKind = ValueKind.INPUT) -> str:
        name = f"{'x' if kind is ValueKind.INPUT else 'w'}{len(self.given)}"
        self.values[name] = Value(name, shape, dtype, dense_strides(shape), kind, name)
        self.given.append(name)
        return name

    def weight(self, *shape: Extent, dtype: str = "float32") -> str:
        return self.input(*shape, dtype=dtype, kind=ValueKind.PARAMETER)

    def op(
        self,
        op: str,
        *args: Arg,
        shape: tuple[Extent, ...],
        dtype: str = "float32",
        view: bool = False,
        mutates: tuple[str, ...] = (),
    ) -> str:
        """A node with one output of this shape; str arguments that name a value are references to it."""
        name = f"n{len(self.nodes)}"
        refs = tuple(_ref(self.values, arg) for arg in args)
        alias = None
        if view:
            source = self.values[next(ref.id for ref in refs if isinstance(ref, ValueRef))]
            alias = source.alias_of or source.id
        self.values[name] = Value(name, shape, dtype, dense_strides(shape), ValueKind.COMPUTED, "", name, alias)
        self.nodes.append(Node(name, f"aten.{op}", refs, outputs=(name,), mutates=mutates))
        return name

    def graph(self, *outputs: str, extents: dict[str, tuple[int, int]] | None = None) -> Graph:
        returned = outputs or ((self.nodes[-1].outputs[0],) if self.nodes else ())
        return Graph(tuple(self.nodes), self.values, tuple(self.given), returned, extents or {})


def _ref(values: dict[str, Value], arg: Arg) -> Arg:
    if isinstance(arg, str) and arg in values:
        return ValueRef(arg)
    return tuple(_ref(values, item) for item in arg) if isinstance(arg, tuple) else arg


SHAPE: tuple[int, int] = (4, 8)
_UNARY = ("silu.default", "rsqrt.default", "exp.default", "tanh.default", "neg.default")
_BINARY = ("add.Tensor", "mul.Tensor", "sub.Tensor", "div.Tensor")


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Graphs of a few operators of every class over rows [4, 8] and one number a row [4, 1]."""
    build = Builder()
    rows = [build.input(*SHAPE), build.input(*SHAPE, dtype="bfloat16")]
    numbers = [build.input(SHAPE[0], 1)]
    weight = build.weight(8, 8)
    vector = build.weight(8)
    for _ in range(draw(st.integers(1, 22))):
        kind = draw(st.sampled_from(_KINDS))
        x = draw(st.sampled_from(rows))
        other = draw(st.sampled_from([*rows, *numbers, vector]))
        match kind:
            case "unary":
                rows.append(build.op(draw(st.sampled_from(_UNARY)), x, shape=SHAPE))
            case "binary":
                rows.append(build.op(draw(st.sampled_from(_BINARY)), x, other, shape=SHAPE))
            case "cast":
                dtype = draw(st.sampled_from(("bfloat16", "float32", "int64")))
                rows.append(build.op("_to_copy.default", x, shape=SHAPE, dtype=dtype))
            case "reduce":
                numbers.append(build.op("mean.dim", x, (-1,), True, shape=(SHAPE[0], 1)))
            case "number":
                numbers.append(build.op("add.Tensor", draw(st.sampled_from(numbers)), 1e-6, shape=(SHAPE[0], 1)))
            case "softmax":
                rows.append(build.op("_softmax.default", x, -1, False, shape=SHAPE))
            case "norm":
                rows.append(build.op("layer_norm.default", x, (8,), vector, shape=SHAPE))
            case "linear":
                rows.append(build.op("linear.default", x, weight, shape=SHAPE))
            case "view":
                turned = build.op("permute.default", x, (1, 0), shape=(8, 4), view=True)
                rows.append(build.op("permute.default", turned, (1, 0), shape=SHAPE, view=True))
            case "move":
                rows.append(build.op("cat.default", (x, draw(st.sampled_from(rows))), 0, shape=SHAPE))
            case "unknown":
                rows.append(build.op("mystery.default", x, shape=SHAPE))
            case "in place":
                rows.append(build.op("add_.Tensor", x, 1.0, shape=SHAPE, view=True, mutates=(x,)))
    made = [value for node in build.nodes for value in node.outputs]
    return build.graph(*dict.fromkeys(draw(st.lists(st.sampled_from(made), min_size=1, max_size=3))))


_KINDS = (
    *("unary", "binary", "cast", "reduce", "number", "softmax", "norm", "linear", "view", "move", "unknown"),
    "in place",
)

__all__ = ["SHAPE", "Builder", "Size", "graphs"]
