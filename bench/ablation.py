"""What is each part of the knowledge base worth? The same contracts, asked with less and with more of it.

    python -m bench.ablation play gated_mlp_down rope --target cpu --runs 2 --folder ablation
    python -m bench.ablation gather --folder ablation --out bench/results/ablation-cpu.md

Three arms: prompts with no principles, with decisions, with decisions and dead ends; mandates are in all, since they
say what is required. Each arm and run is a search of its own, with its own journal and its own exchange folder;
``play`` publishes the next prompts, judges the replies that are there, and says where replies are missing. Run it again
after answering. An exchange folder's name does not say which arm it is, so authors can be given folders alone.
Searches use all their rounds, so that best ratios compare; candidates are judged one after the other, on this machine.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from generator.cli.arguments import parse_dims, resolve_contract
from generator.limits import spent_in
from generator.providers.protocol import PendingError
from generator.render import Request
from generator.run import SearchFailedError, run_search
from generator.search import Plan
from generator.selection import Blocks
from kb.candidate import Candidate
from kb.cli.failure import Failure
from kb.contract import Contract
from kb.dtype import DType, Target
from kb.library import Library, library_root, load_library
from kb.manifest import GateName, Verdict
from kb.store import KernelStore

ARMS = {Blocks.NONE: "no principles", Blocks.DECISIONS: "decisions", Blocks.ALL: "decisions and dead ends"}


@dataclass(frozen=True, slots=True)
class Search:
    """One arm of one run. ``name`` is its folder among the searches."""

    contract: str
    target: Target
    run: int
    blocks: Blocks

    @property
    def name(self) -> str:
        return f"{self.contract}-{self.target.value}/run-{self.run}-{self.blocks.value}"

    def work(self, folder: Path) -> Path:
        """Journal and drafts."""
        return folder / "searches" / self.name

    def exchange(self, folder: Path) -> Path:
        """Where its author finds questions; named so that the arm does not show."""
        return folder / "authors" / f"{self.contract}-{hashlib.sha256(self.name.encode()).hexdigest()[:8]}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one search came to. Rounds are None where it never happened; ``best``: worst timed shape's
    T_baseline / T_candidate of the best right candidate, 0 without one."""

    contract: str
    target: str
    run: int
    arm: str
    authors: tuple[str, ...]
    prompt_tokens: int
    blocks: int
    rounds: int
    first_right: int | None
    first_accepted: int | None
    best: float
    failures: Mapping[str, int]
    tokens: int
    ended: str
    hardware: str
    software: str


def searches(contracts: Sequence[str], target: Target, runs: int) -> list[Search]:
    """Every arm of every run: run by run, so that an experiment that stops early is still balanced."""
    return [Search(c, target, run, blocks) for run in range(1, runs + 1) for c in contracts for blocks in ARMS]


def play(
    chosen: Sequence[Search], library: Library, request: Request, dims: Sequence[str], folder: Path, args: Any
) -> list[str]:
    """Take every search as far as its replies go; one line for each that waits or cannot go on."""
    waiting = []
    for search in chosen:
        contract = resolve_contract(library, search.contract)
        plan = plan_of(search, contract, library, request, dims, args.rounds)
        try:
            run_search(
                plan,
                provider=f"exchange:{search.exchange(folder)}",
                work=search.work(folder),
                store=KernelStore(folder / "kernels"),
                judge=None if can_judge(search.target) else _elsewhere,
                quiet=args.quiet,
            )
        except SearchFailedError as error:  # one author's unreadable reply keeps no other search from going on
            waiting.append(f"{search.contract}: {error}")
    return waiting


def plan_of(
    search: Search, contract: Contract, library: Library, request: Request, dims: Sequence[str], rounds: int | None
) -> Plan:
    """The search's plan: the arm's blocks, all rounds."""
    told = Request(
        target=request.target,
        arch=request.arch,
        dims=tuple(parse_dims(d, contract) for d in dims if _speaks_of(d, contract)),
        dtype=request.dtype,
        bandwidth_gbps=request.bandwidth_gbps,
        kinds=search.blocks.kinds,
    )
    return Plan(contract, library.principles, told, rounds or contract.rounds, improve=True)


