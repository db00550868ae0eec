"""Capturing modules: nothing is lost, and what cannot be traced is named with its line and left to the framework."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from generator.capture import Capture, capture
from generator.ir import Graph, ValueKind, dump, load
from tests.generator.capture.replay import replay

HERE = Path(__file__).name


class Block(nn.Module):
    """Norm, projection, activation, views, a buffer that is read and written, and an in-place step."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.up = nn.Linear(16, 32)
        self.register_buffer("calls", torch.zeros(16))
        self.offset = torch.arange(16.0)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = self.norm(x + self.offset)
        first, second = self.up(h).chunk(2, dim=-1)
        y = torch.nn.functional.silu(first) * second
        y += self.calls
        self.calls.add_(1.0)
        return y, y.transpose(0, 1).softmax(-1)


@pytest.fixture(scope="module")
def block() -> tuple[Block, torch.Tensor, Capture]:
    torch.manual_seed(0)
    module, x = Block().eval(), torch.randn(4, 16)
    return module, x, capture(module, (x,))


@pytest.fixture(scope="module")
def graph(block: tuple[Block, torch.Tensor, Capture]) -> Graph:
    return block[2].graph


def value(graph: Graph, name: str):
    return next(v for v in graph.values.values() if v.name == name)


def test_the_graph_computes_what_the_module_computes(block: tuple[Block, torch.Tensor, Capture]):
    module, x, captured = block
    assert captured.is_whole
    assert captured.program is not None
    fresh = torch.randn_like(x)
    expected = Block()
    expected.load_state_dict(module.state_dict())
    with torch.no_grad():
        wanted = expected(fresh)
        got = replay(captured.graph, captured.program, {"x": fresh})
    assert all(torch.equal(a, b) for a, b in zip(wanted, got, strict=True))
    assert torch.equal(captured.program.state_dict["calls"], expected.calls)  # the write back was replayed too


def test_values_say_where_they_come_from(graph: Graph):
    kinds = {value.name: value.kind for value in graph.values.values() if value.name}
    assert kinds["x"] is ValueKind.INPUT
    assert kinds["up.weight"] is ValueKind.PARAMETER
    assert kinds["calls"] is ValueKind.BUFFER
    assert ValueKind.CONSTANT in kinds.values()


def test_values_have_shape_type_and_strides(graph: Graph):
    weight = value(graph, "up.weight")
    assert (weight.shape, weight.dtype, weight.strides) == ((32, 16), "float32", (16, 1))
    turned = next(n for n in graph.nodes if n.target in ("aten.permute", "aten.transpose"))
    assert graph.values[turned.output].strides == (1, 16)


def test_the_halves_of_a_split_share_its_storage(graph: Graph):
    split = next(node for node in graph.nodes if node.target.startswith("aten.split"))
    assert len(split.outputs) == 2
    assert {graph.values[v].alias_of for v in split.outputs} == {split.inputs[0]}
    assert {graph.values[v].strides for v in split.outputs} == {(32, 1)}


def test_a_buffer_that_is_written_is_written_by_a_node_of_its_own(graph: Graph):
    (write,) = [node for node in graph.nodes if node.mutates]
    assert write.op == "aten.copy_.default"
    assert write.mutates == (value(graph, "calls").id,)
    assert not any(node.op.endswith("_.Tensor") for node in graph.nodes)


def test_nodes_name_the_module_and_the_line_they_come_from(graph: Graph):
    (projection,) = [node for node in graph.nodes if node.op == "aten.linear.default"]
    assert projection.module == "up"
    assert projection.where is not None
    assert Path(projection.where.file).name == HERE
    line = Path(__file__).read_text(encoding="utf-8").splitlines()[projection.where.line - 1]
    assert "self.up(h)" in line


def test_operators_that_mean_something_stay_whole(graph: Graph):
    ops = {node.op for node in graph.nodes}
    assert {"aten.layer_norm.default", "aten.linear.default", "aten.silu.default"} <= ops


def test_capturing_twice_gives_the_same_graph(block: tuple[Block, torch.Tensor, Capture]):
    module, x, captured = block
    again = capture(module, (x,)).graph
    assert dump(again) == dump(captured.graph)
    assert load(dump(again)) == again


