"""The arguments of one call as a reference reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Call:
    """Dims, tensors (None where absent) and scalars of one call."""

    dims: Mapping[str, int]
    tensors: Mapping[str, torch.Tensor | None]
    scalars: Mapping[str, float]

    def __getitem__(self, name: str) -> torch.Tensor:
        """The tensor called ``name``. Raises KeyError when it is missing or absent at these dims."""
        tensor = self.tensors[name]
        if tensor is None:
            raise KeyError(f"'{name}' is needed by the reference and was not given")
        return tensor

    def optional(self, name: str) -> torch.Tensor | None:
        """The tensor called ``name``, None where it is absent."""
        return self.tensors.get(name)
