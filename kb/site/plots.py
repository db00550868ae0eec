"""Charts as SVG, drawn when the site is built: no script, no fetch, and colours that follow the page's theme.

Colours are classes (``ac-s1`` … ``ac-s4``) that the style sheet binds to theme variables. Labels stand above their
bars, so that a chart keeps its text size on a phone. Coordinates are rounded to a tenth: the same numbers give the
same bytes on every machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kb.site.text import html

WIDTH = 460
_BAR = 15
_GAP = 4
_LABEL = 18
_VALUE_ROOM = 92


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar: ``value`` in the chart's unit, what is written at its end, and its series (0 is the first)."""

    value: float
    shown: str
    series: int = 0
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Group:
    """Bars under one label."""

    label: str
    bars: tuple[Bar, ...]


def bars(title: str, groups: Sequence[Group], *, series: Sequence[str] = (), reference: float | None = None) -> str:
    """Horizontal bars from zero. ``reference`` is a dashed line; ``low`` and ``high`` of a bar a whisker."""
    top = _legend_height(series)
    values = [b.high or b.value for g in groups for b in g.bars]
    limit = max([*values, reference or 0.0, 1e-12])
    scale = (WIDTH - _VALUE_ROOM) / limit
    parts = _legend(series)
    y = float(top)
    for group in groups:
        parts.append(_text(0, y + 12, group.label, "ac-plot-label"))
        y += _LABEL
        for bar in group.bars:
            parts.append(_rect(0, y, bar.value * scale, _BAR, f"ac-s{bar.series + 1}"))
            end = bar.value
            if bar.low is not None and bar.high is not None:
                parts.append(_whisker(bar.low * scale, bar.high * scale, y + _BAR / 2))
                end = max(bar.value, bar.high)
            parts.append(_text(end * scale + 6, y + 12, bar.shown, "ac-plot-value"))
            y += _BAR + _GAP
        y += 8
    if reference is not None:
        x = reference * scale
        # First, so that numbers stand in front of it.
        parts.insert(0, _line(x, top, x, y - 6, "ac-plot-reference"))
    return _figure(title, parts, y)


def steps(title: str, points: Sequence[tuple[str, float | None]], *, reference: float, shown: str) -> str:
    """Best value so far after each step, as a staircase, with each step's own value as a dot; None: nothing timed."""
    height, left, right = 190, 8, WIDTH - 8
    values = [v for _, v in points if v is not None]
    top = max([*values, reference, 1e-12]) * 1.1
    width = (right - left) / max(1, len(points))

    def at(value: float) -> float:
        return 24 + (height - 56) * (1 - value / top)

    parts = [
        _line(left, at(reference), right, at(reference), "ac-plot-reference"),
        _text(left, 12, shown, "ac-plot-label"),
    ]
    best: float | None = None
    for index, (label, value) in enumerate(points):
        x = left + width * index
        centre = x + width / 2
        parts.append(_text(centre, height - 8, label, "ac-plot-label", anchor="middle"))
        before = best
        if value is not None:
            best = value if best is None else max(best, value)
            parts.append(f'<circle class="ac-s1" cx="{_n(centre)}" cy="{_n(at(value))}" r="4"/>')
            parts.append(_text(centre, at(value) - 9, f"{value:.2f}×", "ac-plot-value", anchor="middle"))
        else:
            parts.append(_text(centre, at(0) - 4, "✕", "ac-plot-miss", anchor="middle"))
        if best is not None:
            parts.append(_line(x, at(best), x + width, at(best), "ac-plot-step"))
            if before is not None and before != best:
                parts.append(_line(x, at(before), x, at(best), "ac-plot-step"))
    parts.append(_line(left, at(0), right, at(0), "ac-plot-axis"))
    return _figure(title, parts, height)


def _figure(title: str, parts: Sequence[str], height: float) -> str:
    """One line of HTML: a blank line inside would end the block for a Markdown reader."""
    body = "".join(parts)
    return (
        f'<figure class="ac-plot"><svg viewBox="0 0 {WIDTH} {_n(height)}" role="img" '
        f'aria-label="{html(title)}">{body}</svg><figcaption>{html(title)}</figcaption></figure>'
    )


def _legend_height(series: Sequence[str]) -> int:
    return 18 * len(_legend_rows(series)) + (8 if series else 0)


def _legend_rows(series: Sequence[str]) -> list[list[tuple[int, str, float]]]:
    """Series names in rows that fit the width: (index, name, x)."""
    rows: list[list[tuple[int, str, float]]] = []
    x = 0.0
    for index, name in enumerate(series):
        width = 22 + 6.6 * len(name) + 14
        if not rows or x + width > WIDTH:
            rows.append([])
            x = 0.0
        rows[-1].append((index, name, x))
        x += width
    return rows


def _legend(series: Sequence[str]) -> list[str]:
    parts = []
    for row_number, row in enumerate(_legend_rows(series)):
        y = 18 * row_number
        for index, name, x in row:
            parts.append(_rect(x, y + 2, 12, 12, f"ac-s{index + 1}"))
            parts.append(_text(x + 18, y + 12, name, "ac-plot-value"))
    return parts


def _whisker(low: float, high: float, y: float) -> str:
    ends = "".join(_line(x, y - 4, x, y + 4, "ac-plot-whisker") for x in (low, high))
    return _line(low, y, high, y, "ac-plot-whisker") + ends


def _rect(x: float, y: float, width: float, height: float, css: str) -> str:
    return f'<rect class="{css}" x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" height="{_n(height)}" rx="2"/>'


def _line(x1: float, y1: float, x2: float, y2: float, css: str) -> str:
    return f'<line class="{css}" x1="{_n(x1)}" y1="{_n(y1)}" x2="{_n(x2)}" y2="{_n(y2)}"/>'


def _text(x: float, y: float, content: str, css: str, anchor: str = "start") -> str:
    placed = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f'<text class="{css}" x="{_n(x)}" y="{_n(y)}"{placed}>{html(content)}</text>'


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
