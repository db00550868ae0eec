"""Tests that need an NVIDIA GPU skip, with the reason, where there is none; the calibration corpus is counted."""

from __future__ import annotations

from collections import Counter

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    from runtime.device import has_cuda  # imports torch, so only when a test needs the answer

    if not has_cuda():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU; torch sees none"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How many right candidates passed and how many wrong ones were rejected, across all processes of a run."""
    counts: Counter[tuple[str, str]] = Counter()
    for outcome in ("passed", "failed"):
        for report in terminalreporter.stats.get(outcome, []):
            kinds = [value for name, value in getattr(report, "user_properties", []) if name == "calibration"]
            if kinds and report.when == "call":
                counts[str(kinds[-1]), outcome] += 1
    if not counts:
        return
    right, wrong = counts["right", "passed"], counts["wrong", "passed"]
    terminalreporter.write_line(
        f"calibration: {right} of {right + counts['right', 'failed']} right candidates passed, "
        f"{wrong} of {wrong + counts['wrong', 'failed']} wrong ones were rejected by the gate named, "
        f"{counts['needs a GPU', 'passed']} wrong ones pass all that can be judged without a GPU"
    )
