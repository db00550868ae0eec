"""Tests that need an NVIDIA GPU skip, with the reason, where there is none."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    from runtime.device import has_cuda  # imports torch, so only when a test needs the answer

    if not has_cuda():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU; torch sees none"))
