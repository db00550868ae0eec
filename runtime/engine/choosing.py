"""Choosing implementations by measurement, inside the step they will run in.

For each batch bucket, site by site, every candidate replaces what runs there now and the whole step is timed against
it, interleaved; on a GPU both are CUDA graphs. Measured alone, kernels promise about twice what a step gives: the
neighbours' cache contents, launch overlap and tails count here and nowhere else.

The neighbours are choices too. A kernel that starts its loads before its predecessor has ended gains nothing beside a
library call, and is then a little slower than its rivals. So the fastest at its turn stays for the time being, and what
takes at most MU times its step *qualifies*. Then every site is looked at again among those that qualified, in the
fastest of three steps: the one just chosen, the one with the best admitted kernel wherever one qualified, and the one
with the kernel that is fastest alone. A kernel that leaves room for its successor pays only together with a successor
that uses it, so on a GPU neighbours are then looked at in pairs. Both looks are repeated until no choice changes, for
what is fastest at one site depends on what was chosen at the others. Attention is also timed at a longer context: what
is fastest at a short one may stream a long one badly. Last, the step as chosen must not be slower than the library's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import torch

from kb.dtype import Target
from runtime.engine.agreement import disagreement
from runtime.engine.executor import Executor
from runtime.engine.program import Program
from runtime.engine.rehearsal import rehearsal
from runtime.errors import RuntimeFailure
from runtime.sites import CONTRACT_OPERATIONS, Implementation, Selection, Site, SiteCall, Splitting
from runtime.stopwatch import stopwatch_for
from runtime.timing import Arm, Effort, Stopwatch, time_interleaved

MU = 1.04
# Of the first look's seconds, what a later one may take.
_LATER_LOOK = 0.5
# What is tried of a site beside its neighbour's: so many of those with the shortest steps, and the fastest alone.
_BEST_BESIDE = 2
# Looks after the first: until no choice changes, and no more than so many.
_LOOKS = 3
# Operations whose time grows with the context; they are also timed at one so many times as long.
_GROWING = frozenset({"paged_decode_attention"})
_LONGER = 8
EFFORT = Effort(relative_error=0.002, min_rounds=7, max_rounds=60, seconds=1.5)

Candidates = Callable[[Site], Sequence[Implementation]]


class DeviceLostError(RuntimeFailure):
    """Something that was tried ended the device context; nothing can run in this process any more. Says what."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One implementation tried at one site. Times are of the whole step, in microseconds, from one run.

    ``rival_us``: the step with the library at this site, or, where a second look decided, with the fastest other one.
    ``longer_us``: the step at the bucket's longer context, where that was looked at. ``failure`` says why it could not
    run or was wrong; the times are then None.
    """

    name: str
    digest: str | None
    step_us: float | None = None
    rival_us: float | None = None
    failure: str | None = None
    longer_us: float | None = None

    @property
    def gain(self) -> float | None:
        """How many times faster the step is than with its rival there."""
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
    """All sites of one bucket. ``library_us`` and ``step_us``: the step before and after, interleaved in one run, at
    ``context`` tokens each. ``longer``: the other context attention was timed at, None where it was not."""

    bucket: int
    context: int
    library_us: float
    step_us: float
    sites: tuple[SiteChoice, ...] = field(default=())
    longer: int | None = None


def choose_bucket(
    executor: Executor,
    candidates: Candidates,
    bucket: int,
    *,
    context: int,
    effort: Effort = EFFORT,
    stopwatch: Stopwatch | None = None,
    pairs: bool | None = None,
) -> BucketChoice:
    """Decide all sites of ``bucket`` and put the choices into the executor's selection.

    ``context``: tokens every sequence has while steps are timed, or as many as the cache has room for; the result says
    which. ``stopwatch``: default: that of the executor's device. ``pairs``: look at neighbours in pairs; default: on a
    GPU, for elsewhere no call begins before the one in front of it has ended. Cached prefixes in the blocks it needs
    are forgotten. Raises ValueError when the cache has fewer blocks than the bucket has sequences, and BlocksHeldError
    while requests run.
    """
    selection = executor.selection
    library = selection.library
    look = _Look(executor, candidates, bucket, effort, stopwatch or stopwatch_for(_target(executor)))
    program = look.program({})
    sites = list(dict.fromkeys(c.site for c in program.calls if c.site.operation in CONTRACT_OPERATIONS))
    picks: dict[Site, _Pick] = {}
    with torch.inference_mode(), rehearsal(program.buffers, executor.decoder.pool, context) as length:
        looked = {site: look.first(site, picks) for site in sites}
        if pairs is None:
            pairs = _target(executor) is Target.CUDA
        for _ in range(_LOOKS):
            before = dict(picks)
            look.again(looked, picks)
            if pairs:
                look.pairs(looked, picks, _neighbours(program))
            if all(picks[site] is before[site] for site in sites):
                break
    growing = [site for site, seen in looked.items() if site.operation in _GROWING and len(seen.qualified) > 1]
    far: dict[Site, dict[str, float]] = {}
    with torch.inference_mode(), rehearsal(program.buffers, executor.decoder.pool, _LONGER * context) as longer:
        if longer > 2 * length:
            far = {site: look.rivals(site, looked[site], picks) for site in growing}
    with torch.inference_mode(), rehearsal(program.buffers, executor.decoder.pool, context):
        for site, times in far.items():
            look.by_both(site, looked[site], picks, times)
        arms = {"library": Arm((look.program({}).run,)), "chosen": Arm((look.program(picks).run,))}
        timings = time_interleaved(arms, look.stopwatch, effort)
        if timings["chosen"].median_us > timings["library"].median_us:  # each site gained, together they lose
            picks = dict.fromkeys(sites, _Pick(library.name, library.digest, {}))
            timings["chosen"] = timings["library"]
    found = []
    for site, seen in looked.items():
        pick = picks[site]
        found.append(SiteChoice(site, pick.name, pick.digest, tuple(seen.trials)))
        for place, implementation in pick.used.items():
            selection.choose(place, implementation)
            if place != site:  # a part of the splitting that won
                name, digest = implementation.name, implementation.digest
                found.append(SiteChoice(place, name, digest, (Trial(name, digest),)))
    for site in sites:
        if picks[site].name == library.name:
            selection.chosen.pop(site, None)
    executor.forget_programs()
    return BucketChoice(
        bucket, length, timings["library"].median_us, timings["chosen"].median_us, tuple(found), longer if far else None
    )


@dataclass(frozen=True, slots=True)
class _Pick:
    """What runs at a site: its name, and which implementation at which place (none for the library)."""

    name: str
    digest: str | None
    used: dict[Site, Implementation]


@dataclass(slots=True)
class _Looked:
    """What is known about a site: all trials, and what qualified."""

    trials: list[Trial]
    qualified: list[_Pick]


@dataclass(frozen=True, slots=True)
class _Look:
    """Times steps of one bucket that differ in what runs at one site."""

    executor: Executor
    candidates: Candidates
    bucket: int
    effort: Effort
    stopwatch: Stopwatch

    def program(self, picks: Mapping[Site, _Pick], *, allow_fallback: bool = True) -> Program:
        """The step with ``picks`` in place and the library elsewhere."""
        chosen = {place: one for pick in picks.values() for place, one in pick.used.items()}
        selection = Selection(self.executor.selection.library, chosen, allow_fallback=allow_fallback)
        return self.executor.build(self.bucket, greedy=True, selection=selection)

    def first(self, site: Site, picks: dict[Site, _Pick]) -> _Looked:
        """Try every candidate at ``site`` with the choices before it in place; the fastest is added to ``picks``."""
        library = self.executor.selection.library
        before = self.program(picks)
        call = next(c for c in before.calls if c.site == site)
        trials: list[Trial] = []
        running = {library.name: _Pick(library.name, library.digest, {})}
        arms = {library.name: Arm((before.run,))}
        for candidate in self.candidates(site):
            trial = Trial(candidate.name, candidate.digest)
            try:
                chosen = {place for pick in picks.values() for place in pick.used}
                used = {site: candidate, **_parts(candidate, call, self.candidates, chosen)}
                pick = _Pick(candidate.name, candidate.digest, used)
                program = self.program({**picks, site: pick}, allow_fallback=False)
                parts = candidate.parts(call) if isinstance(candidate, Splitting) else [call]
                wrong = _wrong(parts, used, library)
                if wrong is not None:
                    trials.append(replace(trial, failure=wrong))
                    continue
                program.run()
                _synchronize(self.executor)
            except Exception as error:  # whatever a candidate raises, the others must be tried
                _require_alive(self.executor, f"{candidate.name} ({candidate.digest or 'no kernel'})", site, error)
                reason = " ".join(str(error).split())[:300] or type(error).__name__
                trials.append(replace(trial, failure=reason))
                continue
            running[candidate.name] = pick
            arms[candidate.name] = Arm((program.run,))
            trials.append(trial)
        if len(running) == 1:
            picks[site] = running[library.name]
            return _Looked(trials, [picks[site]])
        times = self._time(arms, site, self.effort)
        base = times[library.name]
        seen = [t if t.failure else replace(t, step_us=times[t.name], rival_us=base) for t in trials]
        shortest = min(times.values())  # the library's, or less
        qualified = [pick for name, pick in running.items() if times[name] <= MU * shortest]
        picks[site] = min(qualified, key=lambda pick: times[pick.name])
        return _Looked([Trial(library.name, library.digest, base, base), *seen], qualified)

    def again(self, looked: Mapping[Site, _Looked], picks: dict[Site, _Pick]) -> None:
        """Decide every site once more among what qualified, with all the others' choices in place."""
        open_sites = {site: seen for site, seen in looked.items() if len(seen.qualified) > 1}
        if len(open_sites) < 2:
            return  # a site alone was decided in the step it runs in
        effort = replace(self.effort, seconds=self.effort.seconds * _LATER_LOOK)
        starts = {"chosen": picks}
        for name, best in (("best in the step", _kernel), ("best alone", _alone)):
            other = {**picks, **{site: kernel for site, seen in open_sites.items() if (kernel := best(seen))}}
            if all(any(other[site] is not known[site] for site in picks) for known in starts.values()):
                starts[name] = other
        if len(starts) > 1:
            arms = {name: Arm((self.program(start).run,)) for name, start in starts.items()}
            times = self._time(arms, next(iter(open_sites)), effort)
            picks.update(starts[min(times, key=lambda name: times[name])])
        for site, seen in open_sites.items():
            steps = {pick.name: Arm((self.program({**picks, site: pick}).run,)) for pick in seen.qualified}
            times = self._time(steps, site, effort)
            rivals = {name: min(t for other, t in times.items() if other != name) for name in times}
            seen.trials = [
                replace(t, step_us=times[t.name], rival_us=rivals[t.name]) if t.name in times else t
                for t in seen.trials
            ]
            picks[site] = min(seen.qualified, key=lambda pick: times[pick.name])

    def pairs(
        self, looked: Mapping[Site, _Looked], picks: dict[Site, _Pick], neighbours: Sequence[tuple[Site, Site]]
    ) -> None:
        """Decide neighbours together, one pair after the other, among the best few of each."""
        effort = replace(self.effort, seconds=self.effort.seconds * _LATER_LOOK)
        for pair in neighbours:
            few = [_few(looked[site], picks[site]) for site in pair]
            if min(map(len, few)) < 2:
                continue
            both = {f"{a.name} | {b.name}": (a, b) for a in few[0] for b in few[1]}
            arms = {
                name: Arm((self.program({**picks, **dict(zip(pair, made, strict=True))}).run,))
                for name, made in both.items()
            }
            times = self._time(arms, pair[0], effort)
            for i, site in enumerate(pair):
                least = {p.name: min(times[n] for n, made in both.items() if made[i] is p) for p in few[i]}
                rivals = {name: min(t for other, t in least.items() if other != name) for name in least}
                looked[site].trials = [
                    replace(t, step_us=least[t.name], rival_us=rivals[t.name]) if t.name in least else t
                    for t in looked[site].trials
                ]
                picks[site] = both[min(times, key=lambda name: times[name])][i]

    def rivals(self, site: Site, seen: _Looked, picks: Mapping[Site, _Pick]) -> dict[str, float]:
        """Microseconds of the step with each of what qualified at ``site``, the others' choices in place."""
        effort = replace(self.effort, seconds=self.effort.seconds * _LATER_LOOK)
        arms = {pick.name: Arm((self.program({**picks, site: pick}).run,)) for pick in seen.qualified}
        return self._time(arms, site, effort)

    def by_both(self, site: Site, seen: _Looked, picks: dict[Site, _Pick], far: Mapping[str, float]) -> None:
        """Decide ``site`` by the step at the context that is rehearsed now and ``far``, its times at the longer one.
        Each counts by ratio, so the least product wins."""
        times = self.rivals(site, seen, picks)
        rivals = {name: min(t for other, t in times.items() if other != name) for name in times}
        seen.trials = [
            replace(t, step_us=times[t.name], rival_us=rivals[t.name], longer_us=far[t.name]) if t.name in times else t
            for t in seen.trials
        ]
        picks[site] = min(seen.qualified, key=lambda pick: times[pick.name] * far[pick.name])

    def _time(self, arms: Mapping[str, Arm], site: Site, effort: Effort) -> dict[str, float]:
        """Median microseconds of each of ``arms``, interleaved."""
        try:
            timings = time_interleaved(arms, self.stopwatch, effort)
        except Exception as error:
            _require_alive(self.executor, f"one of {', '.join(arms)}", site, error)
            raise
        return {name: timing.median_us for name, timing in timings.items()}


