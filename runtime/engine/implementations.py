"""What a site can be given besides the library path: a named baseline, or a kernel."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from kb.candidate import Candidate
from kb.contract import Contract
from runtime.baselines import Baseline
from runtime.compile_cache import CompileCache
from runtime.kernel import Kernel, load_kernel
from runtime.sites import Bound, Site, SiteCall


@dataclass(frozen=True, slots=True)
class BaselineImplementation:
    """A contract's baseline, such as a Triton kernel or FlashInfer."""

    baseline: Baseline
    contract: Contract

    @property
    def name(self) -> str:
        """The baseline's name."""
        return self.baseline.name

    @property
    def digest(self) -> None:
        """Baselines are not in the store."""
        return None

    def bind(self, call: SiteCall) -> Bound:
        """See ``Implementation.bind``. Raises RuntimeFailure or ValueError."""
        return self.baseline.prepare(self.contract, call.dims, call.site.storage, call.tensors, call.scalars)


@dataclass(slots=True)
class KernelImplementation:
    """A candidate, compiled once per site and bound once per call.

    All calls of a site share one workspace: they follow each other on one stream.
    """

    candidate: Candidate
    contract: Contract
    cache: CompileCache | None = None
    _loaded: dict[Site, tuple[Kernel, torch.Tensor | None]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """``kernel`` and the start of its digest."""
        return f"kernel {self.candidate.digest[:12]}"

    @property
    def digest(self) -> str:
        """The candidate's digest, its name in the store."""
        return self.candidate.digest

    def bind(self, call: SiteCall) -> Bound:
        """See ``Implementation.bind``. Compiles on a site's first call. Raises RuntimeFailure."""
        if call.site not in self._loaded:
            kernel = load_kernel(self.candidate, self.contract, call.dims, call.site.storage, cache=self.cache)
            self._loaded[call.site] = (kernel, kernel.new_workspace())
        kernel, workspace = self._loaded[call.site]
        return kernel.bind(call.tensors, call.scalars, workspace=workspace)
