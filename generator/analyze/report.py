"""The analysis as Markdown and as data, the same text for the same graph."""

from __future__ import annotations

from collections import Counter
from typing import Any

from generator.analyze.analysis import Analysis, Match, Region, Skip
from generator.analyze.trail import common_module
from generator.ir import Graph


def report(analysis: Analysis, graph: Graph, *, title: str = "Analysis") -> str:
    """Markdown: patterns first, then regions, then hard boundaries."""
    lines = [f"# {title}", "", _summary(analysis, graph), "", "## Patterns", ""]
    for result in analysis.patterns:
        lines += [f"### {result.contract}", ""]
        lines += [_match_line(graph, match) for match in result.found]
        lines += [_skip_line(skip) for skip in result.skipped]
        lines.append("")
    lines += ["## Regions", "", "| region | category | what | module | nodes | reads | makes | blocked |"]
    lines.append("|---|---|---|---|---|---|---|---|")
    lines += [_region_line(graph, region) for region in analysis.regions]
    lines += ["", "## Hard boundaries", ""]
    reasons = Counter(boundary.reason for boundary in analysis.boundaries)
    first = {boundary.reason: boundary.node for boundary in reversed(analysis.boundaries)}
    if not reasons:
        lines.append("None.")
    for reason in dict.fromkeys(boundary.reason for boundary in analysis.boundaries):
        where = graph.node(first[reason]).where
        place = f", first at {where}" if where is not None else ""
        lines.append(f"- {reason} ({_count(reasons[reason], 'node')}, first `{first[reason]}`{place})")
    return "\n".join(lines) + "\n"


def report_data(analysis: Analysis, graph: Graph) -> dict[str, Any]:
    """The same as data for ``--json``."""
    return {
        "nodes": len(graph.nodes),
        "patterns": [
            {
                "contract": result.contract,
                "found": [
                    {
                        "module": match.module,
                        "nodes": list(match.nodes),
                        "dims": dict(match.dims),
                        "storage": match.storage,
                        "assumed": list(match.assumed),
                        "notes": list(match.notes),
                    }
                    for match in result.found
                ],
                "skipped": [
                    {"module": skip.module, "reason": skip.reason, "nodes": list(skip.nodes)} for skip in result.skipped
                ],
            }
            for result in analysis.patterns
        ],
        "regions": [
            {
                "id": region.id,
                "category": region.category.value,
                "label": region.label,
                "module": common_module(graph, region.nodes),
                "nodes": list(region.nodes),
                "inputs": list(region.inputs),
                "outputs": list(region.outputs),
                "blocked": region.blocked,
            }
            for region in analysis.regions
        ],
        "boundaries": [{"node": boundary.node, "reason": boundary.reason} for boundary in analysis.boundaries],
    }


def _summary(analysis: Analysis, graph: Graph) -> str:
    found = sum(bool(result.found) for result in analysis.patterns)
    kinds = Counter(region.category.value for region in analysis.regions)
    blocked = sum(region.blocked is not None for region in analysis.regions)
    counts = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    return (
        f"{_count(len(graph.nodes), 'node')} in {_count(len(analysis.regions), 'region')} ({counts}); "
        f"{blocked} may hold no generated kernel. {found} of {_count(len(analysis.patterns), 'contract')} found."
    )


def _match_line(graph: Graph, match: Match) -> str:
    dims = ", ".join(f"{name} = {size}" for name, size in match.dims.items() if name not in match.assumed)
    assumed = ", ".join(f"{name} = {match.dims[name]}" for name in match.assumed)
    nodes = sorted(match.nodes, key=graph.position)
    span = f"`{nodes[0]}`" if len(nodes) == 1 else f"{len(nodes)} nodes, `{nodes[0]}` to `{nodes[-1]}`"
    extra = "".join(f"; {note}" for note in match.notes)
    left_open = f"; left open by the graph: {assumed}" if assumed else ""
    return f"- found in {_module(match.module)} ({span}): {match.storage}, {dims}{left_open}{extra}"


def _skip_line(skip: Skip) -> str:
    place = f" {_module(skip.module)}" if skip.nodes or skip.module else ""
    return f"- skipped{place} because {skip.reason}"


def _region_line(graph: Graph, region: Region) -> str:
    cells = (
        region.id,
        region.category.value,
        region.label,
        _module(common_module(graph, region.nodes)),
        str(len(region.nodes)),
        str(len(region.inputs)),
        _values(graph, region.outputs),
        region.blocked or "",
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _values(graph: Graph, values: tuple[str, ...]) -> str:
    shown = [f"{graph.values[v].dtype}[{', '.join(map(str, graph.values[v].shape))}]" for v in values]
    return ", ".join(shown[:3]) + (f" and {len(shown) - 3} more" if len(shown) > 3 else "")


def _module(path: str) -> str:
    return f"`{path}`" if path else "the root"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