def _kernel(seen: _Looked) -> _Pick | None:
    """The admitted kernel that qualified with the shortest step, if any did."""
    times = {t.name: t.step_us for t in seen.trials if t.step_us is not None}
    return min((p for p in seen.qualified if p.digest), key=lambda p: times[p.name], default=None)


def _alone(seen: _Looked) -> _Pick | None:
    """The admitted kernel that qualified and is the fastest alone: candidates come in that order."""
    return next((p for p in seen.qualified if p.digest), None)


def _few(seen: _Looked, chosen: _Pick) -> list[_Pick]:
    """What to try beside a neighbour: the chosen one, those with the shortest steps, and the fastest alone."""
    times = {t.name: t.step_us for t in seen.trials if t.step_us is not None}
    best = sorted((p for p in seen.qualified if p.name in times), key=lambda p: times[p.name])[:_BEST_BESIDE]
    found = {p.name: p for p in (chosen, *best, *filter(None, (_alone(seen),)))}
    return list(found.values())


def _neighbours(program: Program) -> list[tuple[Site, Site]]:
    """Sites that follow each other in the step, each pair once, in order."""
    sites = [c.site for c in program.calls if c.site.operation in CONTRACT_OPERATIONS]
    return list(dict.fromkeys(pair for pair in pairwise(sites) if pair[0] != pair[1]))


def _parts(
    candidate: Implementation, call: SiteCall, candidates: Candidates, chosen: Collection[Site]
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
