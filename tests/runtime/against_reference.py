"""A baseline's results against the float64 reference, element by element."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from kb.contract import Contract
from kb.dtype import DType
from runtime.baselines import Baseline
from validator.inputs import CallInputs, allocate_outputs
from validator.references import reference

EPS = {DType.BFLOAT16: 2**-8, DType.FLOAT16: 2**-11, DType.FLOAT32: 2**-23}
# A few roundings of the storage type. In float32 it is the sums themselves: one of 2,048 terms in a row is off by seven
# spacings (root mean square), the worst of ten thousand by thirty.
LIMIT = {DType.BFLOAT16: 6.0, DType.FLOAT16: 6.0, DType.FLOAT32: 36.0}


def assert_right(
    contract: Contract, dims: Mapping[str, int], storage: DType, case: str, got: CallInputs, inputs: CallInputs
) -> None:
    """Every written element within a few roundings of the truth, every other element untouched."""
    for name, expected in reference(contract, dims, inputs).items():
        tensor = got.tensors[name]
        assert tensor is not None
        values = expected.written(tensor).double()
        truth = expected.values.double()
        if tensor.is_floating_point():  # what is not finite once it is stored must be just that
            stored = truth.to(tensor.dtype).double()
            odd = ~torch.isfinite(stored)
            assert torch.equal(values[odd].nan_to_num(nan=1.5), stored[odd].nan_to_num(nan=1.5)), f"{case}: {name}"
            values, truth = values.masked_fill(odd, 0), truth.masked_fill(odd, 0)
        scale = truth.abs() + truth.square().mean().sqrt()
        # Half a step of the smallest subnormal: what storing any value may cost.
        smallest = torch.finfo(tensor.dtype).smallest_normal * EPS[storage] if tensor.is_floating_point() else 0
        allowed = LIMIT[storage] * EPS[storage] * scale + 4 * smallest
        if expected.scores is not None:
            assert torch.equal(values, truth), f"{case}: {name}"
        else:
            worst = ((values - truth).abs() - allowed).max()
            assert float(worst) <= 0, f"{case}: {name} is {float(worst)} beyond what is allowed"
        before = inputs.tensors.get(name)
        if before is not None:
            assert expected.first_change(before, tensor) is None, f"{case}: {name}"


def run(
    baseline: Baseline, contract: Contract, dims: Mapping[str, int], storage: DType, inputs: CallInputs
) -> CallInputs:
    call = inputs.clone().with_tensors(allocate_outputs(contract, dims, storage))
    baseline.prepare(contract, dims, storage, call.tensors, call.scalars)()
    return call
