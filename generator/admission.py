"""From an accepted attempt to an entry of the kernel store."""

from __future__ import annotations

from generator.history import Attempt
from generator.journal import Event
from kb.contract import Contract
from kb.digest import meaning_digest
from kb.manifest import BlockRef, Manifest, Origin
from kb.store import Admission, KernelStore


def admit(store: KernelStore, contract: Contract, attempt: Attempt, transcript: list[Event]) -> Admission:
    """Store an accepted attempt with the transcript that led to it.

    Everything in the manifest comes from the transcript and the verdict, so that admitting again after a kill writes
    the same entry. Raises kb.store.StoreError, OSError.
    """
    assert attempt.candidate is not None  # only attempts with a verdict are admitted
    assert attempt.verdict is not None
    opening = next(e for e in transcript if e["event"] == "search")
    prompt = [e for e in transcript if e["event"] == "prompt"][-1]
    reply = [e for e in transcript if e["event"] == "reply"][-1]
    manifest = Manifest(
        digest=attempt.candidate.digest,
        contract=contract.id,
        contract_version=contract.version,
        contract_digest=meaning_digest(contract),
        target=attempt.candidate.target,
        plan=attempt.candidate.plan,
        notes=attempt.candidate.notes,
        status="admitted",
        origin=Origin(
            authorship="llm",
            provider=opening["provider"],
            model=reply["completion"]["model"],
            prompt_digest=prompt["prompt_digest"],
            principles=tuple(BlockRef.model_validate(b) for b in prompt["manifest"]["blocks"]),
            rounds=attempt.round,
            seeded_from=opening["seed"],
        ),
        verdicts=(attempt.verdict,),
        admitted_at=attempt.verdict.judged_at,
    )
    return store.admit(attempt.candidate, manifest, transcript)
