"""The judge of a search: the validator on this machine, timing at the shapes the search tunes for."""

from __future__ import annotations

from collections.abc import Callable

from generator.journal import Event
from generator.search import Plan
from kb.candidate import Candidate
from kb.dtype import DType
from kb.manifest import Verdict
from runtime.compile_cache import default_root
from validator.gates import Event as GateEvent
from validator.gates import Options
from validator.judge import judge


def judge_here(
    plan: Plan, candidate: Candidate, seed: int, *, on_event: Callable[[Event], None] = lambda _: None
) -> Verdict:
    """All gates on this machine. Correctness covers the contract's sweep and hidden shapes whatever is tuned for.

    The storage type that is timed is the search's; it is tried first and the contract's others after it. Searches of
    several processes share the device by turns, so that they check side by side and measure one at a time.
    """

    def tell(event: GateEvent) -> None:
        if event.result is not None:
            result = {"event": "gate", "gate": event.gate.value, "outcome": event.result.outcome.value}
            on_event({**result, "key": candidate.digest[:12]})

    return judge(
        candidate,
        plan.contract,
        options=Options(
            timed=plan.request.dims, storages=_storages(plan), turns=default_root() / "turns", also=plan.request.also
        ),
        seed=seed,
        on_event=tell,
    )


def _storages(plan: Plan) -> tuple[DType, ...] | None:
    first = plan.request.dtype
    if first is None:
        return None
    return (first, *(d for d in plan.contract.dtypes.storage if d is not first))
