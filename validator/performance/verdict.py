"""From timings to findings: which shapes are fast enough, and which are faster than they can be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kb.contract import Contract
from kb.dtype import DType, Target
from kb.manifest import Comparison, Finding, ShapeTiming
from runtime.timing import FLOOR_MARGIN, Timing, compare, shape_timing

CANDIDATE = "candidate"
# How far below the floor a time must be to be impossible. A processor's memory is shared with whatever else runs, so
# what was measured there may be well below what there is.
_MARGIN = {Target.CUDA: FLOOR_MARGIN, Target.CPU: 0.25}


def record(
    contract: Contract,
    dims: Mapping[str, int],
    storage: DType,
    timings: Mapping[str, Timing],
    bandwidth_gbps: float,
    cold: bool,
    target: Target,
) -> ShapeTiming:
    """The record of one shape. ``cold``: the inputs rotated among were too many for the cache.

    Only then is memory's bandwidth a floor: what fits in the cache may be read faster, and nothing is impossible.
    """
    made = shape_timing(
        timings,
        CANDIDATE,
        dims=dims,
        dtype=storage,
        bytes_moved=contract.bytes_moved(dims, storage),
        bandwidth_gbps=bandwidth_gbps,
        floor_margin=_MARGIN[target],
    )
    if cold or made.comparison is not Comparison.IMPOSSIBLE:
        return made
    relaxed = compare(timings[CANDIDATE], timings[made.baseline], floor_us=0.0)
    return made.model_copy(update={"comparison": relaxed.comparison})


def reaches(timing: ShapeTiming, floor: float) -> bool:
    """T_baseline / T_candidate >= ``floor``, and not by leaving work out."""
    return timing.comparison is not Comparison.IMPOSSIBLE and timing.ratio >= floor


def performance_findings(contract: Contract, timings: Sequence[ShapeTiming]) -> tuple[list[Finding], dict[str, bool]]:
    """Findings, and by variant whether all its timed shapes reach the contract's floor.

    A variant is a regime that deserves a kernel of its own, so a candidate passes with one variant it is fast in;
    the run time chooses by shape anyway. A shape that is impossible fails it whatever else it does.
    """
    variants: dict[str, bool] = {}
    findings: list[Finding] = []
    slow: list[Finding] = []
    for timing in timings:
        variant = contract.variant_for(timing.dims)
        name = variant.id if variant else "other"
        good = reaches(timing, contract.performance_floor)
        variants[name] = variants.get(name, True) and good
        if timing.comparison is Comparison.IMPOSSIBLE:
            message = (
                f"{timing.candidate_us:.2f} us is below {timing.floor_us:.2f} us, which moving the bytes takes "
                f"at {timing.bandwidth_gbps:.0f} GB/s: something is not computed"
            )
            findings.append(Finding(code="impossible", message=message, shape=timing.dims))
        elif not good:
            message = (
                f"{timing.candidate_us:.2f} us where {timing.baseline} takes {timing.baseline_us:.2f} us "
                f"(ratio {timing.ratio:.3f}, {contract.performance_floor:g} needed; "
                f"{timing.bandwidth_share:.0%} of bandwidth)"
            )
            slow.append(Finding(code="too-slow", message=message, shape=timing.dims))
    if not any(variants.values()):
        findings += slow
    return findings, variants
