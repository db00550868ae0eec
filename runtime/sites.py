"""Sites: the places of a decode step where a kernel can be chosen, and the choice.

A step is a list of calls. Each call names an operation (mostly a contract's id), the dims it runs at and the
tensors it reads and writes. An *implementation* turns a call into a function without arguments; a *selection* says
which implementation a site gets. Decode steps run over static buffers, so a call is bound once and run every step.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch

from kb.dtype import DType

# Operations that are contracts; an implementation other than the library's may be chosen for these.
CONTRACT_OPERATIONS = frozenset(
    {
        "attention_prelude",
        "paged_decode_attention",
        "o_proj_residual_rmsnorm",
        "gated_mlp_up",
        "gated_mlp_down",
        "residual_rmsnorm",
        "rope",
        "kv_append",
        "lm_head_argmax",
    }
)

Bound = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Site:
    """One operation at one set of dims: what a kernel is chosen for. Layers with equal dims share it.

    ``operation`` is a contract's id, or the name of an operation only the library implements. ``dims`` are sorted
    by name; ``num_tokens`` is the batch bucket.
    """

    operation: str
    dims: tuple[tuple[str, int], ...]
    storage: DType

    @property
    def bucket(self) -> int:
        """Rows of the step."""
        return dict(self.dims).get("num_tokens", 0)

    def __str__(self) -> str:
        return f"{self.operation}[{', '.join(f'{name}={value}' for name, value in self.dims)}]"


@dataclass(frozen=True, slots=True)
class Segment:
    """Rows of one sequence in a step that computes several of its positions.

    The rows ``row .. row + length`` are the last ``length`` of the sequence's ``seq_len`` tokens; its blocks are
    row ``table_row`` of the step's block table.
    """

    row: int
    length: int
    seq_len: int
    table_row: int


@dataclass(frozen=True, slots=True)
class PackedSegments:
    """All segments of a step side by side, for attention in one call.

    ``slots``: int32, cache slots of every token of every segment's sequence in order. ``row_starts`` and
    ``slot_starts``: int32 ``[segments + 1]``, where each segment begins among the step's prompt rows and in ``slots``.
    """

    slots: torch.Tensor
    row_starts: torch.Tensor
    slot_starts: torch.Tensor
    longest_rows: int
    longest_sequence: int


@dataclass(frozen=True, slots=True)
class SiteCall:
    """One call of a step. ``tensors`` and ``scalars`` carry the contract's names; ``segments``, and ``packed`` where
    somebody packed them, belong to ``prefill_attention`` alone, whose shape is only known to the host."""

    site: Site
    tensors: Mapping[str, torch.Tensor | None]
    scalars: Mapping[str, float]
    layer: int | None = None
    segments: tuple[Segment, ...] = ()
    packed: PackedSegments | None = None

    @property
    def dims(self) -> dict[str, int]:
        """Dims by name."""
        return dict(self.site.dims)

    def tensor(self, name: str) -> torch.Tensor:
        """A tensor that must be there. Raises KeyError."""
        value = self.tensors[name]
        if value is None:
            raise KeyError(name)
        return value


class Implementation(Protocol):
    """One way to run a site. ``name`` is shown to people; ``digest`` identifies an admitted kernel, else None."""

    @property
    def name(self) -> str: ...

    @property
    def digest(self) -> str | None: ...

    def bind(self, call: SiteCall) -> Bound:
        """A function that runs ``call`` on its tensors. Raises when this call cannot be run."""
        ...


@runtime_checkable
class Splitting(Protocol):
    """An implementation that is several calls one after the other, each of which is a site again."""

    def parts(self, call: SiteCall) -> Sequence[SiteCall]:
        """The calls that run instead of ``call``, in order. Raises when it cannot be taken apart."""
        ...


class FallbackRefusedError(RuntimeError):
    """A chosen implementation failed and falling back was forbidden."""


@dataclass(slots=True)
class Selection:
    """Which implementation each site gets.

    ``library`` runs everything and is the default. ``chosen`` overrides it per site. When a chosen implementation
    cannot be bound, the library runs instead: a warning is given and ``fallbacks`` counts it, or, with
    ``allow_fallback`` off, FallbackRefusedError is raised.
    """

    library: Implementation
    chosen: dict[Site, Implementation] = field(default_factory=dict)
    allow_fallback: bool = True
    fallbacks: dict[Site, str] = field(default_factory=dict)

    def implementation(self, site: Site) -> Implementation:
        """What runs at ``site``."""
        if site in self.fallbacks:
            return self.library
        return self.chosen.get(site, self.library)

    def choose(self, site: Site, implementation: Implementation) -> None:
        """Use ``implementation`` at ``site`` for programs built from now on. Raises ValueError for other sites."""
        if site.operation not in CONTRACT_OPERATIONS:
            raise ValueError(f"{site.operation} has no contract; only the library runs it")
        self.chosen[site] = implementation
        self.fallbacks.pop(site, None)

    def expand(self, call: SiteCall) -> list[SiteCall]:
        """What runs in place of ``call``: the parts of a chosen splitting, or the call itself."""
        implementation = self.implementation(call.site)
        return list(implementation.parts(call)) if isinstance(implementation, Splitting) else [call]

    def bind(self, call: SiteCall) -> Bound:
        """``call`` bound to the chosen implementation, or to the library when that fails."""
        implementation = self.implementation(call.site)
        if implementation is self.library:
            return self.library.bind(call)
        try:
            return implementation.bind(call)
        except Exception as error:  # whatever a kernel raises, the tokens must come
            reason = f"{implementation.name}: {error}"
            if not self.allow_fallback:
                raise FallbackRefusedError(f"{call.site} cannot run {reason}") from error
            self.fallbacks[call.site] = reason
            warnings.warn(f"{call.site.operation} falls back to the library path ({reason})", stacklevel=2)
            return self.library.bind(call)
