"""Which part of what a kernel was made from has changed since: its contract, or a principle of its prompt."""

from __future__ import annotations

from kb.digest import meaning_digest, meanings
from kb.library import Library
from kb.manifest import Manifest
from kb.principle import Status


def stale_reasons(manifest: Manifest, library: Library) -> tuple[str, ...]:
    """Why the kernel no longer stands for what ``library`` says; empty when it does.

    A reason is about meaning: an edited title, date or citation gives none (kb.digest).
    """
    reasons = []
    contract = library.contracts.get(manifest.contract)
    if contract is None:
        reasons.append(f"contract {manifest.contract} is not in the library")
    elif manifest.contract_digest not in meanings(contract):
        reasons.append(f"contract {contract.id}: {_since(manifest.contract_version, contract.version)}")
    for block in manifest.origin.principles:
        principle = library.principles.get(block.id)
        if principle is None:
            reasons.append(f"principle {block.id} is not in the library")
        elif principle.status is Status.SUPERSEDED:
            reasons.append(f"principle {block.id}: superseded by {principle.superseded_by}")
        elif principle.status is Status.RETIRED:
            reasons.append(f"principle {block.id}: retired")
        elif meaning_digest(principle) != block.digest:
            reasons.append(f"principle {block.id}: {_since(block.version, principle.version)}")
    return tuple(reasons)


def _since(then: int, now: int) -> str:
    return f"v{then} then, v{now} now" if then != now else f"changed, still called v{now}"
