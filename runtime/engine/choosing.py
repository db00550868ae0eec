"""Choosing implementations by measurement, inside the step they will run in.

For each batch bucket, site by site, every candidate replaces what runs there now and the whole step is timed against
it, interleaved; on a GPU both are CUDA graphs. A candidate qualifies when the step takes at most MU times as long, and
the fastest qualified one stays. Measured alone, kernels promise about twice what a step gives: the neighbours' cache
contents, launch overlap and tails count here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch

from kb.dtype import Target
from runtime.engine.agreement import disagreement
from runtime.engine.executor import Executor
from runtime.engine.rehearsal import rehearsal
from runtime.errors import RuntimeFailure
from runtime.sites import CONTRACT_OPERATIONS, Implementation, Selection, Site, SiteCall, Splitting
from runtime.stopwatch import stopwatch_for
from runtime.timing import Arm, Effort, Stopwatch, time_interleaved

MU = 1.04
EFFORT = Effort(relative_error=0.002, min_rounds=7, max_rounds=60, seconds=1.5)

Candidates = Callable[[Site], Sequence[Implementation]]


class DeviceLostError(RuntimeFailure):
    """Something that was tried ended the device context; nothing can run in this process any more. Says what."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One implementation tried at one site. Times are of the whole step, in microseconds, from one run.

    ``failure`` says why it could not run or was wrong; the times are then None.
    """

    name: str
    digest: str | None
    step_us: float | None = None
    rival_us: float | None = None
    failure: str | None = None

    @property
    def gain(self) -> float | None:
        """How many times faster the step is than with what ran there before."""
        return self.rival_us / self.step_us if self.step_us and self.rival_us else None


@dataclass(frozen=True, slots=True)
class SiteChoice:
    """What runs at a site and what it was tried against."""

    site: Site
    chosen: str
    digest: str | None
    trials: tuple[Trial, ...]


@dataclass(frozen=True, slots=True)
class BucketChoice:
    """All sites of one bucket. ``library_us`` and ``step_us``: the step before and after, interleaved in one run."""

    bucket: int
    context: int
    library_us: float
    step_us: float
    sites: tuple[SiteChoice, ...] = field(default=())


def choose_bucket(
    executor: Executor,
    candidates: Candidates,
    bucket: int,
    *,
    context: int,
    effort: Effort = EFFORT,
    stopwatch: Stopwatch | None = None,
) -> BucketChoice:
    """Decide all sites of ``bucket`` and put the choices into the executor's selection.

    ``context``: tokens every sequence has while steps are timed, or as many as the cache has room for; the result says
    which. ``stopwatch``: default: that of the executor's device. Cached prefixes in the blocks it needs are forgotten.
    Raises ValueError when the cache has fewer blocks than the bucket has sequences, and BlocksHeldError while requests
    run.
    """
    selection = executor.selection
    stopwatch = stopwatch or stopwatch_for(_target(executor))
    program = executor.build(bucket, greedy=True, selection=Selection(selection.library))
    sites = list(dict.fromkeys(c.site for c in program.calls if c.site.operation in CONTRACT_OPERATIONS))
    chosen: dict[Site, Implementation] = {}
    found = []
    with torch.inference_mode(), rehearsal(program.buffers, executor.decoder.pool, context) as length:
        for site in sites:
            choice, best = _choose_site(executor, candidates, site, chosen, bucket, effort, stopwatch)
            found.append(choice)
            for place, implementation in best.items():
                chosen[place] = implementation
                selection.choose(place, implementation)
                if place != site:  # a part of the splitting that won
                    name, digest = implementation.name, implementation.digest
                    found.append(SiteChoice(place, name, digest, (Trial(name, digest),)))
        before = executor.build(bucket, greedy=True, selection=Selection(selection.library))
        after = executor.build(bucket, greedy=True, selection=Selection(selection.library, dict(chosen)))
        arms = {"library": Arm((before.run,)), "chosen": Arm((after.run,))}
        timings = time_interleaved(arms, stopwatch, effort)
    executor.forget_programs()
    return BucketChoice(bucket, length, timings["library"].median_us, timings["chosen"].median_us, tuple(found))


def _choose_site(
    executor: Executor,
    candidates: Candidates,
    site: Site,
    chosen: dict[Site, Implementation],
    bucket: int,
    effort: Effort,
    stopwatch: Stopwatch,
) -> tuple[SiteChoice, dict[Site, Implementation]]:
    """The choice for ``site``, and what to use where: nothing when the library stays."""
    library = executor.selection.library
    before = executor.build(bucket, True, Selection(library, dict(chosen)))
    call = next(c for c in before.calls if c.site == site)
    trials: list[Trial] = []
    running: dict[str, dict[Site, Implementation]] = {}
    arms = {library.name: Arm((before.run,))}
    for candidate in candidates(site):
        trial = Trial(candidate.name, candidate.digest)
        try:
            used = {site: candidate, **_parts(candidate, call, candidates, chosen)}
            tried = Selection(library, {**chosen, **used}, allow_fallback=False)
            program = executor.build(bucket, greedy=True, selection=tried)
            parts = candidate.parts(call) if isinstance(candidate, Splitting) else [call]
            wrong = _wrong(parts, used, library)
            if wrong is not None:
                trials.append(replace(trial, failure=wrong))
                continue
            program.run()
            _synchronize(executor)
        except Exception as error:  # whatever a candidate raises, the others must be tried
            _require_alive(executor, f"{candidate.name} ({candidate.digest or 'no kernel'})", site, error)
            trials.append(replace(trial, failure=" ".join(str(error).split())[:300] or type(error).__name__))
            continue
        running[candidate.name] = used
        arms[candidate.name] = Arm((program.run,))
        trials.append(trial)
    if not running:
        return SiteChoice(site, library.name, library.digest, tuple(trials)), {}
    try:
        timings = time_interleaved(arms, stopwatch, effort)
    except Exception as error:
        _require_alive(executor, f"one of {', '.join(arms)}", site, error)
        raise
    base = timings[library.name].median_us
    timed = [t if t.failure else replace(t, step_us=timings[t.name].median_us, rival_us=base) for t in trials]
    qualified = [n for n in running if timings[n].median_us <= MU * base]
    best = min([library.name, *qualified], key=lambda n: timings[n].median_us)
    used = running.get(best, {})
    digest = used[site].digest if used else None
    return SiteChoice(site, best, digest, (Trial(library.name, library.digest, base, base), *timed)), used


def _parts(
    candidate: Implementation, call: SiteCall, candidates: Candidates, chosen: dict[Site, Implementation]
) -> dict[Site, Implementation]:
    """For a splitting, what its parts run on: the first admitted kernel of each contract, else its first baseline."""
    if not isinstance(candidate, Splitting):
        return {}
    found: dict[Site, Implementation] = {}
    for part in candidate.parts(call):
        if part.site.operation in CONTRACT_OPERATIONS and part.site not in chosen:
            offered = candidates(part.site)
            best = next((c for c in offered if c.digest), next(iter(offered), None))
            if best is not None:
                found[part.site] = best
    return found


def _wrong(calls: Sequence[SiteCall], used: dict[Site, Implementation], library: Implementation) -> str | None:
    """The first disagreement with the library where something new is used. ``calls`` follow each other: what one
    computes the next reads, so the library fills it in; in memory never written, a wrong result may not show."""
    for call in calls:
        implementation = used.get(call.site)
        if implementation is not None and (problem := disagreement(call, implementation, library)) is not None:
            return f"{call.site.operation}: {problem}"
        library.bind(call)()
    return None


def _require_alive(executor: Executor, who: str, site: Site, error: Exception) -> None:
    """Raises DeviceLostError when the device no longer answers after ``who`` failed at ``site`` with ``error``."""
    try:
        _synchronize(executor)
    except Exception:  # torch's and the driver's errors have no common type
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise DeviceLostError(f"{who} ended the device context at {site}: {reason}") from error


def _target(executor: Executor) -> Target:
    return Target.CUDA if executor.buffers.out_ids.device.type == "cuda" else Target.CPU


def _synchronize(executor: Executor) -> None:
    if _target(executor) is Target.CUDA:
        torch.cuda.synchronize()
