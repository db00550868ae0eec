"""What follows a product, as a region of its own."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from generator.analyze import Region, analyze
from generator.capture import capture
from generator.ir import Graph
from generator.kernel_templates.specs import ElementwiseSpec
from generator.plan.fusion import EPILOGUE, epilogue_of
from generator.regions import region_contract, region_spec


class Gated(nn.Module):
    """A projection with an activation and a gate, and one with nothing after it."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(32, 48)
        self.down = nn.Linear(48, 32)

    def forward(self, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        return self.down(functional.silu(self.up(x)) * gate)


@pytest.fixture(scope="module")
def graph() -> Graph:
    return capture(Gated(), (torch.randn(4, 32), torch.randn(4, 48))).graph


@pytest.fixture(scope="module")
def regions(graph: Graph) -> tuple[Region, ...]:
    return analyze(graph, {}).regions


def test_the_arithmetic_after_a_product_is_a_region_that_reads_the_product(
    graph: Graph, regions: tuple[Region, ...]
) -> None:
    region = next(r for r in regions if "silu" in r.label)
    rest = epilogue_of(region, graph)
    assert rest is not None
    assert rest.id == region.id + EPILOGUE
    assert [graph.node(n).target for n in rest.nodes] == ["aten.silu", "aten.mul"]
    assert set(rest.inputs) == {"linear", "gate"}
    assert rest.outputs == region.outputs
    spec = region_spec(rest, graph, region_contract(rest, graph))
    assert isinstance(spec, ElementwiseSpec)


def test_a_product_alone_leaves_nothing(graph: Graph, regions: tuple[Region, ...]) -> None:
    alone = next(r for r in regions if r.label == "linear")
    assert epilogue_of(alone, graph) is None


def test_a_region_without_a_product_is_not_cut(graph: Graph, regions: tuple[Region, ...]) -> None:
    rest = epilogue_of(next(r for r in regions if "silu" in r.label), graph)
    assert rest is not None
    assert epilogue_of(rest, graph) is None
