"""Template kernels into the kernel store: judged like any other, marked as made from a template."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from generator.kernel_templates.contracts import TemplateCandidate, template_candidates
from kb.candidate import Candidate
from kb.contract import Contract
from kb.digest import meaning_digest
from kb.dtype import Target
from kb.manifest import Manifest, Origin, Verdict
from kb.store import KernelStore

PROVIDER = "template"


@dataclass(frozen=True, slots=True)
class Tried:
    """One candidate with its verdict; ``admitted``: whether the store holds it now."""

    template: TemplateCandidate
    verdict: Verdict
    admitted: bool


def admit_templates(
    contract: Contract,
    target: Target,
    arch: str,
    store: KernelStore,
    judge: Callable[[Candidate], Verdict],
    *,
    most: int | None = None,
) -> Iterator[Tried]:
    """Judge the candidates of ``contract`` one after the other, and admit each that is accepted.

    ``judge`` runs every gate; ``most``: how many candidates to try. Raises kb.store.StoreError, OSError.
    """
    for template in template_candidates(contract, target, arch)[:most]:
        verdict = judge(template.candidate)
        if verdict.accepted:
            store.admit(template.candidate, manifest_of(contract, template, verdict))
        yield Tried(template, verdict, verdict.accepted)


def manifest_of(contract: Contract, template: TemplateCandidate, verdict: Verdict) -> Manifest:
    """The manifest of an accepted template kernel. Its model is the template's family, its notes the parameters."""
    return Manifest(
        digest=template.candidate.digest,
        contract=contract.id,
        contract_version=contract.version,
        contract_digest=meaning_digest(contract),
        target=template.candidate.target,
        plan=template.candidate.plan,
        notes=template.description,
        status="admitted",
        origin=Origin(authorship="template", provider=PROVIDER, model=template.family),
        verdicts=(verdict,),
        admitted_at=verdict.judged_at,
    )
