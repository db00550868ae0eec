"""Specs, sizes and scalar programs: what is refused, and what C comes out."""

from __future__ import annotations

import pytest

from generator.kernel_templates.cuda.gemv import split_of
from generator.kernel_templates.parameters import GemvParameters
from generator.kernel_templates.program import line, needed, row_values
from generator.kernel_templates.rows import as_rows
from generator.kernel_templates.sizes import check_size, dense_strides, multiple_of, product, same, value
from generator.kernel_templates.space import collapse
from generator.kernel_templates.specs import (
    ElementwiseSpec,
    GemmSpec,
    GemvSpec,
    NormKind,
    NormSpec,
    Op,
    Reduce,
    Reduction,
    Step,
    Store,
    TensorArg,
    columns,
    dense,
)
from kb.dtype import DType, Target
from kb.expr import parse


def test_equal_products_of_sizes_have_one_form() -> None:
    assert product([2, "b * a", "(c + d) * 4"]) == "8 * (c + d) * a * b"
    assert same("a * 3 * b", "3 * (b * a)")
    assert product(["a", 0]) == 0
    assert product([]) == 1
    assert dense_strides((2, "n", 3)) == ("3 * n", 3, 1)


def test_a_size_knows_what_its_dims_decide() -> None:
    assert value("2 * n", {"n": 5}) == 10
    assert value("2 * n") is None
    assert multiple_of("8 * n", 8) is True
    assert multiple_of("n", 8) is None
    assert multiple_of("n", 8, {"n": 12}) is False


@pytest.mark.parametrize("size", ["a // 2", "a ** 2", "f(a, b)", "a; b", "a +"])
def test_a_size_that_c_and_launch_plans_would_read_differently_is_refused(size: str) -> None:
    with pytest.raises(ValueError):
        check_size(size)


def test_a_step_that_reads_an_unknown_name_is_refused() -> None:
    with pytest.raises(ValueError, match="neither an input nor an earlier step"):
        ElementwiseSpec(
            ("n",), (dense("x", ("n",)),), (Step("y", Op.EXP, ("z",)),), (Store(dense("out", ("n",)), "y"),)
        )


def test_strides_must_have_the_rank_of_the_space() -> None:
    with pytest.raises(ValueError, match="1 strides over a space of 2 dims"):
        ElementwiseSpec(("m", "n"), (dense("x", ("n",)),), (), (Store(dense("out", ("m", "n")), "x"),))


def test_an_operation_with_a_missing_operand_is_refused() -> None:
    with pytest.raises(ValueError, match="takes 3 operands"):
        Step("y", Op.WHERE, ("a", "b"))


def test_the_epilogue_of_a_product_reads_its_sums() -> None:
    out = Store(dense("out", ("m", "n")), "y")
    GemmSpec("m", "n", "k", "x", "w", (out,), parts=(0, "n"), epilogue=(Step("y", Op.MUL, ("acc0", "acc1")),))
    with pytest.raises(ValueError, match="'acc1'"):
        GemmSpec("m", "n", "k", "x", "w", (out,), epilogue=(Step("y", Op.MUL, ("acc0", "acc1")),))


def test_rounding_is_written_for_each_target() -> None:
    step = Step("y", Op.ROUND, ("x",), DType.T)
    assert line(step, (), Target.CUDA) == "const float v_y = float(T(v_x));"
    assert line(step, (), Target.CPU) == "const float v_y = to_float(from_float<T>(v_x));"


def test_scalars_keep_their_names_and_infinities_have_a_spelling() -> None:
    step = Step("y", Op.WHERE, ("eps", float("-inf"), -1.5))
    assert line(step, ("eps",), Target.CPU) == "const float v_y = eps != 0.0f ? -INFINITY : (-1.5f);"
    assert "__int_as_float(0xff800000)" in line(step, ("eps",), Target.CUDA)


def test_only_the_steps_a_result_needs_are_kept() -> None:
    steps = (Step("a", Op.EXP, ("x",)), Step("b", Op.LOG, ("x",)), Step("c", Op.NEG, ("a",)))
    assert [s.out for s in needed(steps, {"c"})] == ["a", "c"]


def test_what_follows_from_row_values_alone_is_a_row_value() -> None:
    phases = (Reduce("m", Reduction.MAX, "x"), Step("r", Op.NEG, ("m",)), Step("e", Op.ADD, ("x", "r")))
    assert row_values(phases, ()) == {"m", "r"}


def test_layer_norm_corrects_the_rounding_error_of_its_mean() -> None:
    spec = NormSpec(
        NormKind.LAYER, ("m", "n"), (dense("x", ("m", "n")),), "x", 1e-5, (Store(dense("out", ("m", "n")), "normed"),)
    )
    reduced = [p.value for p in as_rows(spec).phases if isinstance(p, Reduce)]
    assert reduced == ["x", "_off", "_square"]


@pytest.mark.parametrize("warps", [1, 4, 8])
def test_the_kernel_and_its_launch_plan_choose_the_same_split(warps: int) -> None:
    spec = GemvSpec("m", "n", "k", "x", "w", (Store(dense("out", ("m", "n")), "acc0"),))
    found = split_of(spec, GemvParameters(split=0, warps=warps))
    seen = set()
    for n in (8, 512, 1000, 1600, 2560, 151936):
        for k in (8, 520, 2048, 2560, 4096, 8192, 12288, 14336):
            names = {"N": n, "K": k, "n": n, "k": k, "num_sms": 132}
            plan = parse(found.plan).evaluate_int(names)
            assert plan == chosen_by(found.code, names)
            assert warps % plan == 0
            seen.add(plan)
    assert seen == {min(s, warps) for s in (2, 4, 8)}


def chosen_by(code: str, names: dict[str, int]) -> int:
    """The value of a chain ``condition ? value : … : value``."""
    *cases, last = code.split(" : ")
    for case in cases:
        condition, value_ = case.split(" ? ")
        if any(all(parse(term).evaluate(names) for term in part.split(" && ")) for part in condition.split(" || ")):
            return int(value_)
    return int(last)


def test_dims_that_every_tensor_walks_through_as_one_are_made_one() -> None:
    shape = ("a", "b", 4)
    x, out = dense("x", shape), dense("out", shape)
    assert collapse(shape, (x,), (out,)).shape == ("4 * a * b",)
    kept = collapse(shape, (x,), (out,), keep_last=True)
    assert kept.shape == ("a * b", 4)


def test_a_broadcast_or_transposed_operand_keeps_dims_apart() -> None:
    shape = ("a", "b")
    out = dense("out", shape)
    assert collapse(shape, (columns("bias", 2),), (out,)).shape == shape
    assert collapse(shape, (TensorArg("x", DType.T, (1, "a")),), (out,)).shape == shape
    assert collapse(shape, (TensorArg("x", DType.T, (0, 0)),), (out,)).shape == ("a * b",)
