"""A region as a contract: what it is called, what is true of it, and which template computes it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import permutations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from generator.analyze import Category, Region, analyze
from generator.capture import capture
from generator.ir import Graph, Value, ValueKind
from generator.kernel_templates.specs import ElementwiseSpec, GemmSpec, Op, Reduce, RowSpec, Step
from generator.regions import RegionContract, UnsupportedRegionError, region_contract, region_spec
from generator.regions.axes import Axes
from generator.regions.layout import layout_of
from kb.contract import Role
from kb.dtype import DType, Target
from runtime.baselines import available_baselines
from runtime.programs.interpret import from_value, to_value
from validator.inputs import allocate_outputs, make_inputs
from validator.numerics import truth_of
from validator.references import reference


class Mixed(nn.Module):
    """Regions of every kind a template computes, two of them equal, and one that none computes."""

    def __init__(self) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(64) + 0.1 * torch.randn(64))
        self.wide = nn.Linear(64, 96)
        self.same = nn.Linear(96, 64, bias=False)
        self.again = nn.Linear(64, 96)

    def forward(self, x: torch.Tensor, residual: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
        total = x + residual
        wide = total.float()
        normed = self.gamma * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(total.dtype)
        one = functional.silu(self.wide(normed))
        back = self.same(one)
        two = functional.silu(self.again(back))
        chosen = torch.where(mask, two, one)
        return torch.cumsum(chosen, -1), total, two.float().amax(-1)


@pytest.fixture(scope="module")
def graph() -> Graph:
    torch.manual_seed(0)
    module = Mixed().bfloat16()
    args = (torch.randn(2, 8, 64).bfloat16(), torch.randn(2, 8, 64).bfloat16(), torch.ones(2, 8, 96).bool())
    return capture(module, args).graph


@pytest.fixture(scope="module")
def regions(graph: Graph) -> tuple[Region, ...]:
    return analyze(graph, {}).regions


def region_with(regions: tuple[Region, ...], graph: Graph, op: str) -> Region:
    return next(r for r in regions if any(graph.node(n).target == f"aten.{op}" for n in r.nodes))


def contracts(regions: tuple[Region, ...], graph: Graph) -> Iterator[tuple[Region, RegionContract]]:
    for region in regions:
        try:
            yield region, region_contract(region, graph)
        except UnsupportedRegionError:
            continue


def test_regions_that_compute_the_same_on_the_same_sizes_have_one_contract(
    regions: tuple[Region, ...], graph: Graph
) -> None:
    found = [contract for region, contract in contracts(regions, graph) if region.label == "linear + silu"]
    assert len(found) == 2
    assert found[0].id == found[1].id
    assert found[0].tensors != found[1].tensors  # the same contract, bound to each layer's own values


def test_another_size_is_another_contract(graph: Graph) -> None:
    module = Mixed().bfloat16()
    args = (torch.randn(1, 8, 64).bfloat16(), torch.randn(1, 8, 64).bfloat16(), torch.ones(1, 8, 96).bool())
    other = capture(module, args).graph
    here = {c.id for _, c in contracts(analyze(graph, {}).regions, graph)}
    there = {c.id for _, c in contracts(analyze(other, {}).regions, other)}
    assert here
    assert not here & there


def test_the_framework_is_within_its_own_rounding_of_the_truth(regions: tuple[Region, ...], graph: Graph) -> None:
    judged = 0
    for _, found in contracts(regions, graph):
        inputs = make_inputs(found.contract, found.example, found.storage, "normal", 7)
        truth = truth_of(
            found.contract, found.example, found.storage, inputs, available_baselines(found.contract, Target.CPU)
        )
        assert truth.baseline_name == "framework"
        for name, error in truth.baseline_error.items():
            assert error.typical < 0.02, (found.contract.title, name)
            judged += 1
    assert judged >= 5


def test_the_baseline_writes_every_output_and_changes_no_input(regions: tuple[Region, ...], graph: Graph) -> None:
    found = region_contract(region_with(regions, graph, "rsqrt"), graph)
    inputs = make_inputs(found.contract, found.example, found.storage, "normal", 3)
    call = inputs.clone().with_tensors(allocate_outputs(found.contract, found.example, found.storage))
    (baseline,) = available_baselines(found.contract, Target.CPU)
    baseline.prepare(found.contract, found.example, found.storage, call.tensors, call.scalars)()
    for tensor in found.contract.tensors:
        now, before = call.tensors[tensor.name], inputs.tensors.get(tensor.name)
        assert now is not None
        if tensor.role is Role.IN:
            assert before is not None
            assert torch.equal(now, before)
        else:
            assert bool(torch.isfinite(now).all())


def test_a_sum_that_is_stored_and_read_again_and_a_written_conversion_are_binding(
    regions: tuple[Region, ...], graph: Graph
) -> None:
    found = region_contract(region_with(regions, graph, "rsqrt"), graph)
    binding = [r for r in found.contract.dtypes.rounding if r.binding]
    assert len(binding) == 2
    inputs = make_inputs(found.contract, found.example, found.storage, "normal", 3)
    truth = truth_of(found.contract, found.example, found.storage, inputs)
    normed = next(name for name, value in found.tensors.items() if graph.values[value].producer == "mul_1")
    assert len(truth.without) == 2
    for left_out in truth.without:
        assert not torch.equal(left_out[normed], truth.expected[normed].values)


def test_the_truth_of_an_output_is_not_rounded(regions: tuple[Region, ...], graph: Graph) -> None:
    found = region_contract(region_with(regions, graph, "rsqrt"), graph)
    inputs = make_inputs(found.contract, found.example, found.storage, "normal", 3)
    for expected in reference(found.contract, found.example, inputs).values():
        assert expected.values.dtype is torch.float64
        assert not torch.equal(expected.values, expected.values.bfloat16().double())


def test_a_norm_after_a_sum_becomes_one_pass_over_rows(regions: tuple[Region, ...], graph: Graph) -> None:
    region = region_with(regions, graph, "rsqrt")
    spec = region_spec(region, graph, region_contract(region, graph))
    assert isinstance(spec, RowSpec)
    assert spec.shape == (16, 64)
    assert sum(isinstance(phase, Reduce) for phase in spec.phases) == 1
    rounds = [p for p in spec.phases if isinstance(p, Step) and p.op is Op.ROUND]
    assert [p.dtype for p in rounds] == [DType.BFLOAT16, DType.BFLOAT16]


def test_a_projection_takes_its_bias_and_activation(regions: tuple[Region, ...], graph: Graph) -> None:
    region = next(r for r in regions if r.label == "linear + silu")
    spec = region_spec(region, graph, region_contract(region, graph))
    assert isinstance(spec, GemmSpec)
    assert (spec.m, spec.n, spec.k) == (16, 96, 64)
    assert [step.op for step in spec.epilogue] == [Op.ADD, Op.SILU]


def test_what_no_template_computes_says_so(regions: tuple[Region, ...], graph: Graph) -> None:
    region = region_with(regions, graph, "cumsum")
    with pytest.raises(UnsupportedRegionError, match=r"aten\.cumsum"):
        region_spec(region, graph, region_contract(region, graph))


def test_a_flag_in_a_region_is_refused_with_its_type(regions: tuple[Region, ...], graph: Graph) -> None:
    region = region_with(regions, graph, "where")
    with pytest.raises(UnsupportedRegionError, match="bool"):
        region_contract(region, graph)


def test_views_alone_are_no_work_for_a_kernel() -> None:
    class Views(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.view(4, 16).transpose(0, 1)

    captured = capture(Views(), (torch.randn(8, 8),)).graph
    (region,) = analyze(captured, {}).regions
    with pytest.raises(UnsupportedRegionError, match="nothing moves"):
        region_contract(region, captured)


def test_strides_replace_views_inside_a_region() -> None:
    class Turned(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x.view(4, 6, 8).transpose(0, 1) * 2 + y

    captured = capture(Turned(), (torch.randn(24, 8), torch.randn(6, 4, 8))).graph
    whole = Region("r", tuple(n.id for n in captured.nodes), (), (), Category.ELEMENTWISE, "all")
    contract = region_contract(whole, captured)
    spec = region_spec(whole, captured, contract)
    assert isinstance(spec, ElementwiseSpec)
    x, y = spec.inputs
    # The framework gives the result the order its first argument has in memory, and so does the kernel.
    assert spec.shape == (4, 6, 8)
    assert x.strides == (48, 8, 1)
    assert y.strides == (8, 32, 1)


def test_a_variance_is_taken_around_the_mean() -> None:
    class Spread(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x / torch.sqrt(1 + x.var(-1, keepdim=True))

    captured = capture(Spread(), (torch.randn(4, 16),)).graph
    (region,) = analyze(captured, {}).regions
    spec = region_spec(region, captured, region_contract(region, captured))
    assert isinstance(spec, RowSpec)
    kinds = [phase.kind.value for phase in spec.phases if isinstance(phase, Reduce)]
    assert kinds == ["mean", "sum"]
    divided = [p.args[1] for p in spec.phases if isinstance(p, Step) and p.op is Op.DIV]
    assert divided[0] == 15.0  # the unbiased one, as the framework's default


def test_two_dims_along_one_axis_are_refused() -> None:
    class Symmetric(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + x.t()

    captured = capture(Symmetric(), (torch.randn(8, 8),)).graph
    whole = Region("r", tuple(n.id for n in captured.nodes), (), (), Category.ELEMENTWISE, "all")
    with pytest.raises(UnsupportedRegionError, match="same axis"):
        region_spec(whole, captured, region_contract(whole, captured))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.data())
def test_a_layout_and_back_is_the_same_value(sizes: list[int], data: st.DataObject) -> None:
    order = data.draw(st.sampled_from(list(permutations(range(len(sizes))))))
    base = torch.arange(math.prod(sizes), dtype=torch.float32).view(sizes).permute(order)
    strides = tuple(base.stride())
    layout = layout_of(Value("v", tuple(base.shape), "float32", strides, ValueKind.INPUT))
    stored = torch.arange(math.prod(sizes), dtype=torch.float32)
    shape = tuple(e.evaluate_int({}) for e in layout.stored)
    value = to_value(stored.view(shape), layout, {})
    assert torch.equal(value, base)
    assert torch.equal(from_value(value, layout, shape).reshape(-1), stored)


def test_a_part_of_a_larger_tensor_has_no_layout() -> None:
    with pytest.raises(UnsupportedRegionError, match="strided part"):
        layout_of(Value("v", (4, 4), "float32", (8, 1), ValueKind.INPUT))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 3), min_size=1, max_size=4), st.lists(st.integers(1, 3), min_size=1, max_size=4))
def test_views_of_axes_keep_every_element(first: list[int], second: list[int]) -> None:
    axes = Axes()
    a, b = [2**n for n in first], [2**n for n in second]
    b.append(max(1, math.prod(a) // math.prod(b)))
    a.append(max(1, math.prod(b) // math.prod(a)))
    dims = axes.fresh(a)
    viewed = axes.view(dims, b)
    for shape, along in ((a, dims), (b, viewed)):
        for size, axis in zip(shape, along, strict=True):
            assert math.prod(int(axes.extent(leaf)) for leaf in axes.leaves(axis)) == size
    assert axes.leaves([x for d in dims for x in d]) == axes.leaves([x for d in viewed for x in d])
