"""A module that could not be captured whole, with compiled submodules in place of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from generator.compile.bound import Fallbacks
from generator.compile.module import CompiledModule


class PartlyCompiled:
    """Call it as the module; its own code runs, and where it calls a submodule that was captured, the kernels do.

    For inference, from one thread at a time: the submodules' ``forward`` is replaced while a call lasts.
    """

    def __init__(self, module: torch.nn.Module, parts: Mapping[str, CompiledModule]) -> None:
        self.module = module
        self.kernels = True
        self._parts = parts
        self.regions: int = sum(part.regions for part in parts.values())
        for part in self._parts.values():
            # Its fallback must be the submodule's own code, and not what stands in its place during a call.
            part.module = _own_forward(part.module)

    @property
    def fallbacks(self) -> Fallbacks:
        """Those of all parts, by path and place."""
        found = Fallbacks()
        for path, part in self._parts.items():
            found.counts |= {f"{path}: {where}": count for where, count in part.fallbacks.counts.items()}
            found.reasons |= {f"{path}: {where}": reason for where, reason in part.fallbacks.reasons.items()}
        return found

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the module returns."""
        with torch.no_grad():
            if not self.kernels:
                return self.module(*args, **kwargs)
            with self._in_place():
                return self.module(*args, **kwargs)

    @contextmanager
    def _in_place(self) -> Iterator[None]:
        modules = {path: self.module.get_submodule(path) for path in self._parts}
        before = {path: module.__dict__.get("forward") for path, module in modules.items()}
        try:
            for path, module in modules.items():
                module.forward = self._parts[path]
            yield
        finally:
            for path, module in modules.items():
                own = before[path]
                if own is None:
                    del module.forward
                else:
                    module.forward = own


def _own_forward(module: Any) -> Any:
    return module.forward if isinstance(module, torch.nn.Module) else module


__all__ = ["PartlyCompiled"]
