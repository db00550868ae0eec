"""Contract, principles and history to a prompt: deterministic to the byte, stable part first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from generator.prompt import Decision, Prompt, PromptManifest, count_tokens, digest_of
from generator.sections import contract_section, principle_section, tuned_section
from generator.selection import Choice, choose, relevance
from kb.condition import Situation
from kb.contract import Contract
from kb.digest import meaning_digest
from kb.dtype import DType, Target
from kb.features import MODEL_FEATURES, TARGET_FEATURES, block_shared_bytes, target_features
from kb.manifest import BlockRef
from kb.principle import Kind, Principle

DEFAULT_BUDGET = 24_000


class RenderError(Exception):
    """A prompt that cannot be made; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Request:
    """What a prompt is for. ``dims``: shapes to tune for; ``bandwidth_gbps``: measured read bandwidth, if known.

    ``also``: older architectures the same source must compile for. ``kinds``: the kinds of block that are told,
    generator.selection.Blocks has the usual sets; fewer than all are for finding out what the rest is worth.
    """

    target: Target
    arch: str | None = None
    dims: tuple[Mapping[str, int], ...] = ()
    dtype: DType | None = None
    features: frozenset[str] | None = None
    bandwidth_gbps: float | None = None
    budget: int = DEFAULT_BUDGET
    with_drafts: bool = False
    kinds: frozenset[Kind] = frozenset(Kind)
    also: tuple[str, ...] = ()


def render(contract: Contract, principles: Mapping[str, Principle], request: Request, history: str = "") -> Prompt:
    """The prompt for ``contract``. ``history`` is what generator.history made of earlier rounds.

    Raises RenderError when the contract has no accepted principle or the budget does not hold contract and mandates.
    """
    situations = _situations(request)
    choices = choose(contract, principles, situations, with_drafts=request.with_drafts, kinds=request.kinds)
    if not any(c.included for c in choices) and request.kinds:
        raise RenderError(
            f"contract {contract.id} has no accepted principle that applies to {request.target.value}; "
            "accept one, or render with drafts"
        )
    texts = {c.principle.id: principle_section(c.principle, certain=c.certain, reason=c.reason) for c in choices}
    mandates = [c for c in choices if c.included and c.principle.kind is Kind.MANDATE]
    head = _head(contract, request, [texts[c.principle.id] for c in mandates])
    tail = tuned_section(contract, request.dims, request.dtype) + "\n" + _template(f"reply.{request.target.value}.md")
    kept, decisions = _fit(choices, texts, request.budget - count_tokens(head + tail) - count_tokens(history), contract)
    prefix = head + _blocks("Decisions", Kind.DECISION, kept, texts) + _blocks("Dead ends", Kind.DEAD_END, kept, texts)
    prefix += tail
    blocks = [c.principle for c in (*mandates, *kept)]
    manifest = PromptManifest(
        contract=contract.id,
        contract_version=contract.version,
        contract_digest=meaning_digest(contract),
        target=request.target,
        arch=request.arch,
        dtype=request.dtype,
        dims=tuple(dict(d) for d in request.dims),
        blocks=tuple(
            BlockRef(id=p.id, version=p.version, digest=meaning_digest(p)) for p in sorted(blocks, key=lambda p: p.id)
        ),
        decisions=tuple(decisions),
        prefix_tokens=count_tokens(prefix),
        history_tokens=count_tokens(history),
        budget=request.budget,
        prompt_digest=digest_of(prefix + history),
    )
    return Prompt(prefix=prefix, history=history, manifest=manifest)


def _situations(request: Request) -> list[Situation]:
    known = request.features or frozenset()
    undecided = frozenset(MODEL_FEATURES) if request.features is None else frozenset()
    if request.arch is None:
        undecided |= frozenset(TARGET_FEATURES) - known
    else:
        known |= target_features(request.target, request.arch)
        if request.target is Target.CPU:
            # One architecture name covers machines with and without each vector extension.
            undecided |= frozenset(TARGET_FEATURES) - known
    return [
        Situation(request.target, request.arch, request.dtype, None, d, known, undecided) for d in request.dims or ({},)
    ]