def _speaks_of(dims: str, contract: Contract) -> bool:
    """Whether a shape is one of this contract's: several contracts share a command."""
    return {part.partition("=")[0].strip() for part in dims.split(",")} <= set(contract.dims)


def can_judge(target: Target) -> bool:
    """Whether candidates can run on this machine."""
    from runtime.device import has_cuda

    return target is Target.CPU or has_cuda()


def _elsewhere(candidate: Candidate, seed: int) -> Verdict:  # noqa: ARG001
    raise PendingError("a reply is there; play again on a machine with an NVIDIA GPU, which judges it")


def outcomes(folder: Path) -> list[Outcome]:
    """All searches under ``folder`` that have begun, in a stable order."""
    paths = sorted((folder / "searches").glob("*/*/journal.jsonl"))
    found = [outcome_of(path.parent.name, _events(path)) for path in paths]
    order = [blocks.value for blocks in ARMS]
    return sorted(found, key=lambda o: (o.contract, o.target, order.index(o.arm), o.run))


def outcome_of(name: str, events: Sequence[Mapping[str, Any]]) -> Outcome:
    """One journal's outcome. ``name``: its folder, which says run and arm."""
    _, run, arm = name.split("-", 2)
    opening = next(e for e in events if e["event"] == "search")
    prefix = next(e for e in events if e["event"] == "prefix")
    attempts = [e for e in events if e["event"] == "attempt"]
    verdicts = {e["round"]: Verdict.model_validate(e["verdict"]) for e in attempts if e["verdict"]}
    right = [r for r, v in verdicts.items() if is_right(v)]
    accepted = [r for r, v in verdicts.items() if v.accepted]
    failures = Counter("unusable reply" for e in attempts if not e["verdict"])
    failures.update(v.failed_gate.gate.value for v in verdicts.values() if v.failed_gate)
    ended = next((e["reason"] for e in reversed(events) if e["event"] == "ended"), "not ended")
    places = [v.environment for v in verdicts.values()]
    return Outcome(
        contract=opening["contract"],
        target=opening["target"],
        run=int(run),
        arm=arm,
        authors=tuple(sorted({e["completion"]["model"] for e in events if e["event"] == "reply"})),
        prompt_tokens=prefix["manifest"]["prefix_tokens"],
        blocks=len(prefix["manifest"]["blocks"]),
        rounds=len(attempts),
        first_right=min(right, default=None),
        first_accepted=min(accepted, default=None),
        best=max((min(t.ratio for t in verdicts[r].timings) for r in right), default=0.0),
        failures=dict(failures),
        tokens=spent_in(events).tokens,
        ended=ended,
        hardware=places[-1].hardware if places else "",
        software=places[-1].compiler if places else "",
    )


def is_right(verdict: Verdict) -> bool:
    """Whether the candidate passed everything before the clock, and was timed."""
    failed = verdict.failed_gate
    return bool(verdict.timings) and (failed is None or failed.gate is GateName.PERFORMANCE)


