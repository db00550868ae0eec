"""Zeros that take no memory before they are touched."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

_ALIGN = 64  # as torch aligns its own


def zeros(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """As ``torch.zeros``, which on a CPU writes every page: there these come from the system, which maps a page of
    zeros when it is first used."""
    if device.type != "cpu":
        return torch.zeros(tuple(shape), dtype=dtype, device=device)
    size = math.prod(shape) * dtype.itemsize
    whole = torch.from_numpy(np.zeros(size + _ALIGN, dtype=np.uint8))
    start = -whole.data_ptr() % _ALIGN
    return whole[start : start + size].view(dtype).view(tuple(shape))