class Swapping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("a", torch.zeros(2))
        self.register_buffer("b", torch.ones(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = self.a.clone()
        self.a.copy_(self.b)
        self.b.copy_(kept)
        return x + self.a


def test_buffers_that_swap_their_contents_are_swapped_by_a_replay():
    captured = capture(Swapping(), (torch.zeros(2),))
    assert captured.program is not None
    (out,) = replay(captured.graph, captured.program, {"x": torch.zeros(2)})
    assert out.tolist() == [1.0, 1.0]
    state = captured.program.state_dict
    assert (state["a"].tolist(), state["b"].tolist()) == ([1.0, 1.0], [0.0, 0.0])


class Pooled(nn.Module):
    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return (x * mask[..., None]).reshape(x.shape[0] * x.shape[1], 8).sum(-1)


def test_dynamic_sizes_are_symbols_with_their_ranges():
    args = (torch.randn(2, 5, 8), torch.ones(2, 5))
    dynamic = {"x": {0: ("batch", 1, 64), 1: ("length", 2, 128)}, "mask": {0: ("batch", 1, 64), 1: ("length", 2, 128)}}
    captured = capture(Pooled(), args, dynamic=dynamic)
    graph = captured.graph
    assert captured.problems == ()
    assert graph.values[graph.inputs[0]].shape == ("s0", "s1", 8)
    assert graph.values[graph.inputs[0]].strides == ("8*s1", 8, 1)
    assert graph.extents == {"s0": (1, 64), "s1": (2, 128)}
    assert graph.values[graph.outputs[0]].shape == ("s0*s1",)
    assert captured.program is not None
    other = (torch.randn(3, 7, 8), torch.ones(3, 7))
    got = replay(graph, captured.program, dict(zip(("x", "mask"), other, strict=True)))
    assert torch.equal(got[0], Pooled()(*other))


def test_a_size_that_turns_out_fixed_is_a_problem_and_the_call_is_captured_as_it_is():
    captured = capture(Pooled(), (torch.randn(2, 5, 8), torch.ones(2, 5)), dynamic={"x": {2: "width"}})
    assert captured.is_whole
    assert captured.graph.values[captured.graph.inputs[0]].shape == (2, 5, 8)
    (problem,) = captured.problems
    assert problem.construct == "dynamic size"
    assert problem.message.endswith("captured at the example's sizes")


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:  # decided by data
            return x
        return -x


class Around(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Sequential(nn.Linear(8, 8), nn.SiLU())
        self.layers = nn.ModuleList([Branching(), nn.Linear(8, 8)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.before(x)
        for layer in self.layers:
            x = layer(x)
        return x


def test_a_graph_break_is_named_with_its_line_and_the_parts_around_it_are_captured():
    captured = capture(Around(), (torch.randn(2, 8),))
    assert not captured.is_whole
    assert captured.graph.nodes == ()
    assert [part.module for part in captured.parts] == ["before", "layers.1"]
    assert [node.op for node in captured.parts[0].graph.nodes] == ["aten.linear.default", "aten.silu.default"]
    outer, inner = captured.problems
    assert inner.module == "layers.0"
    for problem in (outer, inner):
        assert problem.construct == "control flow or a size that depends on data"
        assert problem.where is not None
        assert Path(problem.where.file).name == HERE
        assert "decided by data" in Path(__file__).read_text(encoding="utf-8").splitlines()[problem.where.line - 1]
        assert str(problem).startswith(f"{problem.where}: ")


def test_a_module_the_framework_itself_cannot_run_is_a_problem_and_no_exception():
    captured = capture(nn.Linear(8, 8), (torch.randn(2, 9),))
    assert not captured.is_whole
    assert captured.parts == ()
    assert captured.problems


@torch.library.custom_op("agentcompile_tests::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@doubled.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


class Foreign(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return doubled(x) + x[x > 0].sum()


def test_foreign_operators_and_sizes_from_data_stay_in_the_graph_and_are_named():
    captured = capture(Foreign(), (torch.randn(4),))
    assert captured.is_whole
    assert [problem.construct for problem in captured.problems] == [
        "agentcompile_tests.doubled.default",
        "aten.index.Tensor",
    ]
    sizes = [extent for value in captured.graph.values.values() for extent in value.shape]
    assert "u0" in sizes


def test_dynamic_names_must_be_arguments():
    captured = capture(Pooled(), (torch.randn(2, 5, 8), torch.ones(2, 5)), dynamic={"y": {0: "batch"}})
    assert "no argument of this call" in captured.problems[0].message
