"""Capture, analyze, plan, judge, choose, put together: one module from call to callable."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from generator.advice.advice import NO_ADVICE, Advice, take_advice
from generator.advice.prompt import KEY
from generator.analyze import Analysis, analyze
from generator.capture import Capture, Part, Problem, capture
from generator.compile.bound import BoundRegion, Fallbacks, UnexpectedInputError
from generator.compile.module import CompiledModule, Replacement, rewritten
from generator.compile.partly import PartlyCompiled
from generator.compile.subject import Subject
from generator.compile.survey import Kind, survey
from generator.compile.tournament import Decision, Effort, Tournament
from generator.compile.verdicts import VerdictStore
from generator.compile.whole import Whole, compare_whole
from generator.ir import Graph
from generator.plan import hardware_of
from generator.plan.fusion import epilogue_of
from generator.plan.planner import DEFAULT_LIMIT
from generator.providers.protocol import Provider
from kb.dtype import Target
from runtime.device import DeviceInfo, assumed_cuda_device, cpu_device, cuda_device, has_cuda
from runtime.errors import RuntimeFailure
from validator.worker import Worker

ASSUMED_ARCH = "sm_90"
_WHOLE_SECONDS = 3.0
_ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class Settings:
    """``plans``: most plans a kind of region. ``work``: folder for verdicts, so that a second run goes on.

    ``worker`` lends a running process of the judge.
    """

    target: Target
    work: Path
    plans: int = DEFAULT_LIMIT
    effort: Effort = field(default_factory=Effort)
    provider: Provider | None = None
    advice_key: str = KEY
    worker: Worker | None = None


@dataclass(frozen=True, slots=True)
class Compilation:
    """Everything that was found, judged and decided.

    ``compiled`` is None where nothing could be captured. ``parts`` are the submodules that were captured one by one,
    by path, where the module could not be as a whole; its own graph is then empty.
    """

    subject: Subject
    target: Target
    device: DeviceInfo
    captured: Capture
    analysis: Analysis
    decisions: tuple[Decision, ...]
    advice: Advice
    compiled: CompiledModule | PartlyCompiled | None
    whole: Whole | None = None
    left_out: Mapping[str, str] = field(default_factory=dict)
    parts: Mapping[str, Compilation] = field(default_factory=dict)
    judgements: int = 0
    resumed: int = 0

    @property
    def graph(self) -> Graph:
        """The captured graph."""
        return self.captured.graph

    @property
    def problems(self) -> tuple[Problem, ...]:
        """What could not be captured."""
        return self.captured.problems

    def decision_of(self, region_id: str) -> Decision | None:
        """The decision that speaks of a region, by its id."""
        return next((d for d in self.decisions if any(m.id == region_id for m in d.kind.members)), None)


def compile_module(
    subject: Subject, settings: Settings, on_event: Callable[[str], None] = lambda _: None
) -> Compilation:
    """Compile ``subject`` for this machine's device of the target. Never raises for what a module or a kernel does.

    Where the module cannot be captured whole, the submodules that can be are compiled one by one (``parts``), and the
    module runs with them in place of its own.
    """
    device = device_of(settings.target)
    _align(subject.module)
    if settings.target is Target.CUDA and has_cuda():
        subject = subject.to("cuda")
    on_event(f"capturing {subject.name}")
    captured = capture(subject.module, subject.args, subject.kwargs, dynamic=subject.dynamic, prefix=subject.prefix)
    tournament = Tournament(
        settings.target,
        settings.effort,
        VerdictStore(settings.work, _where(device)),
        on_event=lambda kind, text: on_event(f"{kind.id} ({kind.label}): {text}"),
        lent=settings.worker,
    )
    with tournament.open():
        made = _compile(subject, captured, settings, device, tournament, on_event)
        parts = {
            part.module: _compile(
                _part_of(subject, part),
                Capture(part.graph, part.program),
                replace(settings, advice_key=f"{settings.advice_key}-{part.module.replace('.', '-')}"),
                device,
                tournament,
                on_event,
            )
            for part in captured.parts
        }
    whole: CompiledModule | PartlyCompiled | None = made.compiled
    if parts:
        compiled = {path: p.compiled for path, p in parts.items() if isinstance(p.compiled, CompiledModule)}
        whole = PartlyCompiled(subject.module, compiled)
    compared = None
    if whole is not None:
        on_event("comparing the whole")
        seconds = _WHOLE_SECONDS if settings.effort.timed else None
        compared = compare_whole(whole, subject, settings.target, seconds=seconds)
        whole.kernels = compared.kernels
    return replace(
        made,
        compiled=whole,
        whole=compared,
        parts=parts,
        judgements=tournament.judgements,
        resumed=tournament.resumed,
    )


def _compile(
    subject: Subject,
    captured: Capture,
    settings: Settings,
    device: DeviceInfo,
    tournament: Tournament,
    on_event: Callable[[str], None],
) -> Compilation:
    """One captured graph, from regions to a callable that has not been compared yet."""
    graph = captured.graph
    analysis = analyze(graph)
    example = example_sizes(graph, subject, captured)
    kinds = survey(analysis.regions, graph, hardware_of(device), limit=settings.plans, example=example)
    planned = sum(bool(k.plans is not None and not k.reason) for k in kinds)
    on_event(
        f"{subject.name}: {len(graph.nodes)} operators, {len(captured.problems)} problems, "
        f"{len(analysis.regions)} regions of {len(kinds)} kinds, {planned} with plans"
    )
    advice = NO_ADVICE
    if settings.provider is not None and planned:
        advice = take_advice(settings.provider, kinds, key=settings.advice_key)
        kinds = advice.apply(kinds)
    decided = _decided(kinds, tournament, on_event)
    # Where no kernel computes a product and what follows it, one may still compute what follows.
    lost = [d for d in decided if d.chosen is None and (d.judged or d.kind.reason)]
    rest = [r for d in lost for member in d.kind.members if (r := epilogue_of(member, graph)) is not None]
    cut = survey(rest, graph, hardware_of(device), limit=settings.plans, example=example)
    decisions = (*decided, *_decided(cut, tournament, on_event))
    compiled, left_out = _put_together(subject, captured, decisions)
    return Compilation(
        subject, settings.target, device, captured, analysis, decisions, advice, compiled, left_out=left_out
    )


def _decided(kinds: Sequence[Kind], tournament: Tournament, on_event: Callable[[str], None]) -> tuple[Decision, ...]:
    """Decisions in the order of ``kinds``, made in the order of what there is to win."""
    found: dict[str, Decision] = {}
    for kind in sorted(kinds, key=_worth, reverse=True):
        decision = found[kind.id] = tournament.decide(kind)
        if decision.judged:
            taken = decision.chosen.plan.key if decision.chosen else "framework"
            on_event(f"{kind.id} ({kind.label}): {taken}; {decision.reason}")
    return tuple(found[kind.id] for kind in kinds)


def _part_of(subject: Subject, part: Part) -> Subject:
    """A submodule with the arguments it was called with in the example call."""
    args, kwargs = part.program.example_inputs or ((), {})
    name = f"{subject.name}, {part.module}"
    return Subject(name, subject.module.get_submodule(part.module), tuple(args), dict(kwargs))


def _where(device: DeviceInfo) -> str:
    """What a verdict depends on besides the candidate."""
    versions = (f"{name} {version}" for name, version in sorted(device.versions.items()))
    return "; ".join((device.name, device.arch, device.driver, *versions))


def _align(module: torch.nn.Module) -> None:
    """Move weights that do not start on a multiple of 64 bytes, as those mapped from a file may not."""
    for tensor in (*module.parameters(), *module.buffers()):
        if tensor.device.type != "meta" and tensor.data_ptr() % _ALIGNMENT:
            tensor.data = tensor.data.clone()


def device_of(target: Target) -> DeviceInfo:
    """This machine's device of the target; for ``cuda`` without a GPU an assumed one, on which nothing can run."""
    if target is Target.CPU:
        torch.get_num_threads()  # the number of threads is torch's
        return cpu_device()
    return cuda_device() if has_cuda() else assumed_cuda_device(ASSUMED_ARCH)


