"""The library path of every contract, by name: what a kernel replaces, and what it is measured against."""

from runtime.baselines.registry import Baseline, UnsupportedShapeError, available_baselines, get_baseline

__all__ = ["Baseline", "UnsupportedShapeError", "available_baselines", "get_baseline"]
