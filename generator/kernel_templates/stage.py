"""Stages: the launches a candidate is made of, each with the building blocks it needs, put together into one source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kb.candidate import Candidate, Launch, LaunchPlan, Workspace
from kb.contract import Contract
from kb.dtype import Target
from kb.expr import Expr
from kb.signature import signature


@dataclass(frozen=True, slots=True)
class Block:
    """A piece of source that several stages may share. ``needs``: names of the blocks it uses."""

    text: str
    needs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Stage:
    """One launch. ``body``: statements of the entry; ``blocks``: names of building blocks it uses.

    ``grid``, ``block``, ``cluster`` and ``shared`` are texts of launch expressions. ``threads``: for launch bounds.
    """

    entry: str
    body: str
    blocks: tuple[str, ...] = ()
    grid: tuple[str, str, str] = ("1", "1", "1")
    block: str = "1"
    threads: int = 0
    shared: str = "0"
    cluster: tuple[str, str, str] = ("1", "1", "1")
    dependent: bool = False
    when: str | None = None


def assemble(
    contract: Contract,
    target: Target,
    stages: Sequence[Stage],
    library: Mapping[str, Block],
    *,
    idea: Sequence[str],
    bound: str,
    workspace: str = "0",
) -> Candidate:
    """One candidate of these stages, launched in order. ``idea`` and ``bound`` go into the header comment."""
    used: dict[str, str] = {}
    for stage in stages:
        for name in stage.blocks:
            _collect(name, library, used)
    head = [f"// Contract: {contract.id}, {target.value}. Made from a template."]
    head += [f"// {'Idea:' if i == 0 else '     '} {text}" for i, text in enumerate(idea)]
    head.append(f"// Bound by: {bound}")
    parts = ["\n".join(head), *(t.strip("\n") for t in used.values())]
    parts += [_entry(contract, target, stage) for stage in stages]
    return Candidate(
        contract=contract.id,
        target=target,
        source="\n\n".join(parts) + "\n",
        plan=LaunchPlan(launches=tuple(_launch(s, target) for s in stages), workspace=Workspace(bytes=Expr(workspace))),
    )


def _collect(name: str, library: Mapping[str, Block], used: dict[str, str]) -> None:
    if name in used:
        return
    for other in library[name].needs:
        _collect(other, library, used)
    used[name] = library[name].text


def _entry(contract: Contract, target: Target, stage: Stage) -> str:
    declaration = signature(contract, target, stage.entry)
    if target is Target.CUDA and stage.threads:
        bounds = f"__launch_bounds__({stage.threads}) {stage.entry}("
        declaration = declaration.replace(f"{stage.entry}(", bounds, 1)
    return f"{declaration} {{\n{stage.body.rstrip()}\n}}"


def _launch(stage: Stage, target: Target) -> Launch:
    if target is Target.CPU:
        return Launch(entry=stage.entry, when=Expr(stage.when) if stage.when else None)
    x, y, z = (Expr(g) for g in stage.grid)
    a, b, c = (Expr(g) for g in stage.cluster)
    return Launch(
        entry=stage.entry,
        grid=(x, y, z),
        block=(Expr(stage.block), Expr("1"), Expr("1")),
        shared_bytes=Expr(stage.shared),
        cluster=(a, b, c),
        programmatic_dependent=stage.dependent,
        when=Expr(stage.when) if stage.when else None,
    )