def example_sizes(graph: Graph, subject: Subject, captured: Capture) -> Mapping[str, int]:
    """Values of the graph's size symbols in the example call, read off the module's arguments."""
    if captured.program is None or not graph.extents:
        return {}
    names = captured.program.graph_signature.user_inputs
    tensors = torch.utils._pytree.tree_leaves((subject.args, dict(subject.kwargs)))
    found: dict[str, int] = {}
    for name, tensor in zip(names, tensors, strict=False):
        value = graph.values.get(str(name))
        if value is None or not isinstance(tensor, torch.Tensor):
            continue
        for extent, size in zip(value.shape, tensor.shape, strict=True):
            if isinstance(extent, str) and extent.isidentifier():
                found.setdefault(extent, size)
    return found


def _worth(kind: Kind) -> float:
    """Kinds that are large and occur often are judged first, so that a budget goes where the time is."""
    if kind.plans is None or not kind.plans.plans:
        return 0.0
    return len(kind.members) * kind.plans.plans[0].cost.microseconds


def _put_together(
    subject: Subject, captured: Capture, decisions: tuple[Decision, ...]
) -> tuple[CompiledModule | None, dict[str, str]]:
    """The callable, and why a chosen kernel is not in it, by region."""
    if captured.program is None:
        return None, {}
    fallbacks = Fallbacks()
    replacements: list[Replacement] = []
    left_out: dict[str, str] = {}
    for decision in decisions:
        if decision.chosen is None:
            continue
        for region, contract in zip(decision.kind.members, decision.kind.contracts, strict=True):
            try:
                bound = BoundRegion(region.id, contract, captured.graph, decision.chosen.candidate, fallbacks)
                bound.prepare()
            except (RuntimeFailure, UnexpectedInputError) as error:
                left_out[region.id] = str(error)
                continue
            replacements.append(Replacement(region.nodes, bound))
    made = rewritten(captured.program, captured.graph, replacements)
    left_out |= {item.region.name: reason for item, reason in made.left_out}
    return CompiledModule(subject.module, made, fallbacks), left_out


__all__ = ["Compilation", "Settings", "compile_module", "device_of"]
