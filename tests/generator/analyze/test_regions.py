"""Regions of drawn graphs keep what every partition must; regions of small graphs are the ones meant."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from generator.analyze import Analysis, Category, Region, analyze
from generator.ir import Graph, dump, load
from tests.generator.ir.building import Builder, graphs


def regions_of(graph: Graph) -> Analysis:
    return analyze(graph, {})


def kinds(graph: Graph) -> list[str]:
    return [region.category.value for region in regions_of(graph).regions]


@settings(max_examples=25, deadline=None)
@given(graph=graphs())
def test_regions_partition_the_nodes(graph: Graph):
    found = regions_of(graph)
    nodes = [node for region in found.regions for node in region.nodes]
    assert sorted(nodes) == sorted(node.id for node in graph.nodes)
    assert len(nodes) == len(set(nodes))
    assert all(found.region_of(node).nodes.count(node) == 1 for node in nodes)


@settings(max_examples=25, deadline=None)
@given(graph=graphs())
def test_regions_can_run_one_after_the_other(graph: Graph):
    made = set(graph.inputs)
    for region in regions_of(graph).regions:
        assert set(region.inputs) <= made, f"{region.id} reads what a later region makes"
        made |= set(region.outputs)
    assert set(graph.outputs) <= made


@settings(max_examples=25, deadline=None)
@given(graph=graphs())
def test_every_edge_is_inside_a_region_or_crosses_its_boundary(graph: Graph):
    found = regions_of(graph)
    for node in graph.nodes:
        reader = found.region_of(node.id)
        for value in node.inputs:
            producer = graph.producer(value)
            if producer is None:
                assert value in reader.inputs
            elif found.region_of(producer.id) is not reader:
                assert value in reader.inputs
                assert value in found.region_of(producer.id).outputs
    for region in found.regions:
        assert (region.inputs, region.outputs) == graph.crossing(region.nodes)


@settings(max_examples=15, deadline=None)
@given(graph=graphs())
def test_the_same_graph_gives_the_same_regions(graph: Graph):
    first, second = regions_of(graph), regions_of(load(dump(graph)))
    assert (first.regions, first.boundaries) == (second.regions, second.boundaries)


@settings(max_examples=25, deadline=None)
@given(graph=graphs())
def test_hard_boundaries_share_a_region_with_nothing_a_kernel_may_compute(graph: Graph):
    found = regions_of(graph)
    reasons = {boundary.node: boundary.reason for boundary in found.boundaries}
    for region in found.regions:
        blocked = [node for node in region.nodes if node in reasons]
        assert (region.blocked is not None) == bool(blocked)
        assert len(blocked) in (0, len(region.nodes))
        if len(blocked) > 1:
            assert len({reasons[node] for node in blocked}) == 1


@settings(max_examples=15, deadline=None)
@given(graph=graphs())
def test_products_of_matrices_stay_alone(graph: Graph):
    for region in regions_of(graph).regions:
        if region.blocked is not None:
            continue  # a piece that the framework computes, products and all
        products = [node for node in region.nodes if graph.node(node).target == "aten.linear"]
        assert len(products) <= 1
        if products:
            assert region.category in (Category.GEMM, Category.GEMV)
            assert len(region.outputs) <= 1  # its epilogue leaves one value


def only(graph: Graph) -> Region:
    (region,) = regions_of(graph).regions
    return region


def test_a_chain_of_elementwise_operators_is_one_region():
    build = Builder()
    x, y = build.input(4, 8), build.input(4, 8)
    a = build.op("add.Tensor", x, y, shape=(4, 8))
    b = build.op("exp.default", a, shape=(4, 8))
    c = build.op("_to_copy.default", b, shape=(4, 8), dtype="bfloat16")
    region = only(build.graph(c, a))
    assert region.category is Category.ELEMENTWISE
    assert region.inputs == (x, y)
    assert region.outputs == (a, c)
    assert region.label == "add + exp + to_copy"


def test_a_row_and_its_own_number_merge_and_another_shape_does_not():
    build = Builder()
    x = build.input(4, 8)
    mean = build.op("mean.dim", x, (-1,), True, shape=(4, 1))
    centred = build.op("sub.Tensor", x, mean, shape=(4, 8))
    assert only(build.graph(centred)).category is Category.REDUCTION
    wide = build.op("add.Tensor", centred, build.input(3, 4, 8), shape=(3, 4, 8))
    assert kinds(build.graph(wide)) == ["reduction", "elementwise"]


def test_a_softmax_spelled_out_is_a_softmax():
    build = Builder()
    x = build.input(4, 8)
    largest = build.op("amax.default", x, (-1,), True, shape=(4, 1))
    shifted = build.op("sub.Tensor", x, largest, shape=(4, 8))
    exponential = build.op("exp.default", shifted, shape=(4, 8))
    total = build.op("sum.dim_IntList", exponential, (-1,), True, shape=(4, 1))
    build.op("div.Tensor", exponential, total, shape=(4, 8))
    region = only(build.graph())
    assert (region.category, region.label) == (Category.SOFTMAX, "softmax")


def test_a_projection_takes_the_arithmetic_that_alone_reads_it():
    build = Builder()
    x, weight, residual = build.input(4, 8), build.weight(8, 8), build.input(4, 8)
    y = build.op("linear.default", x, weight, shape=(4, 8))
    active = build.op("silu.default", y, shape=(4, 8))
    total = build.op("add.Tensor", residual, active, shape=(4, 8))
    region = only(build.graph(total))
    assert (region.category, region.outputs) == (Category.GEMM, (total,))
    # A second reader ends the epilogue: its value must be stored anyway.
    assert kinds(build.graph(total, y)) == ["gemm", "activation"]


def test_a_projection_of_one_row_is_a_gemv():
    build = Builder()
    build.op("linear.default", build.input(1, 1, 8), build.weight(16, 8), shape=(1, 1, 16))
    assert only(build.graph()).category is Category.GEMV


def test_views_are_regions_of_their_own_between_those_that_compute():
    build = Builder()
    a = build.op("exp.default", build.input(4, 8), shape=(4, 8))
    b = build.op("unsqueeze.default", a, 0, shape=(1, 4, 8), view=True)
    c = build.op("permute.default", b, (0, 2, 1), shape=(1, 8, 4), view=True)
    build.op("neg.default", c, shape=(1, 8, 4))
    assert kinds(build.graph()) == ["elementwise", "layout", "elementwise"]


def test_a_merge_that_would_make_two_regions_need_each_other_does_not_happen():
    build = Builder()
    a = build.op("exp.default", build.input(4, 8), shape=(4, 8))
    moved = build.op("cat.default", (a, a), 0, shape=(4, 8))
    build.op("mul.Tensor", a, moved, shape=(4, 8))
    assert kinds(build.graph()) == ["elementwise", "layout", "elementwise"]


def test_a_small_tensor_is_computed_again_only_where_nobody_else_wants_it():
    build = Builder()
    bias = build.op("exp.default", build.weight(8), shape=(8,))
    total = build.op("add.Tensor", build.input(4, 8), bias, shape=(4, 8))
    assert len(regions_of(build.graph(total)).regions) == 1
    assert len(regions_of(build.graph(total, bias)).regions) == 2


def boundary(graph: Graph, node: str) -> str:
    return next((found.reason for found in regions_of(graph).boundaries if found.node == node), "none")


def test_writing_in_place_is_a_boundary_and_so_is_reading_what_is_overwritten():
    build = Builder()
    x = build.input(4, 8)
    view = build.op("view.default", x, (8, 4), shape=(8, 4), view=True)
    before = build.op("exp.default", x, shape=(4, 8))
    written = build.op("add_.Tensor", x, 1.0, shape=(4, 8), view=True, mutates=(x,))
    after = build.op("exp.default", view, shape=(8, 4))
    graph = build.graph(before, after)
    assert boundary(graph, written) == "in place: overwrites x0"
    assert boundary(graph, after) == "unresolved aliasing: shares storage with x0, which is overwritten"
    assert boundary(graph, before) == boundary(graph, after)


def test_a_buffer_written_back_when_nothing_reads_it_any_more_blocks_only_the_write():
    build = Builder()
    x = build.input(4, 8)
    made = build.op("exp.default", x, shape=(4, 8))
    written = build.op("copy_.default", x, made, shape=(4, 8), view=True, mutates=(x,))
    graph = build.graph(made)
    assert boundary(graph, made) == "none"
    assert boundary(graph, written).startswith("in place")


@pytest.mark.parametrize(
    ("op", "says"),
    [
        ("mystery.default", "unsupported operator: aten.mystery.default"),
        ("rand_like.default", "side effect: aten.rand_like.default draws from the generator's state"),
        ("as_strided.default", "unresolved aliasing: as_strided may name any element of the storage"),
    ],
)
def test_operators_without_a_kernel_are_boundaries(op: str, says: str):
    build = Builder()
    made = build.op(op, build.input(4, 8), shape=(4, 8))
    assert boundary(build.graph(), made) == says


@pytest.mark.parametrize("dtype", ["int64", "bool", "float64", "int8"])
def test_types_that_no_kernel_computes_with_are_boundaries_and_merge_only_with_their_like(dtype: str):
    build = Builder()
    a = build.op("neg.default", build.input(4, 8, dtype=dtype), shape=(4, 8), dtype=dtype)
    b = build.op("add.Tensor", a, 1, shape=(4, 8), dtype=dtype)
    build.op("_to_copy.default", build.input(4, 8), shape=(4, 8), dtype="bfloat16")
    graph = build.graph(b, "n2")
    assert boundary(graph, a) == f"unsupported dtype: {dtype}"
    assert [region.nodes for region in regions_of(graph).regions] == [("n0", "n1"), ("n2",)]


def test_rows_may_be_dynamic_and_their_width_may_not():
    build = Builder()
    x = build.input("s0", 8)
    fine = build.op("_softmax.default", x, -1, False, shape=("s0", 8))
    wide = build.input(8, "s0")
    bad = build.op("_softmax.default", wide, -1, False, shape=(8, "s0"))
    weight = build.input("s0", 8)
    product = build.op("linear.default", build.input(4, 8), weight, shape=(4, "s0"))
    unknown = build.op("exp.default", build.input("u0", 8), shape=("u0", 8))
    mixed = build.op("add.Tensor", build.input("s0", 8), build.input("s1", 8), shape=("s0", 8))
    graph = build.graph(fine, bad, product, unknown, mixed, extents={"s0": (1, 64), "s1": (1, 64)})
    assert boundary(graph, fine) == "none"
    assert "rows of s0 elements" in boundary(graph, bad)
    assert "a factor of s0 rows or columns" in boundary(graph, product)
    assert boundary(graph, unknown) == "ambiguous dynamic shape: size u0 is decided by data"
    assert boundary(graph, mixed) == "ambiguous dynamic shape: s0 and s1 meet in one dimension"
