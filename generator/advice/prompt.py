"""The question: the regions, their plans, and the form of the answer. The same for the same plans."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from generator.compile.survey import Kind
from generator.providers.protocol import Ask
from generator.regions import describe

KEY = "advice"
_SHOWN = 12

ROLE = """You are asked for advice on compiling a captured PyTorch module. A compiler has cut its graph into regions and
enumerated, for each kind of region, the kernel plans that are legal on the device. It will compile a few plans of each
kind, check them and time them against the framework. You may

- give a kind of region a short label,
- say which plans to try first (`order`: keys of plans, as they are written below),
- hint at parameters (`parameters`: names and numbers; plans that have all of them are tried first).

Nothing outside the enumerated plans is possible; whatever is not in them is ignored. Leave out what you are not sure
of.

Answer with one JSON object and nothing else:

{"regions": {"REGION": {"label": "...", "order": ["PLAN", ...], "parameters": {"NAME": NUMBER}}}}
"""


def question(kinds: Sequence[Kind], key: str = KEY) -> Ask:
    """The question about ``kinds``, those without plans left out."""
    parts = [_about(kind) for kind in kinds if kind.plans is not None and not kind.reason]
    prefix, history = ROLE, "\n" + "\n".join(parts)
    digest = hashlib.sha256((prefix + history).encode()).hexdigest()
    return Ask(key=key, prefix=prefix, history=history, prompt_digest=digest)


def _about(kind: Kind) -> str:
    assert kind.plans is not None
    assert kind.contract is not None
    shown = kind.plans.legal[:_SHOWN]
    lines = [
        f"## {kind.id}",
        "",
        f"{len(kind.members)} in the module; {kind.members[0].category.value}: {kind.members[0].label}",
        "",
        *(f"    {line}" for line in describe(kind.contract.program).splitlines()),
        "",
        "Tensors: "
        + ", ".join(
            f"{t.name} [{', '.join(e.text for e in t.shape)}] {t.dtype.bind(kind.contract.storage).value}"
            for t in kind.contract.contract.tensors
        ),
        "",
        f"Plans ({len(shown)} of {len(kind.plans.legal)}, in the cost model's order):",
        "",
        *(
            f"- `{p.key}`: {p.cost.microseconds:g} us estimated, {p.cost.bytes} bytes, occupancy {p.cost.occupancy:.2f}"
            for p in shown
        ),
        "",
    ]
    return "\n".join(lines)


__all__ = ["KEY", "question"]
