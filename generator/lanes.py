"""When a lane of a search is given up, and the dead end that is drafted from it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date
from typing import Any

from generator.history import Attempt
from kb.contract import Contract
from kb.principle import Principle

MIN_TIMED = 3
MIN_GAIN = 1.02


def unprofitable(attempts: Sequence[Attempt], floor: float) -> str | None:
    """Why the lane should stop, or None.

    It stops when at least three of its candidates were right and timed, none reached ``floor``, and the last two
    gained less than 2 % on what came before: the gap does not close.
    """
    ratios = [a.ratio for a in attempts if a.ratio > 0]
    if len(ratios) < MIN_TIMED or max(ratios) >= floor:
        return None
    before, recent = max(ratios[:-2]), max(ratios[-2:])
    if recent >= before * MIN_GAIN:
        return None
    return f"{len(ratios)} right candidates, best {max(ratios):.3f} of the baseline, the last two gained under 2 %"


def draft_dead_end(
    contract: Contract, attempts: Sequence[Attempt], *, reason: str, record: str, today: date
) -> dict[str, Any]:
    """A draft principle in the form of its YAML file, for a person to complete, accept or discard."""
    best = max((a for a in attempts if a.verdict and a.candidate), key=lambda a: a.ratio)
    assert best.verdict is not None  # chosen for it
    assert best.candidate is not None
    slug = f"{contract.id.replace('_', '-')}-{best.candidate.digest[:8]}"
    worst = min(best.verdict.timings, key=lambda t: t.ratio)
    environment = best.verdict.environment
    dims = ", ".join(f"{k} {v}" for k, v in worst.dims.items())
    data = {
        "id": f"{contract.family}/{slug}",
        "title": f"Draft: an approach to {contract.id} that did not reach its baseline",
        "kind": "dead_end",
        "status": "draft",
        "version": 1,
        "patterns": [contract.id],
        "when": {"target": [best.verdict.target.value], "dtype": [worst.dtype.value]},
        "claim": f"Do not expect this approach to reach the library path. Its author describes it so: "
        f"{_prose(best.candidate.notes)}",
        "why": f"Not yet understood. The search stopped because: {reason}.",
        "effect": {"low": round(best.ratio, 3), "high": round(best.ratio, 3), "of": "the kernel's time"},
        "evidence": [
            {
                "kind": "measured",
                "what": f"Slowest timed shape ({dims}) of the best of {len(attempts)} rounds.",
                "hardware": environment.hardware,
                "software": environment.compiler,
                "measured_on": best.verdict.judged_at.date().isoformat(),
                "baseline": worst.baseline,
                "value": {"number": round(worst.candidate_us, 3), "unit": "µs"},
                "baseline_value": {"number": round(worst.baseline_us, 3), "unit": "µs"},
                "record": record,
            }
        ],
        "retry_when": "Someone finds what limits it, or the hardware changes.",
        "authors": ["drafted by a search"],
        "created": today.isoformat(),
        "modified": today.isoformat(),
    }
    Principle.model_validate(data)
    return data


def _prose(notes: str) -> str:
    """Notes with everything that looks like code taken out: a principle carries none."""
    text = re.sub(r"```.*?```|`[^`]*`", " ", notes, flags=re.DOTALL)
    sentences = [s for s in re.split(r"(?<=[.!?])\s+", " ".join(text.split())) if not re.search(r"[;{}=<>]|\w\(", s)]
    return " ".join(sentences)[:1200].strip() or "no description was left after code was removed."
