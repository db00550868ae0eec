"""Taking advice: whatever is in the plan space reorders it, whatever is not is counted and left alone."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from generator.advice.prompt import KEY, question
from generator.compile.survey import Kind
from generator.plan import Plan
from generator.providers.protocol import Provider, ProviderError

_FENCED = re.compile(r"```(?:json)?[ \t]*\n(.*?)\n```", re.DOTALL)
_LABEL = re.compile(r"[^\x00-\x1f\x7f]{1,80}")
MAX_REPLY_BYTES = 200_000


@dataclass(frozen=True, slots=True)
class Advice:
    """``labels`` and ``first`` (plan keys) by kind of region; ``ignored``: what was said outside the plan space."""

    labels: Mapping[str, str]
    first: Mapping[str, tuple[str, ...]]
    ignored: tuple[str, ...] = ()
    provider: str = ""
    model: str = ""
    problem: str = ""

    def apply(self, kinds: Sequence[Kind]) -> tuple[Kind, ...]:
        """The kinds with labels and plans in the advised order; as many plans as before."""
        return tuple(self._applied(kind) for kind in kinds)

    def _applied(self, kind: Kind) -> Kind:
        plans = kind.plans
        if plans is not None and kind.id in self.first:
            plans = plans.reordered(self.first[kind.id])
        return replace(kind, plans=plans, named=self.labels.get(kind.id, kind.named))


NO_ADVICE = Advice({}, {})


def take_advice(provider: Provider, kinds: Sequence[Kind], *, key: str = KEY) -> Advice:
    """Ask once, under ``key``. A provider that cannot answer gives no advice and the problem; all else is the same."""
    asked = question(kinds, key)
    try:
        reply = provider.ask(asked)
    except ProviderError as error:
        return replace(NO_ADVICE, provider=provider.name, problem=str(error))
    if reply.stop != "end":
        return replace(NO_ADVICE, provider=provider.name, model=reply.model, problem=f"the reply was {reply.stop}")
    return replace(parse_advice(reply.text, kinds), provider=provider.name, model=reply.model)


def parse_advice(text: str, kinds: Sequence[Kind]) -> Advice:
    """Advice in a reply. Never raises: what is not understood is ignored and counted."""
    data, problem = _json(text)
    if problem:
        return replace(NO_ADVICE, problem=problem)
    known = {kind.id: kind for kind in kinds if kind.plans is not None and not kind.reason}
    ignored: list[str] = [f"'{_short(key)}' is no part of an answer" for key in data if key != "regions"]
    regions = data.get("regions", {})
    if not isinstance(regions, dict):
        return replace(NO_ADVICE, ignored=(*ignored, "'regions' is no object"))
    labels: dict[str, str] = {}
    first: dict[str, tuple[str, ...]] = {}
    for name, said in regions.items():
        kind = known.get(name)
        if kind is None or not isinstance(said, dict):
            ignored.append(f"{_short(name)}: no such region" if kind is None else f"{name}: no object")
            continue
        ignored += [f"{name}: '{_short(key)}' is not asked for" for key in said if key not in _ASKED]
        label = said.get("label")
        if isinstance(label, str) and _LABEL.fullmatch(label):
            labels[name] = label
        elif label is not None:
            ignored.append(f"{name}: a label of 1 to 80 printable characters is needed")
        keys = [*_ordered(kind, said.get("order"), ignored), *_hinted(kind, said.get("parameters"), ignored)]
        if keys:
            first[name] = tuple(dict.fromkeys(keys))
    return Advice(labels, first, tuple(ignored))


_ASKED = ("label", "order", "parameters")


def _json(text: str) -> tuple[dict[str, Any], str]:
    if len(text.encode()) > MAX_REPLY_BYTES:
        return {}, f"the reply is over {MAX_REPLY_BYTES} bytes"
    fenced = _FENCED.search(text)
    body = fenced[1] if fenced else text[text.find("{") : text.rfind("}") + 1]
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        return {}, "the reply holds no JSON object"
    return (data, "") if isinstance(data, dict) else ({}, "the reply holds no JSON object")


def _ordered(kind: Kind, order: object, ignored: list[str]) -> list[str]:
    if order is None:
        return []
    if not isinstance(order, list):
        ignored.append(f"{kind.id}: 'order' is no list")
        return []
    assert kind.plans is not None
    known = {plan.key for plan in kind.plans.legal}
    ignored += [f"{kind.id}: no plan '{_short(key)}'" for key in order if not (isinstance(key, str) and key in known)]
    return [key for key in order if isinstance(key, str) and key in known]


def _hinted(kind: Kind, hints: object, ignored: list[str]) -> list[str]:
    """Plans that have every hinted value some plan has; a value that no plan has is ignored."""
    if hints is None:
        return []
    if not isinstance(hints, dict):
        ignored.append(f"{kind.id}: 'parameters' is no object")
        return []
    assert kind.plans is not None
    wanted: dict[str, object] = {}
    for name, number in hints.items():
        if any(_setting(plan, name) == number and type(number) in (int, bool) for plan in kind.plans.legal):
            wanted[name] = number
        else:
            ignored.append(f"{kind.id}: no plan has {_short(name)} = {_short(number)}")
    if not wanted:
        return []
    return [p.key for p in kind.plans.legal if all(_setting(p, name) == number for name, number in wanted.items())]


def _setting(plan: Plan, name: str) -> object:
    return getattr(plan.parameters, name) if name in {f.name for f in fields(plan.parameters)} else None


def _short(value: object) -> str:
    text = re.sub(r"[\x00-\x1f\x7f]", " ", str(value))
    return text if len(text) <= 60 else f"{text[:57]}..."


__all__ = ["NO_ADVICE", "Advice", "parse_advice", "take_advice"]
