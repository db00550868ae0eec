"""Tiles by measurement on one NVIDIA H200, 2-byte types: (kernel, results, K, row bucket) -> fields of Tiles.

Written by ``bench/gpu/baselines.py --tune``; a shape that is not here is cut by rule.
"""

from __future__ import annotations

MEASURED: dict[tuple[str, int, int, int], tuple[int, ...]] = {}
