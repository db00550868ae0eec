"""Finding the call that faults: every call is waited for and named, nothing runs in a graph.

A bad address shows at some later call, and from then on the whole process is lost. Run call by call, the first failure
is the guilty one. What only fails in a graph or where launches overlap does not show here; then that is the finding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from kb.contract import Contract
from kb.dtype import Target
from kb.store import KernelStore
from runtime.engine.selecting import CandidateList
from runtime.sites import Bound, Implementation, Site, SiteCall, Splitting
from runtime.stopwatch import CpuStopwatch


class FaultError(Exception):
    """The call that ended the device context: site, implementation, digest, layer and dims."""


@dataclass(frozen=True)
class Watched:
    """Does what ``inner`` does, and waits for the device after every call."""

    inner: Implementation

    @property
    def name(self) -> str:
        """As ``inner``."""
        return self.inner.name

    @property
    def digest(self) -> str | None:
        """As ``inner``."""
        return self.inner.digest

    def bind(self, call: SiteCall) -> Bound:
        """See ``Implementation.bind``."""
        bound = self.inner.bind(call)

        def run() -> None:
            try:
                bound()
                synchronize()
            except Exception as error:
                raise FaultError(self._describe(call, error)) from error

        return run

    def _describe(self, call: SiteCall, error: Exception) -> str:
        shapes = {n: list(t.shape) for n, t in call.tensors.items() if t is not None}
        scalars = ", ".join(f"{name}={value:g}" for name, value in call.scalars.items())
        first_line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        return (
            f"site {call.site.operation}, implementation {self.name}, digest {self.digest or 'none'}, "
            f"layer {call.layer}, dims {call.dims}, {call.site.storage.value}, tensors {shapes}, "
            f"scalars {scalars or 'none'}: {first_line}"
        )


class WatchedCandidates(CandidateList):
    """A list of candidates that are waited for. Sites taken apart stay as they are: their parts are watched."""

    def __init__(
        self, contracts: Mapping[str, Contract], store: KernelStore | None, target: Target, *, unjudged: bool = False
    ) -> None:
        super().__init__(contracts, store, target, unjudged=unjudged)
        # One wrapper an implementation, so that a kernel is compiled once.
        self._watched: dict[int, Watched] = {}

    def __call__(self, site: Site) -> Sequence[Implementation]:
        found = super().__call__(site)
        return [c if isinstance(c, Splitting) else self._watched.setdefault(id(c), Watched(c)) for c in found]


def host_stopwatch() -> CpuStopwatch:
    """Times by the host's clock; watched calls wait for the device themselves."""
    return CpuStopwatch(sample_us=1.0)


def synchronize() -> None:
    """Wait for the device and raise what it has to say; nothing on a machine without one."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()
