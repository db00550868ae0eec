"""The region graph as SVG: one box a region, or one a kind of region where there are too many to read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from generator.compile.pipeline import Compilation
from generator.plan.fusion import EPILOGUE

MOST_REGIONS = 60
_WIDTH, _HEIGHT, _GAP_X, _GAP_Y, _MARGIN = 208, 46, 22, 40, 16
_LETTERS = 27
STYLE = """
.regions{font:12px system-ui,sans-serif}
.regions rect{stroke-width:1.2;rx:6}
.regions .kernel rect{fill:#d8ecdf;stroke:#2f7d4f}
.regions .framework rect{fill:#eef1f5;stroke:#8a94a3}
.regions .blocked rect{fill:#fbfbfc;stroke:#b9c0ca;stroke-dasharray:4 3}
.regions text{fill:#1b2430}
.regions .small{font-size:10.5px;fill:#55606f}
.regions path{fill:none;stroke:#8a94a3;stroke-width:1.1}
@media (prefers-color-scheme: dark){
.regions .kernel rect{fill:#1f3d2c;stroke:#63b487}
.regions .framework rect{fill:#262c35;stroke:#75808f}
.regions .blocked rect{fill:#1a1e24;stroke:#4f5966}
.regions text{fill:#e6eaf0}
.regions .small{fill:#a6b0bd}
.regions path{stroke:#6b7685}
}
"""


@dataclass(frozen=True, slots=True)
class Box:
    """A box: two lines of text, and a class that says who runs it. ``hint`` shows on hovering."""

    id: str
    first: str
    second: str
    style: str
    hint: str


def region_svg(compilation: Compilation) -> str:
    """The drawing, for a page or a file of its own. The same for the same decisions."""
    boxes, edges = _by_region(compilation)
    if len(boxes) > MOST_REGIONS:
        boxes, edges = _by_kind(compilation, edges)
    return draw(boxes, edges)


def draw(boxes: Sequence[Box], edges: Sequence[tuple[str, str]]) -> str:
    """``boxes`` in an order they can run in; ``edges`` between their ids.

    Edges back to an earlier box are left out: where a box stands for every layer's, they lead to the next layer.
    """
    order = {box.id: i for i, box in enumerate(boxes)}
    forward = sorted({e for e in edges if order[e[0]] < order[e[1]]}, key=lambda e: (order[e[0]], order[e[1]]))
    place = _placed(boxes, forward)
    width = max((x for x, _ in place.values()), default=0) + _WIDTH + _MARGIN
    height = max((y for _, y in place.values()), default=0) + _HEIGHT + _MARGIN
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="regions" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img" aria-label="Region graph: {len(boxes)} boxes">',
        f"<style>{STYLE}</style>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" orient="auto">'
        '<path d="M0 0L8 4L0 8" /></marker></defs>',
    ]
    lines += [_edge(place[a], place[b]) for a, b in forward]
    lines += [_box(box, *place[box.id]) for box in boxes]
    return "\n".join([*lines, "</svg>"])


def _by_region(compilation: Compilation) -> tuple[list[Box], list[tuple[str, str]]]:
    graph, analysis = compilation.graph, compilation.analysis
    boxes = []
    for region in analysis.regions:
        decision = compilation.decision_of(region.id)
        cut = compilation.decision_of(region.id + EPILOGUE)
        decision = cut if cut is not None and cut.chosen is not None else decision
        chosen = decision.chosen if decision and region.id not in compilation.left_out else None
        label = decision.kind.label if decision else region.label
        reason = compilation.left_out.get(region.id) or (decision.reason if decision else "")
        style = "kernel" if chosen else "framework" if decision and decision.judged else "blocked"
        second = chosen.plan.family if chosen else "framework"
        boxes.append(Box(region.id, label, f"{region.id} · {region.category.value} · {second}", style, reason))
    owner = {node: region.id for region in analysis.regions for node in region.nodes}
    edges = []
    for region in analysis.regions:
        for value in region.inputs:
            producer = graph.values[value].producer
            if producer is not None and owner[producer] != region.id:
                edges.append((owner[producer], region.id))
    return boxes, edges


def _by_kind(compilation: Compilation, edges: Sequence[tuple[str, str]]) -> tuple[list[Box], list[tuple[str, str]]]:
    kind_of: dict[str, str] = {}
    boxes = []
    for decision in compilation.decisions:
        kind = decision.kind
        if kind.members[0].id.endswith(EPILOGUE):
            continue  # a part of a box that is there
        kind_of |= {region.id: kind.id for region in kind.members}
        style = "kernel" if decision.chosen else "framework" if decision.judged else "blocked"
        second = decision.chosen.plan.family if decision.chosen else "framework"
        count = f"{len(kind.members)} × " if len(kind.members) > 1 else ""
        text = f"{count}{kind.members[0].category.value} · {second}"
        boxes.append(Box(kind.id, kind.label, text, style, decision.reason))
    return boxes, [(kind_of[a], kind_of[b]) for a, b in edges if kind_of[a] != kind_of[b]]


def _placed(boxes: Sequence[Box], edges: Sequence[tuple[str, str]]) -> Mapping[str, tuple[int, int]]:
    """Layers by the longest way from a start; within a layer, near the boxes that are read from."""
    layer = {box.id: 0 for box in boxes}
    sources: dict[str, list[str]] = {box.id: [] for box in boxes}
    for a, b in edges:  # in running order, so that every source is placed before
        sources[b].append(a)
    for box in boxes:
        layer[box.id] = max((layer[s] + 1 for s in sources[box.id]), default=0)
    rows: dict[int, list[str]] = {}
    for box in boxes:
        rows.setdefault(layer[box.id], []).append(box.id)
    column: dict[str, float] = {}
    for depth in sorted(rows):
        names = rows[depth]
        wanted = {n: _mean([column[s] for s in sources[n]]) for n in names}
        names.sort(key=lambda n: wanted[n])  # stable: running order breaks ties
        for i, name in enumerate(names):
            column[name] = i
    widest = max((len(names) for names in rows.values()), default=1)
    place = {}
    for depth, names in rows.items():
        start = (widest - len(names)) / 2
        for i, name in enumerate(names):
            x = _MARGIN + round((start + i) * (_WIDTH + _GAP_X))
            place[name] = (x, _MARGIN + depth * (_HEIGHT + _GAP_Y))
    return place


def _mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers) if numbers else 0.0


def _edge(start: tuple[int, int], end: tuple[int, int]) -> str:
    x1, y1 = start[0] + _WIDTH // 2, start[1] + _HEIGHT
    x2, y2 = end[0] + _WIDTH // 2, end[1] - 2
    bend = max(_GAP_Y // 2, abs(y2 - y1) // 3)
    return f'<path d="M{x1} {y1}C{x1} {y1 + bend} {x2} {y2 - bend} {x2} {y2}" marker-end="url(#tip)" />'


def _box(box: Box, x: int, y: int) -> str:
    return (
        f'<g class="{box.style}"><title>{escape(box.hint or box.first)}</title>'
        f'<rect x="{x}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}" />'
        f'<text x="{x + 10}" y="{y + 19}">{escape(_short(box.first, _LETTERS))}</text>'
        f'<text class="small" x="{x + 10}" y="{y + 36}">{escape(_short(box.second, _LETTERS + 6))}</text></g>'
    )


def _short(text: str, letters: int) -> str:
    return text if len(text) <= letters else text[: letters - 1] + "…"


__all__ = ["Box", "draw", "region_svg"]
