"""Entry pages of the sections: contracts, kernels, records."""

from __future__ import annotations

from kb.contract import Contract
from kb.dtype import Target
from kb.site import text, words
from kb.site.content import Content
from kb.site.places import contract_page, kernel_page, link, record_page
from kb.site.plots import Bar, Group, bars
from kb.site.ranking import legend, ranking
from kb.store import Entry

CONTRACTS, KERNELS, RECORDS = "contracts/index.md", "kernels/index.md", "records/index.md"


def contracts_index(content: Content) -> str:
    """All contracts, with how many principles and kernels each has."""
    parts = [
        "A contract fixes everything about a fused pattern that is the same whoever writes its kernel: tensors, "
        "dtypes, rounding points, numerics, the shapes that are tried, and the speed that must be reached."
    ]
    by_family: dict[str, list[Contract]] = {}
    for contract in content.library.contracts.values():
        by_family.setdefault(contract.family, []).append(contract)
    for family, contracts in sorted(by_family.items()):
        rows = [
            (
                link(CONTRACTS, c.title, contract_page(c.id)),
                text.code(c.id),
                str(len(content.speaking_to(c.id))),
                *(_fastest(content, c, target) for target in Target),
            )
            for c in sorted(contracts, key=lambda c: c.id)
        ]
        parts += [
            f"## {text.inline(words.family_name(family))}",
            text.table(("contract", "id", "principles", *(f"fastest on {t.value}" for t in Target)), rows),
        ]
    return text.page("Contracts", parts)


def kernels_index(content: Content) -> str:
    """The whole store, ranked a contract and target."""
    parts = [_fastest_chart(content), legend()] if content.kernels else []
    for contract in sorted({k.manifest.contract for k in content.kernels}):
        parts.append(f"## {text.inline(contract)}")
        parts += ranking(content, KERNELS, content.kernels_of(contract))
    if not parts:
        parts.append(
            "The store holds no kernel yet. A kernel appears here when it has passed every gate and reached the floor "
            "against the strongest baseline; [how the gates work](../guide/gates.md)."
        )
    if content.damaged:
        parts += ["## Damaged entries", "These are reported, skipped and never loaded."]
        parts.append(text.bullets(text.inline(line) for line in content.damaged))
    return text.page("Kernels", parts)


def records_index(content: Content) -> str:
    """All benchmark records."""
    items = [link(RECORDS, record.title, record_page(record.name)) for record in content.records]
    intro = "Measurements with their hardware, software and method. Principles cite them as evidence."
    return text.page("Benchmark records", [intro, text.bullets(items) if items else "None yet."])


def _fastest_chart(content: Content) -> str:
    """The fastest admitted kernel of each contract and target against its strongest baseline."""
    groups = []
    for target in Target:
        for contract in sorted(content.library.contracts):
            best = _best(content, contract, target)
            if best is not None and best.ratio:
                groups.append(Group(f"{contract} on {target.value}", (Bar(best.ratio, f"{best.ratio:.2f}×"),)))
    if not groups:
        return ""
    title = (
        "Fastest admitted kernel of each contract against its strongest baseline (dashed: equal), mean over its shapes"
    )
    return bars(title, groups, reference=1.0)


def _best(content: Content, contract: str, target: Target) -> Entry | None:
    admitted = [k for k in content.kernels_of(contract, target) if k.manifest.status == "admitted"]
    return max(admitted, key=lambda k: (k.ratio, k.digest), default=None)


def _fastest(content: Content, contract: Contract, target: Target) -> str:
    if target not in contract.baselines:
        return "not offered"
    best = _best(content, contract.id, target)
    if best is None:
        return ""
    return link(CONTRACTS, f"{best.ratio:.2f}×", kernel_page(best.manifest))
