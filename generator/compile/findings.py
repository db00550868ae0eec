"""What both reports say, as rows of text: the table of decisions, the numbers of the whole, and a one-line summary."""

from __future__ import annotations

from dataclasses import dataclass

from generator.compile.pipeline import Compilation
from generator.compile.tournament import Decision
from generator.plan.fusion import EPILOGUE


@dataclass(frozen=True, slots=True)
class Row:
    """A kind of region. Times in microseconds as text, empty where nothing was timed."""

    label: str
    kind: str
    regions: int
    framework: str
    best: str
    ratio: str
    kept: str
    why: str
    is_kernel: bool


def summary(compilation: Compilation) -> str:
    """One line: what was found, judged and kept."""
    kept = [d for d in compilation.decisions if d.chosen is not None]
    regions = sum(len(d.kind.members) for d in kept)
    total = len(compilation.analysis.regions)
    whole = [d for d in compilation.decisions if not d.kind.members[0].id.endswith(EPILOGUE)]
    tried = sum(bool(d.judged) for d in compilation.decisions)
    return (
        f"{len(compilation.graph.nodes)} operators in {total} regions of {len(whole)} kinds; "
        f"{tried} kinds judged, {len(kept)} kept a kernel ({regions} regions), the framework runs the rest"
    )


def rows(compilation: Compilation) -> list[Row]:
    """Judged kinds first, in the graph's order; then those that had no plan or were not judged."""
    decisions = sorted(compilation.decisions, key=lambda d: not d.judged)
    return [_row(decision) for decision in decisions]


def whole_lines(compilation: Compilation) -> list[str]:
    """What the module with kernels gives and takes, against the module without."""
    whole = compilation.whole
    if whole is None and compilation.compiled is not None:
        return ["A part of a module; the module is compared as a whole."]
    if whole is None:
        return ["Nothing of the module could be captured; the framework runs it."]
    lines = []
    if whole.difference is not None:
        same = "the same, within what rounding explains" if whole.same else "not the same"
        detail = f" ({whole.worst})" if whole.worst else ""
        lines.append(f"Outputs on the example call: {same}{detail}.")
    else:
        lines.append(f"Outputs on the example call: {whole.worst}.")
    if whole.module_us is not None and whole.compiled_us is not None and whole.comparison is not None:
        lines.append(
            f"One call: {whole.module_us:.1f} µs as it was, {whole.compiled_us:.1f} µs with kernels "
            f"(ratio {whole.ratio:.3f}, {whole.comparison.value}), in one interleaved run."
        )
    lines.append(f"The callable {'uses the kernels' if whole.kernels else 'calls the module itself'}: {whole.reason}.")
    return lines


def part_lines(compilation: Compilation) -> dict[str, str]:
    """One line for each part that was captured by itself, by the path of its submodule."""
    return {path: summary(part) for path, part in compilation.parts.items()}


def removed_lines(decision: Decision) -> list[str]:
    """Constraints that removed plans, with how many and an example."""
    plans = decision.kind.plans
    if plans is None:
        return []
    grouped: dict[str, list[str]] = {}
    for removed in plans.removed:
        grouped.setdefault(removed.constraint, []).append(removed.key)
    return [f"{constraint} ({len(keys)}, such as {keys[0]})" for constraint, keys in grouped.items()]


def _row(decision: Decision) -> Row:
    best, chosen = decision.best, decision.chosen
    timing = best.timing if best is not None else None
    return Row(
        label=decision.kind.label,
        kind=decision.kind.id,
        regions=len(decision.kind.members),
        framework=f"{timing.baseline_us:.2f}" if timing else "",
        best=f"{timing.candidate_us:.2f}" if timing else "",
        ratio=f"{timing.ratio:.3f} [{timing.ratio_interval[0]:.3f}, {timing.ratio_interval[1]:.3f}]" if timing else "",
        kept=chosen.plan.key if chosen is not None else "framework",
        why=decision.reason,
        is_kernel=chosen is not None,
    )


__all__ = ["Row", "part_lines", "removed_lines", "rows", "summary", "whole_lines"]