def _events(path: Path) -> list[dict[str, Any]]:
    """Whole events; a torn last line is what a kill leaves."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def record(found: Sequence[Outcome], title: str) -> str:
    """The Markdown record: arms side by side, then every search."""
    places = sorted({f"{o.hardware}; {o.software}" for o in found if o.hardware})
    authors = sorted({a for o in found for a in o.authors})
    lines = [
        f"# {title}",
        "",
        "The same contracts, generated from prompts with no principles, with decisions, and with decisions and dead",
        "ends. Mandates are in all prompts. Authors saw prompts and diagnostics alone. *Right*: every gate before the",
        "clock passed. *Accepted*: the performance gate too. *Best*: the slowest timed shape of the best right",
        "candidate, as a share of the strongest baseline. A search that never got there shows - and is left out of",
        "medians.",
        "",
        f"- Machine: {' · '.join(places) or 'none judged yet'}",
        f"- Authors: {', '.join(authors) or 'none yet'}",
        "",
        "## Arms",
        "",
        "| contract | target | told | searches | prompt tokens | first right | first accepted | best | median best | "
        "failures by gate |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    groups: dict[tuple[str, str, str], list[Outcome]] = {}
    for outcome in found:
        groups.setdefault((outcome.contract, outcome.target, outcome.arm), []).append(outcome)
    lines += [_arm_row(key, group) for key, group in groups.items()]
    lines += [
        "",
        "## Searches",
        "",
        "| contract | target | told | run | author | blocks | rounds | first right | first accepted | best | "
        "failures by gate | ended |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for o in found:
        cells = (o.contract, o.target, ARMS[Blocks(o.arm)], o.run, ", ".join(o.authors), o.blocks, o.rounds)
        results = (_round(o.first_right), _round(o.first_accepted), _ratio(o.best), _failures(o.failures), o.ended)
        lines.append("| " + " | ".join(str(c) for c in (*cells, *results)) + " |")
    least = min((len(g) for g in groups.values()), default=0)
    lines += [
        "",
        f"With {least} {'search' if least == 1 else 'searches'} an arm at the least, differences between arms are "
        "anecdotes unless they are large and all point one way.",
    ]
    return "\n".join(lines) + "\n"


def _arm_row(key: tuple[str, str, str], group: Sequence[Outcome]) -> str:
    contract, target, arm = key
    bests = [o.best for o in group if o.best > 0]
    failures: Counter[str] = Counter()
    for outcome in group:
        failures.update(outcome.failures)
    cells = (
        contract,
        target,
        ARMS[Blocks(arm)],
        len(group),
        group[0].prompt_tokens,
        ", ".join(_round(o.first_right) for o in group),
        ", ".join(_round(o.first_accepted) for o in group),
        ", ".join(_ratio(o.best) for o in group),
        _ratio(statistics.median(bests)) if bests else "-",
        _failures(failures),
    )
    return "| " + " | ".join(str(c) for c in cells) + " |"


def _round(number: int | None) -> str:
    return "-" if number is None else str(number)


def _ratio(value: float) -> str:
    return f"{value:.3f}" if value else "-"


def _failures(failures: Mapping[str, int]) -> str:
    return ", ".join(f"{gate} {count}" for gate, count in sorted(failures.items())) or "none"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    commands = parser.add_subparsers(dest="command", required=True)
    playing = commands.add_parser("play", help="publish prompts and judge the replies that are there")
    playing.add_argument("contracts", nargs="+")
    playing.add_argument("--target", type=Target, default=Target.CPU, choices=list(Target))
    playing.add_argument("--arch")
    playing.add_argument("--dims", action="append", default=[], help="a shape to tune for, name=value,…; repeatable")
    playing.add_argument("--dtype", type=DType, default=DType.BFLOAT16)
    playing.add_argument("--bandwidth", type=float, help="read bandwidth in GB/s")
    playing.add_argument("--runs", type=int, default=2)
    playing.add_argument("--rounds", type=int, help="rounds of each search; default: the contract's N")
    playing.add_argument("--quiet", action="store_true")
    gathering = commands.add_parser("gather", help="write the record of what was played")
    gathering.add_argument("--out", type=Path, help="file; default: standard output")
    gathering.add_argument("--title", default="Ablation of the principles in a prompt")
    gathering.add_argument("--json", action="store_true", help="the outcomes as JSON instead")
    for command in (playing, gathering):
        command.add_argument("--folder", type=Path, default=Path("ablation"))
        command.add_argument("--library", type=Path)
    return parser.parse_args()


def main() -> int:
    """0 when everything is played or written, 1 while replies are missing, 2 on bad input."""
    args = _arguments()
    try:
        if args.command == "play":
            library = load_library(library_root(args.library))
            request = Request(args.target, args.arch, dtype=args.dtype, bandwidth_gbps=args.bandwidth)
            chosen = searches(args.contracts, args.target, args.runs)
            waiting = play(chosen, library, request, args.dims, args.folder, args)
            print("\n".join(waiting) or "every search has ended; gather writes the record")
            return 1 if waiting else 0
        found = outcomes(args.folder)
    except Failure as error:
        print(f"ablation: {error}", file=sys.stderr)
        return 2
    if not found:
        print(f"ablation: {args.folder}: no searches there; play some first", file=sys.stderr)
        return 2
    text = json.dumps([asdict(o) for o in found], indent=2) + "\n" if args.json else record(found, args.title)
    if args.out is None:
        print(text, end="")
    else:
        args.out.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