def _head(contract: Contract, request: Request, mandates: Sequence[str]) -> str:
    role = _template(f"role.{request.target.value}.md").replace("{arch}", _machine(request))
    required = [
        "# Mandate\n",
        f"A kernel is accepted when it is at least {contract.performance_floor:g} times as fast as the strongest "
        "baseline at every shape it is timed at, measured interleaved, in one run, with cold caches.",
        *_floor_lines(contract, request),
        "",
        *mandates,
    ]
    role += "".join(_also(arch) for arch in request.also)
    return role + "\n" + contract_section(contract, request.target) + "\n" + "\n".join(required) + "\n"


def _also(arch: str) -> str:
    """What a source must look like to compile for ``arch`` as well."""
    shared = block_shared_bytes(int(arch.removeprefix("sm_")))
    return (
        f"\nThe same source and launch plan must also compile for {arch}, where speed is not judged. What is newer "
        "belongs between `#if __CUDA_ARCH__ >= 900` and a way without it: clusters, distributed shared memory, "
        "transaction barriers, bulk copies and warp-group products do not exist there. Only griddepcontrol needs no "
        "guard, it is left out. A launch can depend on it too, by `when: compute_capability >= 90` and the like; a "
        f"block there has at most {shared} bytes of shared memory.\n"
    )


def _machine(request: Request) -> str:
    if request.target is Target.CUDA:
        return f"NVIDIA GPUs of architecture {request.arch}" if request.arch else "NVIDIA GPUs, sm_80 and newer"
    return f"{request.arch} processors" if request.arch else "x86-64 and aarch64 processors"


def _floor_lines(contract: Contract, request: Request) -> list[str]:
    if request.bandwidth_gbps is None:
        return []
    shapes = request.dims or contract.sweep.performance
    storage = request.dtype or contract.dtypes.storage[0]
    lines = [f"The bandwidth floor at {request.bandwidth_gbps:g} GB/s, with T = {storage.value}:"]
    for dims in shapes:
        size = contract.bytes_moved(dims, storage)
        shape = ", ".join(f"{n}={dims[n]}" for n in contract.dims if n in dims)
        lines.append(f"- {size / request.bandwidth_gbps / 1e3:.2f} µs for {size} bytes at {shape}")
    return lines


def _fit(
    choices: Sequence[Choice], texts: Mapping[str, str], room: int, contract: Contract
) -> tuple[list[Choice], list[Decision]]:
    if room < 0:
        raise RenderError(
            f"the budget is {-room} tokens too small for the contract and mandates of {contract.id}; raise --budget"
        )
    wanted = sorted((c for c in choices if c.included and c.principle.kind is not Kind.MANDATE), key=relevance)
    kept: list[Choice] = []
    dropped: dict[str, str] = {}
    for rank, choice in enumerate(wanted, start=1):
        size = count_tokens(texts[choice.principle.id])
        if size <= room and not dropped:
            room -= size
            kept.append(choice)
        else:
            # Once one is dropped all behind it are: a shorter block must not jump ahead of a more relevant one.
            dropped[choice.principle.id] = f"dropped for the token budget, {rank} of {len(wanted)} by relevance"
    decisions = [
        Decision(
            id=c.principle.id,
            included=c.included and c.principle.id not in dropped,
            reason=dropped.get(c.principle.id, c.reason),
            tokens=count_tokens(texts[c.principle.id]),
        )
        for c in choices
    ]
    return kept, decisions


def _blocks(title: str, kind: Kind, kept: Sequence[Choice], texts: Mapping[str, str]) -> str:
    chosen = [texts[c.principle.id] for c in kept if c.principle.kind is kind]
    return f"\n# {title}\n\n" + "\n".join(chosen) + "\n" if chosen else ""


@cache
def _template(name: str) -> str:
    return (Path(__file__).parent / "templates" / name).read_text(encoding="utf-8")
