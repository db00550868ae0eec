"""Everything the judge knows about one input before it looks at a candidate: truth, baseline, and how sure they are."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from kb.contract import Contract, Role
from kb.dtype import DType
from runtime.baselines import Baseline, UnsupportedShapeError
from validator.inputs import CallInputs, allocate_outputs
from validator.numerics.errors import EPS, Error, error_of, row_scale
from validator.references import Expected, reference, rounding_as
from validator.references.arithmetic import keeping

# Errors of float32 arithmetic stay within this many times eps(float32) * sqrt(K), root mean square, when K terms are
# added one after the other (0.15 is what one such chain has); see the module's tests.
SERIAL_SUM = 0.3
# A softmax adds numbers of one sign, often nearly equal ones: their rounding errors agree and grow with the count.
SAME_SIGN_SUM = 0.06
_LONGEST_SAME_SIGN = 4096
# How many of those a value may be away from a rounding boundary and still be expected on either side of it.
_BOUNDARY = 6.0


@dataclass(frozen=True, slots=True)
class Truth:
    """One input with its truth.

    ``baseline``: the library path's outputs (whole tensors) and ``baseline_error`` their error, empty without one.
    ``slack``: by output, float64 like its values: how far an element moves when an intermediate value falls on the
    other side of a rounding boundary. ``without``: by binding point, the outputs of a kernel that leaves it out.
    ``arithmetic``: by output, the error float32 arithmetic may make, typical and worst.
    """

    inputs: CallInputs
    expected: Mapping[str, Expected]
    baseline: Mapping[str, torch.Tensor] = field(default_factory=dict)
    baseline_name: str = ""
    baseline_error: Mapping[str, Error] = field(default_factory=dict)
    slack: Mapping[str, torch.Tensor] = field(default_factory=dict)
    without: Sequence[Mapping[str, torch.Tensor]] = ()
    arithmetic: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def scale(self, name: str) -> torch.Tensor:
        """Size of the rows of output ``name``."""
        expected = self.expected[name]
        before = self.inputs.tensors.get(name)
        sums = before is not None and expected.rows is None
        scale = row_scale(expected.values, expected.written(before) if sums and before is not None else None)
        return scale if expected.terms is None else torch.maximum(scale, row_scale(expected.terms))


def truth_of(
    contract: Contract,
    dims: Mapping[str, int],
    storage: DType,
    inputs: CallInputs,
    baselines: Sequence[Baseline] = (),
    baseline_device: torch.device | str | None = None,
) -> Truth:
    """Truth about ``inputs``, computed on the device they are on. The inputs are only read.

    ``baseline_device``: where the library path runs, when that is another.
    """
    with keeping():
        return _truth_of(contract, dims, storage, inputs, baselines, baseline_device)


def _truth_of(
    contract: Contract,
    dims: Mapping[str, int],
    storage: DType,
    inputs: CallInputs,
    baselines: Sequence[Baseline],
    baseline_device: torch.device | str | None,
) -> Truth:
    with rounding_as(lambda values, dtype, _: values.to(dtype).double()) as reached:
        expected = reference(contract, dims, inputs)
    points = reached[0]
    length = reduction_length(contract, dims)
    slack: dict[str, torch.Tensor] = {}
    without: list[dict[str, torch.Tensor]] = []
    narrow = storage is not DType.FLOAT32
    if points and narrow:
        slack = _slack(contract, dims, inputs, expected, points, length)
        without = [_without(contract, dims, inputs, point) for point in range(points)]
    plain = Truth(inputs, expected)
    name, outputs = _run_baseline(contract, dims, storage, inputs, baselines, baseline_device)
    errors = {
        out: error_of(expected[out].written(outputs[out]), e.values, plain.scale(out), slack.get(out))
        for out, e in expected.items()
        if outputs and e.values.is_floating_point()
    }
    return Truth(
        inputs=inputs,
        expected=expected,
        baseline=outputs,
        baseline_name=name,
        baseline_error=errors,
        slack=slack,
        without=without,
        arithmetic=_arithmetic(contract, dims, inputs, plain, narrow, length),
    )


def reduction_length(contract: Contract, dims: Mapping[str, int]) -> int:
    """Terms of the longest sum a contract has: the widest row that is read, or the longest context."""
    rows = [contract.shape_of(t, dims)[-1] for t in contract.tensors if t.role is Role.IN and t.dtype is DType.T]
    return max([*rows, dims.get("context_len", 1), dims.get("seq_len", 1)])


def _slack(
    contract: Contract,
    dims: Mapping[str, int],
    inputs: CallInputs,
    expected: Mapping[str, Expected],
    points: int,
    length: int,
) -> dict[str, torch.Tensor]:
    """How far each output moves when values are nudged up, then down, before one binding point after the other rounds.

    What moves by more than the nudge lies on a rounding boundary there, and an honest kernel may be on either side. A
    value that falls on the other side early shifts a row's mean a little, and with it everything that is rounded later:
    later points are nudged by that much more.
    """
    nominal: dict[int, torch.Tensor] = {}

    def watching(values: torch.Tensor, dtype: torch.dtype, number: int) -> torch.Tensor:
        nominal[number] = values
        return values.to(dtype).double()

    with rounding_as(watching):
        reference(contract, dims, inputs)
    least = _BOUNDARY * SERIAL_SUM * EPS[DType.FLOAT32] * math.sqrt(length)
    nudges = [least] * points
    found = {name: torch.zeros_like(e.values) for name, e in expected.items() if e.values.is_floating_point()}
    for point in range(points):
        for sign in (1.0, -1.0):
            shifts: dict[int, float] = {}

            def rounding(
                values: torch.Tensor,
                dtype: torch.dtype,
                number: int,
                point: int = point,
                sign: float = sign,
                shifts: dict[int, float] = shifts,
            ) -> torch.Tensor:
                size = torch.maximum(values.abs(), values.square().mean(-1, keepdim=True).sqrt())
                if number == point:
                    values = values + sign * nudges[point] * size
                elif number > point:
                    moved = (values - nominal[number]).abs() / size.clamp(min=1e-30)
                    shifts[number] = float(moved.nan_to_num(0, 0, 0).median())
                return values.to(dtype).double()

            with rounding_as(rounding):
                moved = reference(contract, dims, inputs)
            for number, shift in shifts.items():
                nudges[number] = max(nudges[number], least + 2 * shift)
            for name, so_far in found.items():
                distance = (moved[name].values - expected[name].values).abs().nan_to_num(0, 0, 0)
                found[name] = torch.maximum(so_far, distance)
    # The nudge itself moves every output a little; a jump may have a neighbour's jump on top of it.
    return {name: 2.0 * distance for name, distance in found.items()}


def _without(contract: Contract, dims: Mapping[str, int], inputs: CallInputs, point: int) -> dict[str, torch.Tensor]:
    with rounding_as(lambda values, dtype, number: values if number == point else values.to(dtype).double()):
        return {name: e.values for name, e in reference(contract, dims, inputs).items()}


def _run_baseline(
    contract: Contract,
    dims: Mapping[str, int],
    storage: DType,
    inputs: CallInputs,
    baselines: Sequence[Baseline],
    where: torch.device | str | None,
) -> tuple[str, dict[str, torch.Tensor]]:
    """Name and outputs, on the device of ``inputs``, of the first baseline that can do this shape, or nothing."""
    device = next(t.device for t in inputs.tensors.values() if t is not None)
    there = device if where is None else torch.device(where)
    for baseline in baselines:
        # By kind: "cuda" is "cuda:0", and a tensor that is there already is not copied.
        own = inputs.clone() if there.type == device.type else inputs.to(there)
        work = own.with_tensors(allocate_outputs(contract, dims, storage, there))
        try:
            call = baseline.prepare(contract, dims, storage, work.tensors, work.scalars)
        except UnsupportedShapeError:
            continue
        call()
        written = (t.name for t in contract.tensors if t.role is not Role.IN)
        return baseline.name, {n: t.to(device) for n in written if (t := work.tensors[n]) is not None}
    return "", {}


def _arithmetic(
    contract: Contract, dims: Mapping[str, int], inputs: CallInputs, plain: Truth, narrow: bool, length: int
) -> dict[str, tuple[float, float]]:
    """What float32 arithmetic may add. For narrow storage a bound by length is enough: it is far below one rounding.

    For float32 storage it is all there is, and how much an input's last bits matter depends on the input (scores that
    are hundreds apart): so the reference runs on inputs perturbed by as much as a serial sum loses.
    """
    tokens = min(max(dims.get("context_len", 0), dims.get("seq_len", 0)), _LONGEST_SAME_SIGN)
    size = EPS[DType.FLOAT32] * (SERIAL_SUM * math.sqrt(length) + SAME_SIGN_SUM * tokens)
    if not contract.dtypes.rounding:  # nothing is computed, values are only moved
        return dict.fromkeys(plain.expected, (0.0, 0.0))
    # The root mean square of few errors scatters: that of one is the error itself.
    typical = {name: size * (1 + 4 / math.sqrt(max(1, e.values.numel()))) for name, e in plain.expected.items()}
    if narrow:
        return {name: (of_all, 5 * size) for name, of_all in typical.items()}
    gen = torch.Generator().manual_seed(0x5EED)
    tensors = dict(inputs.tensors)
    for tensor in contract.tensors:
        values = tensors.get(tensor.name)
        if values is not None and values.is_floating_point() and tensor.dtype is DType.T:
            noise = torch.randn(values.shape[-1], generator=gen, dtype=torch.float64).to(values.device)
            tensors[tensor.name] = values.double() * (1 + size * noise)
    with rounding_as(lambda values, _dtype, _number: values.to(torch.float32).double()):
        moved = reference(contract, dims, CallInputs(tensors, inputs.scalars))
    found = {}
    for name, e in plain.expected.items():
        if e.values.is_floating_point():
            error = error_of(moved[name].values, e.values, plain.scale(name))
            found[name] = (typical[name] + error.typical, 5 * size + 3 * error.worst)
        else:
            found[name] = (typical[name], 5 * size)
    return found
