"""A compiled kernel as data: the bytes a device loads, and what the compiler said about them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kb.dtype import Target
from runtime.errors import CompilerMessage


@dataclass(frozen=True, slots=True)
class EntryResources:
    """What one entry needs of a multiprocessor. Bytes a thread, but ``shared_bytes`` a block (static part only)."""

    registers: int
    shared_bytes: int = 0
    stack_bytes: int = 0
    spill_store_bytes: int = 0
    spill_load_bytes: int = 0
    barriers: int = 0
    max_threads: int | None = None

    @property
    def spills(self) -> bool:
        """True when registers were spilled to local memory."""
        return self.spill_store_bytes > 0 or self.spill_load_bytes > 0


@dataclass(frozen=True, slots=True)
class Image:
    """A cubin or a shared library.

    ``path`` is where it lies on disk. ``resources`` is by entry and empty for ``cpu``. ``messages`` are the warnings
    of a compilation that succeeded; ``cached`` says that this call compiled nothing.
    """

    target: Target
    arch: str
    digest: str
    path: Path
    compiler: str
    options: tuple[str, ...]
    resources: Mapping[str, EntryResources]
    messages: tuple[CompilerMessage, ...] = ()
    seconds: float = 0.0
    cached: bool = False
