"""Implementations that take a stated time on a clock of their own, so that who is faster is never left to chance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from runtime.engine.library_ops import Library
from runtime.sites import Bound, Implementation, SiteCall
from runtime.stopwatch import CpuStopwatch
from runtime.timing import Arm, Effort, Sampler

QUICK = Effort(min_rounds=2, max_rounds=2, seconds=1e9)


@dataclass
class Clock:
    """Nanoseconds that pass only when an implementation says so."""

    now_ns: int = 0

    def __call__(self) -> int:
        return self.now_ns


@dataclass
class VirtualStopwatch:
    """A stopwatch on ``clock``; ``prepared`` counts the arms it was asked to time."""

    clock: Clock
    prepared: int = 0

    def prepare(self, arm: Arm) -> Sampler:
        """See ``Stopwatch.prepare``: one call a sample."""
        self.prepared += 1
        return CpuStopwatch(sample_us=1.0, clock_ns=self.clock).prepare(arm)


@dataclass(frozen=True)
class Taking:
    """Does what ``inner`` does, and every call takes ``us``, or what ``by_operation`` says, on ``clock``."""

    clock: Clock
    us: float
    name: str
    digest: str | None = None
    inner: Implementation = field(default_factory=Library)
    by_operation: Mapping[str, float] = field(default_factory=dict)

    def bind(self, call: SiteCall) -> Bound:
        """See ``Implementation.bind``."""
        bound = self.inner.bind(call)
        ns = round(1000 * self.by_operation.get(call.site.operation, self.us))

        def run() -> None:
            bound()
            self.clock.now_ns += ns

        return run


@dataclass(frozen=True)
class Chained:
    """Does what the library does in ``us``, or in ``after`` where the call before was one of the same ``chain``: a
    kernel whose loads start before its predecessor has ended, if that lets it."""

    clock: Clock
    name: str
    us: float
    after: float
    chain: list[int]
    digest: str | None = "c" * 64

    def bind(self, call: SiteCall) -> Bound:
        """See ``Implementation.bind``."""
        bound = Library().bind(call)

        def run() -> None:
            bound()
            follows = self.chain and self.chain[-1] == self.clock.now_ns
            self.clock.now_ns += round(1000 * (self.after if follows else self.us))
            self.chain[:] = [self.clock.now_ns]

        return run


@dataclass(frozen=True)
class Growing:
    """Does what the library does in ``us`` and ``each`` for every token of the longest sequence."""

    clock: Clock
    name: str
    us: float
    each: float
    digest: str | None = None

    def bind(self, call: SiteCall) -> Bound:
        """See ``Implementation.bind``."""
        bound = Library().bind(call)

        def run() -> None:
            bound()
            self.clock.now_ns += round(1000 * (self.us + self.each * int(call.tensor("seq_lens").max())))

        return run


@dataclass
class Souring:
    """Does what the library does in ``us``, and from its call number ``after`` on in ``later``."""

    clock: Clock
    us: float
    later: float
    after: int
    name: str = "souring"
    digest: str | None = None
    calls: int = 0

    def bind(self, call: SiteCall) -> Bound:
        """See ``Implementation.bind``."""
        bound = Library().bind(call)

        def run() -> None:
            bound()
            self.calls += 1
            self.clock.now_ns += round(1000 * (self.us if self.calls < self.after else self.later))

        return run


def slow_library(clock: Clock) -> Taking:
    """The library path at 10 µs a call; the projections of split sites take 1 µs."""
    return Taking(clock, 10.0, "library", by_operation={"project_heads": 1.0, "linear": 1.0})


@dataclass(frozen=True)
class Spoiling:
    """Does what the library does, then adds ``by`` to the tensor called ``tensor``, of a cache to the slots that are
    written; with ``error``, raises after that."""

    tensor: str
    by: float = 1.0
    error: str | None = None
    name: str = "spoiling"
    digest: str | None = None

    def bind(self, call: SiteCall) -> Bound:
        """See ``Implementation.bind``."""
        bound = Library().bind(call)

        def run() -> None:
            bound()
            spoiled = call.tensor(self.tensor)
            if self.tensor.endswith("_cache"):
                spoiled.flatten(0, 1)[call.tensor("slot_mapping")] += self.by
            else:
                spoiled.add_(self.by)
            if self.error is not None:
                raise RuntimeError(self.error)

        return run


@dataclass(frozen=True)
class Unbindable:
    """Cannot be bound."""

    name: str = "unbindable"
    digest: str | None = None

    def bind(self, call: SiteCall) -> Bound:
        """See ``Implementation.bind``."""
        raise RuntimeError("no such instruction\n  on this device")
