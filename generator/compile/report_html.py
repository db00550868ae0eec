"""The report as one HTML page that needs nothing else: no script, no font, no network."""

from __future__ import annotations

from html import escape

from generator.compile.drawing import region_svg
from generator.compile.findings import Row, part_lines, removed_lines, rows, summary, whole_lines
from generator.compile.pipeline import Compilation
from generator.compile.tournament import Decision

_STYLE = """
:root{color-scheme:light dark;--text:#1b2430;--soft:#55606f;--line:#d5dae1;--page:#fff;--good:#2f7d4f;--raised:#f6f8fa}
@media (prefers-color-scheme: dark){
:root{--text:#e6eaf0;--soft:#a6b0bd;--line:#39424e;--page:#14181d;--good:#63b487;--raised:#1d232b}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--text);background:var(--page);margin:0 auto;max-width:1200px;
padding:1.5rem}
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2rem}
p,li{max-width:80ch}
.scroll{overflow-x:auto;border:1px solid var(--line);border-radius:8px;padding:.5rem}
table{border-collapse:collapse;width:100%;font-size:.9rem}
th,td{text-align:left;padding:.35rem .6rem;border-bottom:1px solid var(--line);vertical-align:top}
th{color:var(--soft);font-weight:600;white-space:nowrap}
td.number,th.number{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
tr.kernel td.kept{color:var(--good);font-weight:600}
code{font:.85em ui-monospace,monospace;background:var(--raised);padding:.1em .3em;border-radius:4px}
details{margin:.4rem 0}summary{cursor:pointer}
.soft{color:var(--soft)}
"""


def html_report(compilation: Compilation) -> str:
    """The page."""
    device = compilation.device
    title = f"{compilation.subject.name} compiled for {compilation.target.value}"
    body = [
        f"<h1>{escape(title)}</h1>",
        f"<p>{escape(summary(compilation))}.</p>",
        f'<p class="soft">Device: {escape(device.name)} ({escape(device.arch)}).</p>',
        "<h2>The whole</h2>",
        "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in whole_lines(compilation)) + "</ul>",
        *_parts(compilation),
        "<h2>Region graph</h2>",
        '<p class="soft">Green: a kernel runs it. Grey: judged, the framework is kept. Dashed: no kernel was tried. '
        "Hover for the reason.</p>",
        f'<div class="scroll" tabindex="0" role="region" aria-label="Region graph">{region_svg(compilation)}</div>',
        "<h2>Never worse: every kind of region</h2>",
        "<p>A kernel is kept where it is faster than the framework's own operators in one interleaved run, and nowhere "
        "else. Times are medians in microseconds of one call; the ratio is framework over plan, with its 95&nbsp;% "
        "interval.</p>",
        _table(rows(compilation)),
        "<h2>Plans</h2>",
        *(_plans(decision) for decision in compilation.decisions if decision.judged),
        *_rest(compilation),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n<body>\n<main>\n"
        + "\n".join(body)
        + "\n</main>\n</body>\n</html>\n"
    )


def _table(found: list[Row]) -> str:
    head = "".join(
        f'<th scope="col"{" class=number" if number else ""}>{name}</th>'
        for name, number in (
            ("region", False),
            ("of them", True),
            ("framework", True),
            ("best plan", True),
            ("ratio", True),
            ("kept", False),
            ("why", False),
        )
    )
    lines = [
        f"<tr{' class=kernel' if r.is_kernel else ''}><td>{escape(r.label)}</td><td class=number>{r.regions}</td>"
        f"<td class=number>{r.framework}</td><td class=number>{r.best}</td><td class=number>{r.ratio}</td>"
        f"<td class=kept>{escape(r.kept)}</td><td>{escape(r.why)}</td></tr>"
        for r in found
    ]
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
    return f'<div class="scroll" tabindex="0" role="region" aria-label="Decisions">{table}</div>'


def _plans(decision: Decision) -> str:
    plans = decision.kind.plans
    assert plans is not None
    items = []
    for judged in decision.judged:
        timing = judged.timing
        took = f"{timing.candidate_us:.2f} µs" if timing else "not timed"
        said = judged.failure or f"valid, {took}"
        cost = judged.plan.cost
        estimate = f"estimated {cost.microseconds:g} µs, {cost.bytes} bytes, {cost.occupancy:.0%} of the device"
        items.append(f"<li><code>{escape(judged.plan.key)}</code>: {escape(said)}; {estimate}</li>")
    items += [f"<li>removed: {escape(text)}</li>" for text in removed_lines(decision)]
    heading = (
        f"{escape(decision.kind.label)}: {len(plans.legal)} legal, {len(plans.removed)} removed, "
        f"{len(decision.judged)} judged"
    )
    return f"<details><summary>{heading}</summary><ul>{''.join(items)}</ul></details>"


def _parts(compilation: Compilation) -> list[str]:
    if not compilation.parts:
        return []
    items = "".join(
        f'<li><a href="parts/{escape(path)}/report.html">{escape(path)}</a>: {escape(text)}</li>'
        for path, text in part_lines(compilation).items()
    )
    return [
        "<h2>Parts</h2>",
        "<p>The module could not be captured whole; these submodules were captured by themselves.</p>",
        f"<ul>{items}</ul>",
    ]


def _rest(compilation: Compilation) -> list[str]:
    left = [str(problem) for problem in compilation.problems]
    left += [f"{region}: {reason}" for region, reason in compilation.left_out.items()]
    parts = []
    if left:
        parts.append("<h2>Left to the framework</h2>")
        parts.append("<ul>" + "".join(f"<li>{escape(line)}</li>" for line in left) + "</ul>")
    advice = compilation.advice
    if advice.provider:
        parts.append("<h2>Advice</h2>")
        said = (
            f"{advice.provider} gave none: {advice.problem}."
            if advice.problem
            else f"{advice.provider} ({advice.model}) labelled {len(advice.labels)} kinds and reordered the plans of "
            f"{len(advice.first)}; {len(advice.ignored)} things outside the plan space were ignored."
        )
        parts.append(f"<p>{escape(said)}</p>")
        if advice.ignored:
            parts.append("<ul>" + "".join(f"<li>{escape(line)}</li>" for line in advice.ignored) + "</ul>")
    return parts


__all__ = ["html_report"]
