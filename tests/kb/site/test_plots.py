"""Charts say their numbers, stay inside their frame, and are the same bytes each time."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from kb.site.plots import WIDTH, Bar, Group, bars, steps


def svg(figure: str) -> ElementTree.Element:
    """The chart, parsed: it must be well-formed XML."""
    return ElementTree.fromstring(re.search(r"<svg.*</svg>", figure, re.DOTALL)[0])  # type: ignore[index]


CHART = bars(
    "Times <µs> & more",
    [
        Group("<one> & two", (Bar(4.0, "4 µs", 0, 3.5, 4.5), Bar(2.0, "2 µs", 1))),
        Group("three", (Bar(1.0, "1 µs", 2),)),
    ],
    series=("kernel", "baseline", "floor"),
    reference=3.0,
)


def test_a_chart_is_well_formed_whatever_its_labels_hold():
    texts = [element.text for element in svg(CHART).iter("text")]
    assert "<one> & two" in texts
    assert svg(CHART).get("aria-label") == "Times <µs> & more"


def test_bars_are_as_long_as_their_values():
    found = [float(r.get("width", 0)) for r in svg(CHART).iter("rect") if r.get("height") == "15"]
    assert found[0] == pytest.approx(2 * found[1], abs=0.2)
    assert found[1] == pytest.approx(2 * found[2], abs=0.2)
    assert max(found) <= WIDTH


def test_a_chart_is_one_line_so_that_no_blank_line_can_end_its_block():
    assert "\n" not in CHART


def test_the_staircase_rises_only_to_better_rounds_and_marks_what_was_not_timed():
    chart = svg(steps("Rounds", [("r1", None), ("r2", 0.8), ("r3", 0.7), ("r4", 1.2)], reference=1.0, shown="equal"))
    texts = [element.text for element in chart.iter("text")]
    assert texts.count("✕") == 1
    assert {"0.80×", "0.70×", "1.20×"} <= set(texts)
    levels = [float(line.get("y1", 0)) for line in chart.iter("line") if line.get("class") == "ac-plot-step"]
    assert len(set(levels)) == 2


def test_a_chart_without_values_is_still_a_chart():
    assert svg(bars("empty", [], reference=None)).get("viewBox")
    assert svg(steps("empty", [], reference=1.0, shown="")).get("viewBox")
