"""A regeneration of the shipped model without compiler or network: replies and verdicts are made up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from generator.providers.protocol import Ask, Completion, Usage
from generator.regenerate.authors import Author
from generator.regenerate.patterns import patterns_of
from generator.regenerate.playing import Played, play
from generator.regenerate.standing import Known
from generator.regenerate.tasks import Setup, Task, tasks_of
from generator.search import Judge, Plan
from kb.candidate import Candidate
from kb.digest import meaning_digest
from kb.dtype import Target
from kb.library import library_root
from kb.manifest import GateName, GateResult, Outcome, Verdict
from kb.store import Entry, KernelStore
from runtime.device import cpu_device
from runtime.models.spec import read_spec
from tests.generator.scripted import LIBRARY, judge, reply_text
from tests.runtime.engine.admitted import manifest

MODEL = library_root() / "models/tiny-qwen3"
SPEC = read_spec(MODEL)
TWO = ("gated_mlp_up", "gated_mlp_down")


def setup(root: Path, **changes: Any) -> Setup:
    """A regeneration of the tiny model for cpu in ``root``."""
    made = Setup(
        model_dir=MODEL,
        spec=SPEC,
        library=LIBRARY,
        store=KernelStore(root / "kernels"),
        target=Target.CPU,
        device=cpu_device(),
        work=root / "work",
        provider="scripted",
    )
    return replace(made, **changes)


def tasks(made: Setup, names: tuple[str, ...] = TWO) -> list[Task]:
    """The wanted tasks for ``names``."""
    found = patterns_of(SPEC, made.library.contracts, made.buckets, SPEC.dtype, names)
    return [t for t in tasks_of(found, made) if t.pattern.wanted]


class ScriptedAuthor:
    """Answers round n of a pattern with ``ratios[pattern][n - 1]``; an exception there is raised. Counts."""

    name = "scripted"

    def __init__(self, contract: str, ratios: list[float | BaseException], asked: list[str]) -> None:
        self._contract, self._ratios, self._asked = contract, ratios, asked

    def ask(self, question: Ask, on_text: Callable[[str], None] | None = None) -> Completion:
        """The scripted reply."""
        script = self._ratios[int(question.key.split("-")[1]) - 1]
        if isinstance(script, BaseException):
            raise script
        self._asked.append(f"{self._contract} {question.key}")
        text = reply_text(f"{self._contract} {question.key}", script)
        return Completion(text=text, model="scripted-1", usage=Usage(input_tokens=100, output_tokens=50, cost_usd=0.01))


class ScriptedAuthors:
    """What playing asks for authors."""

    def __init__(self, ratios: Mapping[str, list[float | BaseException]], asked: list[str]) -> None:
        self._ratios, self._asked = ratios, asked

    def of(self, task: Task) -> Author:
        """The pattern's author."""
        assert task.search is not None
        name = task.pattern.contract.id
        return Author(ScriptedAuthor(name, self._ratios[name], self._asked), task.search)


def judge_of(plan: Plan) -> Judge:
    """The made-up judge, timing at the shapes the search tunes for."""

    def judge_candidate(candidate: Candidate, seed: int) -> Verdict:
        verdict = judge(candidate, seed)
        timings = tuple(
            t.model_copy(update={"dims": dict(dims)}) for t in verdict.timings for dims in plan.request.dims
        )
        return verdict.model_copy(update={"timings": timings, "judged_at": datetime.now(UTC)})

    return judge_candidate


def run(
    made: Setup,
    ratios: Mapping[str, list[float | BaseException]],
    asked: list[str],
    *,
    names: tuple[str, ...] = TWO,
    stored: Callable[[Known], bool] = lambda _: True,
    judged: list[str] | None = None,
    jobs: int = 1,
    planned: list[Task] | None = None,
) -> list[Played]:
    """Plan and play. ``stored``: whether the made-up judge accepts a stored kernel at new dims. ``planned``: tasks
    that were planned already, which is all that needs torch."""

    def judge_stored(known: Known, _on_event: object) -> Verdict:
        accepted = stored(known)
        if judged is not None:
            judged.append(known.digest)
        first = known.entry.manifest.verdicts[0]
        gate = GateResult(gate=GateName.PERFORMANCE, outcome=Outcome.PASSED if accepted else Outcome.FAILED)
        errors = (first.errors[0].model_copy(update={"dims": dict(known.need.at)}),)
        environment = first.environment.model_copy(update={"hardware": made.device.name})
        update = {"accepted": accepted, "gates": (gate,), "at": dict(known.need.at), "errors": errors}
        verdict = first.model_copy(update=update | {"environment": environment, "judged_at": datetime.now(UTC)})
        made.store.record(known.digest, verdict)
        return verdict

    authors: Any = ScriptedAuthors(ratios, asked)
    chosen = tasks(made, names) if planned is None else planned
    return play(chosen, made, authors, jobs=jobs, judge_stored=judge_stored, judge_of=judge_of)


def put(made: Setup, contract: str, number: int = 0, **changes: Any) -> Entry:
    """A kernel in the store that was accepted at the contract's first performance shape and nowhere else."""
    shape = LIBRARY.contracts[contract].sweep.performance[0]
    candidate = Candidate.model_validate(
        {
            "contract": contract,
            "target": "cpu",
            "source": f"// kernel {number}",
            "plan": {"launches": [{"entry": "k"}]},
        },
        strict=False,
    )
    made_manifest = manifest(candidate, shape, SPEC.dtype)
    origin = made_manifest.origin.model_copy(update={"authorship": "llm"} | changes.pop("origin", {}))
    update = {"contract_digest": meaning_digest(LIBRARY.contracts[contract]), "origin": origin}
    made.store.admit(candidate, made_manifest.model_copy(update=update | changes))
    return made.store.get(candidate.digest)
