"""The drawing of the architecture: boxes and arrows as SVG, in the page's colours."""

from __future__ import annotations

from kb.site.text import html

_WIDTH, _HEIGHT = 640, 430
# Name, lines below it, x, y, width, height, style.
_BOXES = (
    ("contracts/", ("interface, dtypes,", "numerics"), 0, 0, 180, 70, "ac-store"),
    ("principles/", ("decisions, dead ends,", "mandates"), 0, 90, 180, 70, "ac-store"),
    ("render", ("what holds here,", "as a prompt"), 240, 45, 150, 70, "ac-box"),
    ("author", ("a language model", "or a person"), 470, 45, 150, 70, "ac-box"),
    ("gates", ("static, compile, interface,", "numerics, sanitizer, speed"), 430, 200, 190, 70, "ac-box"),
    ("kernels/", ("source, manifest,", "transcript"), 430, 340, 190, 70, "ac-store"),
    ("selection", ("times kernels", "inside the step"), 220, 340, 150, 70, "ac-box"),
    ("engine", ("paged cache, batching,", "graphs, tokens"), 0, 340, 160, 70, "ac-box"),
)
_ARROWS = (
    "M180,35 L210,35 L210,70 L234,70",
    "M180,125 L210,125 L210,90 L234,90",
    "M390,80 L464,80",
    "M545,115 L545,194",
    "M430,235 L315,235 L315,121",
    "M525,270 L525,334",
    "M430,375 L376,375",
    "M220,375 L166,375",
    "M330,235 L90,235 L90,166",
)
_LABELS = (
    (427, 72, "prompt", "middle"),
    (553, 160, "candidate", "start"),
    (308, 185, "diagnostics", "end"),
    (308, 200, "round by round", "end"),
    (533, 308, "admitted", "start"),
    (100, 254, "what lost becomes", "start"),
    (100, 269, "a drafted dead end", "start"),
)
_DESCRIPTION = (
    "Principles and contracts are rendered into a prompt. An author answers with a candidate. The gates judge it and "
    "send diagnostics back for the next round. What passes is admitted to the kernel store. Selection times kernels "
    "inside the step, and the engine runs what was faster. A search that fails drafts a dead end."
)


def architecture() -> str:
    """The drawing as one line of HTML."""
    head = (
        '<defs><marker id="ac-head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path class="ac-head" d="M0,0 L8,4 L0,8 z"/></marker></defs>'
    )
    arrows = "".join(f'<path class="ac-arrow" d="{path}" marker-end="url(#ac-head)"/>' for path in _ARROWS)
    boxes = "".join(_box(*box) for box in _BOXES)
    labels = "".join(
        f'<text class="ac-plot-label" x="{x}" y="{y}" text-anchor="{anchor}">{html(label)}</text>'
        for x, y, label, anchor in _LABELS
    )
    return (
        f'<figure class="ac-plot ac-drawing"><svg viewBox="-4 -4 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{html(_DESCRIPTION)}">{head}{arrows}{boxes}{labels}</svg>'
        f"<figcaption>{html(_DESCRIPTION)}</figcaption></figure>"
    )


def _box(name: str, lines: tuple[str, ...], x: int, y: int, width: int, height: int, css: str) -> str:
    rows = "".join(
        f'<text class="ac-plot-label" x="{x + 12}" y="{y + 41 + 16 * i}">{html(line)}</text>'
        for i, line in enumerate(lines)
    )
    return (
        f'<rect class="{css}" x="{x}" y="{y}" width="{width}" height="{height}" rx="6"/>'
        f'<text class="ac-strong" x="{x + 12}" y="{y + 23}">{html(name)}</text>{rows}'
    )
