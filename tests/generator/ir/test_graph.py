"""The graph as plain data: use-def, checks, layouts and JSON."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings

from generator.ir import (
    Graph,
    GraphError,
    Location,
    Node,
    Size,
    Value,
    ValueKind,
    ValueRef,
    as_extent,
    dense_strides,
    dump,
    load,
    product,
)
from tests.generator.ir.building import Builder, graphs


def diamond() -> Graph:
    """x -> a -> (b, c) -> d, with a returned too."""
    build = Builder()
    x = build.input(2, 4)
    a = build.op("exp.default", x, shape=(2, 4))
    b = build.op("neg.default", a, shape=(2, 4))
    c = build.op("mul.Tensor", a, a, shape=(2, 4))
    d = build.op("add.Tensor", b, c, shape=(2, 4))
    return build.graph(d, a)


def test_users_and_producers_follow_the_edges():
    graph = diamond()
    assert [node.id for node in graph.users("n0")] == ["n1", "n2"]
    assert [node.id for node in graph.consumers("n0")] == ["n1", "n2"]
    assert [node.id for node in graph.producers("n3")] == ["n1", "n2"]
    assert graph.producer("x0") is None
    assert graph.producer("n3") == graph.node("n3")
    assert graph.position("n2") == 2


def test_a_value_read_twice_by_one_node_is_one_use():
    assert diamond().node("n2").inputs == ("n0",)


def test_what_crosses_a_set_of_nodes_is_what_others_read_and_what_the_graph_returns():
    graph = diamond()
    assert graph.crossing(["n0", "n1"]) == (("x0",), ("n0", "n1"))
    assert graph.crossing(["n1", "n2", "n3"]) == (("n0",), ("n3",))


def test_a_view_leads_to_the_value_that_owns_the_storage():
    build = Builder()
    x = build.input(2, 4)
    a = build.op("view.default", x, (8,), shape=(8,), view=True)
    b = build.op("view.default", a, (4, 2), shape=(4, 2), view=True)
    graph = build.graph(b)
    assert graph.root(b).id == x
    assert graph.root(x).id == x


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (lambda g: replace(g, nodes=g.nodes[::-1]), "before anything computes it"),
        (lambda g: replace(g, nodes=(*g.nodes, g.nodes[0])), "same id"),
        (lambda g: replace(g, outputs=("nowhere",)), "computed by nothing"),
        (lambda g: replace(g, inputs=("n0",)), "no value that the graph is given"),
        (lambda g: replace(g, nodes=(replace(g.nodes[0], outputs=("x0",)), *g.nodes[1:])), "another's or unknown"),
    ],
)
def test_a_graph_that_cannot_run_is_refused(broken, says: str):
    with pytest.raises(GraphError, match=says):
        broken(diamond())


def test_dense_strides_multiply_symbols_the_way_an_exporter_writes_them():
    assert dense_strides((2, 3, 4)) == (12, 4, 1)
    assert dense_strides(("s0", 4, 16)) == (64, 16, 1)
    assert dense_strides((2, "s1", 16)) == ("16*s1", 16, 1)
    assert product("s0", "2*s1") == "2*s0*s1"
    assert product("s0 + 1", 3) == "(s0 + 1)*(3)"


def test_only_a_row_major_layout_without_gaps_is_contiguous():
    dense = Value("v", (2, "s0", 4), "float32", ("4*s0", 4, 1), ValueKind.INPUT)
    assert dense.is_contiguous
    assert not dense.is_static
    assert not replace(dense, strides=(4, 8, 1)).is_contiguous
    one = Value("v", (1, 4), "float32", (99, 1), ValueKind.INPUT)
    assert one.is_contiguous  # the stride of a dimension of one element moves nothing


def test_a_node_tells_its_arguments_apart():
    node = Node("n", "aten.slice.Tensor", (ValueRef("x"), 1, Size("s0 + 1"), True), (("dtype", "torch.float32"),))
    assert node.target == "aten.slice"
    assert node.kwarg("dtype") == "torch.float32"
    assert [as_extent(arg) for arg in node.args] == [None, 1, "s0 + 1", None]
    with pytest.raises(ValueError, match="0 outputs"):
        _ = node.output


def test_every_kind_of_argument_survives_json():
    build = Builder()
    x = build.input("s0", 4, dtype="bfloat16")
    build.op("mystery.default", x, (1, (x, None)), Size("2*s0"), float("-inf"), 0.5, True, "cpu", shape=("s0", 4))
    graph = build.graph(extents={"s0": (1, 64)})
    where = replace(graph.nodes[0], where=Location("a.py", 3, "forward"), module="layers.0")
    graph = replace(graph, nodes=(where,))
    assert load(json.loads(json.dumps(dump(graph), allow_nan=False))) == graph


def test_another_format_is_refused():
    with pytest.raises(GraphError, match="format 99"):
        load(dump(diamond()) | {"format": 99})


@settings(max_examples=15, deadline=None)
@given(graph=graphs())
def test_any_graph_survives_json(graph: Graph):
    assert load(json.loads(json.dumps(dump(graph)))) == graph
