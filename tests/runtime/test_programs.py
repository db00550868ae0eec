"""Programs: a computation as data, run by the framework's operators in place and out of place."""

from __future__ import annotations

import pickle

import pytest
import torch

from kb.dtype import Target
from kb.expr import Expr
from runtime.baselines import get_baseline
from runtime.errors import LoadError
from runtime.programs import (
    Argument,
    Content,
    Input,
    Layout,
    Output,
    Program,
    Ref,
    Size,
    Step,
    find_program,
    register_program,
)
from runtime.programs.interpret import prepare, run


def layout(*sizes: object, order: tuple[int, ...] | None = None) -> Layout:
    shape = tuple(Expr(str(s)) for s in sizes)
    order = order or tuple(range(len(sizes)))
    physical = tuple(shape[i] for i in order)
    return Layout(shape, physical, order, physical)


def program(*steps: Step, out: str, order: tuple[int, ...] | None = None) -> Program:
    given = Input("x", "v0", layout("rows", 3), Content.ACTIVATION)
    return Program((given,), steps, (Output("out", out, layout("rows", 3, order=order)),))


def step(op: str, result: str, *args: Argument) -> Step:
    return Step(op, args, (), (result,))


DOUBLED = program(step("aten.mul.Tensor", "v1", Ref("v0"), 2), step("aten.relu.default", "v2", Ref("v1")), out="v2")
DIMS = {"rows": 4}


def test_in_place_and_out_of_place_it_is_the_same() -> None:
    x, out = torch.randn(4, 3), torch.full((4, 3), torch.nan)
    prepare(DOUBLED, DIMS, {"x": x, "out": out})()
    assert torch.equal(out, torch.relu(x * 2))
    (result,) = run(DOUBLED, DIMS, [x])
    assert torch.equal(result, out)


def test_every_call_reads_what_is_there_then() -> None:
    x, out = torch.ones(4, 3), torch.zeros(4, 3)
    call = prepare(DOUBLED, DIMS, {"x": x, "out": out})
    call()
    x.fill_(3)
    call()
    assert torch.equal(out, torch.full((4, 3), 6.0))


def test_an_output_in_another_order_of_memory_is_written_in_that_order() -> None:
    turned = program(step("aten.neg.default", "v1", Ref("v0")), out="v1", order=(1, 0))
    x, out = torch.randn(4, 3), torch.empty(3, 4)
    prepare(turned, DIMS, {"x": x, "out": out})()
    assert torch.equal(out, -x.t())


def test_sizes_are_looked_up_in_the_dims() -> None:
    view = program(
        step("aten.view.default", "v1", Ref("v0"), (Size("rows * 3"),)),
        step("aten.view.default", "v2", Ref("v1"), (Size("rows"), 3)),
        step("aten.exp.default", "v3", Ref("v2")),
        out="v3",
    )
    (result,) = run(view, {"rows": 5}, [torch.zeros(5, 3)])
    assert torch.equal(result, torch.ones(5, 3))


def test_an_unknown_operator_is_named() -> None:
    with pytest.raises(LoadError, match=r"aten\.no_such\.default"):
        run(program(step("aten.no_such.default", "v1", Ref("v0")), out="v1"), DIMS, [torch.zeros(4, 3)])


def test_an_id_never_comes_to_mean_another_program() -> None:
    register_program("region_of_this_test", DOUBLED)
    register_program("region_of_this_test", pickle.loads(pickle.dumps(DOUBLED)))
    with pytest.raises(ValueError, match="another program"):
        register_program("region_of_this_test", program(step("aten.neg.default", "v1", Ref("v0")), out="v1"))
    assert find_program("region_of_this_test") == DOUBLED
    assert get_baseline("region_of_this_test", "framework").missing(Target.CPU) is None


def test_a_contract_without_a_program_has_no_framework_baseline() -> None:
    with pytest.raises(KeyError, match="framework"):
        get_baseline("rope", "framework")
