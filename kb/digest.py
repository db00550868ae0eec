"""What an entry means, as one digest: equal digests say the same thing, whatever their wording's layout.

A manifest stores these digests, so a kernel is stale when, and only when, the meaning it was made from has changed.
Titles, dates, authors, links and a contract's explanatory texts are left out on purpose: correcting one of them must
not send a kernel back to the validator. So is evidence: a kernel that is cited as evidence for the principle it was
made from would make itself stale.
"""

from __future__ import annotations

import hashlib
import json
from itertools import combinations
from typing import Any

from kb.contract import Contract
from kb.principle import Principle

PRINCIPLE_MEANING = ("kind", "patterns", "when", "claim", "why", "effect", "retry_when")
PRINCIPLE_PROSE = ("claim", "why", "retry_when")
CONTRACT_EDITORIAL = ("id", "title", "family", "status", "version", "summary")
# Explanations inside a contract: they help a reader and bind nobody.
CONTRACT_NOTES = frozenset({"doc", "why"})
_BEFORE_WORDS = "(\"'`"
_AFTER_WORDS = ".,;:!?)\"'`"


def meaning(entry: Principle | Contract) -> dict[str, Any]:
    """The fields that decide what ``entry`` says, as JSON data: absent values dropped, layout of prose folded.

    Equal meanings under different ids give equal data, which is how a rename is recognised.
    """
    data = entry.model_dump(mode="json")
    if isinstance(entry, Principle):
        picked = {name: data[name] for name in PRINCIPLE_MEANING}
        # Sets by nature: their order in the file says nothing.
        picked["patterns"] = sorted(picked["patterns"])
        when = picked["when"]
        for name in ("target", "dtype", "features", "without"):
            when[name] = sorted(when[name])
        when["dims"] = sorted(str(condition) for condition in when["dims"])
        if when["arch"] is not None:
            when["arch"]["any_of"] = sorted(when["arch"]["any_of"])
        picked |= {name: folded(picked[name]) for name in PRINCIPLE_PROSE if picked[name] is not None}
        result: dict[str, Any] = _plain(picked, notes=frozenset())
        return result
    sweep = data.pop("sweep")
    # A list, because the order of runtime dims is the order of the kernel's arguments.
    data["dims"] = [{"name": name, **dim} for name, dim in data["dims"].items()]
    kept = {k: v for k, v in data.items() if k not in CONTRACT_EDITORIAL}
    plain: dict[str, Any] = _plain(kept, notes=CONTRACT_NOTES)
    return plain | {"sweep": sweep}


def meaning_digest(entry: Principle | Contract) -> str:
    """SHA-256 of ``meaning``, 64 hexadecimal digits. Equal on every machine and Python version."""
    text = json.dumps(meaning(entry), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def meanings(contract: Contract) -> frozenset[str]:
    """Digests of every contract a kernel may have been made for to stand for ``contract`` as well.

    Besides its own: those without some of what it lets a call read early. A kernel that was made before the permission
    was given does not use it and stays right; one that was made with it does not stand once it is taken back.
    """
    given = [t.name for t in contract.tensors if t.early is not None]
    found = set()
    for taken in (set(names) for size in range(len(given) + 1) for names in combinations(given, size)):
        tensors = tuple(t.model_copy(update={"early": None}) if t.name in taken else t for t in contract.tensors)
        found.add(meaning_digest(contract.model_copy(update={"tensors": tensors})))
    return frozenset(found)


def folded(prose: str) -> str:
    """``prose`` without what only a copy editor sees: case, line breaks and punctuation around words.

    Inside a word everything stays, so 1.5 and 15, or ``<=`` and ``<``, remain different.
    """
    words = (word.lstrip(_BEFORE_WORDS).rstrip(_AFTER_WORDS) for word in prose.casefold().split())
    return " ".join(word for word in words if word)


def _plain(value: Any, notes: frozenset[str]) -> Any:
    if isinstance(value, dict):
        return {k: _plain(v, notes) for k, v in value.items() if v is not None and k not in notes}
    if isinstance(value, list):
        return [_plain(v, notes) for v in value]
    return " ".join(value.split()) if isinstance(value, str) else value
