"""Scratch memory of the baselines, shared by all calls on a device.

A decode step binds the same contract once a layer; its calls follow each other on one stream and can all use one
buffer. A buffer lives as long as a call that uses it.
"""

from __future__ import annotations

from weakref import WeakValueDictionary

import torch

_BUFFERS: WeakValueDictionary[tuple[str, tuple[int, ...], torch.dtype, torch.device], torch.Tensor] = (
    WeakValueDictionary()
)


def scratch(name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Uninitialised memory; the same tensor for equal arguments. ``name`` keeps buffers used together apart."""
    key = (name, shape, dtype, device)
    found = _BUFFERS.get(key)
    if found is None:
        found = _BUFFERS[key] = torch.empty(shape, dtype=dtype, device=device)
    return found
