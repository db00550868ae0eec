"""The report as Markdown."""

from __future__ import annotations

from generator.compile.findings import Row, part_lines, removed_lines, rows, summary, whole_lines
from generator.compile.pipeline import Compilation
from generator.plan import Cost


def markdown_report(compilation: Compilation) -> str:
    """Whole first, then every kind of region: what the framework takes, what the best plan takes, what was kept."""
    device = compilation.device
    lines = [
        f"# {compilation.subject.name} compiled for {compilation.target.value}",
        "",
        f"{summary(compilation)}. Device: {device.name} ({device.arch}).",
        "",
        "## The whole",
        "",
        *(f"- {line}" for line in whole_lines(compilation)),
        "",
        *_parts(compilation),
        "## Regions",
        "",
        "![Region graph](regions.svg)",
        "",
        "A kernel is kept where it is faster than the framework's own operators in one interleaved run, and nowhere",
        "else. Times are microseconds of one call: medians; the ratio is framework over plan, with its 95 % interval.",
        "",
        "| region | of them | framework | best plan | ratio | kept | why |",
        "|---|---:|---:|---:|---|---|---|",
        *(_line(row) for row in rows(compilation)),
        "",
        "## Plans",
        "",
    ]
    for decision in compilation.decisions:
        if not decision.judged:
            continue
        plans = decision.kind.plans
        assert plans is not None
        lines += [f"### {decision.kind.label} (`{decision.kind.id}`)", ""]
        lines.append(f"{len(plans.legal)} legal plans, {len(plans.removed)} removed, {len(decision.judged)} judged:")
        lines.append("")
        for judged in decision.judged:
            timing = judged.timing
            took = f"{timing.candidate_us:.2f} µs" if timing else "not timed"
            lines.append(f"- `{judged.plan.key}`: {judged.failure or f'valid, {took}'}; {_estimate(judged.plan.cost)}")
        lines += [f"- removed: {text}" for text in removed_lines(decision)]
        lines.append("")
    lines += _problems(compilation) + _advice(compilation)
    return "\n".join(lines).rstrip() + "\n"


def _estimate(cost: Cost) -> str:
    return (
        f"estimated {cost.microseconds:g} µs, {cost.bytes} bytes, {cost.flops} operations, "
        f"{cost.occupancy:.0%} of the device"
    )


def _parts(compilation: Compilation) -> list[str]:
    if not compilation.parts:
        return []
    lines = [
        "## Parts",
        "",
        "The module could not be captured whole; these submodules were captured by themselves.",
        "",
    ]
    lines += [f"- [{path}](parts/{path}/report.md): {text}" for path, text in part_lines(compilation).items()]
    return [*lines, ""]


def _problems(compilation: Compilation) -> list[str]:
    if not compilation.problems and not compilation.left_out:
        return []
    lines = ["## Left to the framework", ""]
    lines += [f"- {problem}" for problem in compilation.problems]
    lines += [f"- {region}: {reason}" for region, reason in compilation.left_out.items()]
    return [*lines, ""]


def _advice(compilation: Compilation) -> list[str]:
    advice = compilation.advice
    if not advice.provider:
        return []
    lines = ["## Advice", ""]
    if advice.problem:
        lines.append(f"{advice.provider} gave none: {advice.problem}.")
    else:
        lines.append(
            f"{advice.provider} ({advice.model}) labelled {len(advice.labels)} kinds and reordered the plans "
            f"of {len(advice.first)}. Outside the plan space, and ignored: {len(advice.ignored)}."
        )
    return [*lines, "", *(f"- ignored: {_cell(text)}" for text in advice.ignored), ""]


def _line(row: Row) -> str:
    cells = (row.label, str(row.regions), row.framework, row.best, row.ratio, row.kept, row.why)
    return f"| {' | '.join(_cell(cell) for cell in cells)} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


__all__ = ["markdown_report"]
