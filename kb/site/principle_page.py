"""The page of one principle: the claim first, then why, when, how it is known, and who depends on it."""

from __future__ import annotations

from collections.abc import Iterator

from kb.condition import Situation, applies, describe
from kb.dtype import Target
from kb.principle import Evidence, Kind, Principle, Status
from kb.site import text, words
from kb.site.content import Content
from kb.site.history_table import history_table
from kb.site.places import (
    contract_page,
    family_page,
    kernel_label,
    kernel_page,
    link,
    link_html,
    principle_page,
    record_page,
)

_CLAIM_LABELS = {Kind.DECISION: "Do", Kind.DEAD_END: "Do not, it was tried", Kind.MANDATE: "Must hold"}
_INVERSE = {
    "refines": "is refined by",
    "contradicts": "is contradicted by",
    "requires": "is required by",
    "alternative": "is an alternative to",
    "supersedes": "is superseded by",
}
_OUTGOING = {
    "refines": "refines",
    "contradicts": "contradicts",
    "requires": "requires",
    "alternative": "is an alternative to",
}


def page(content: Content, principle: Principle) -> str:
    """The page in Markdown."""
    description = f"{words.KINDS[principle.kind]}: {principle.claim}"
    return text.page(principle.title, _parts(content, principle), description=description[:300], hide=["navigation"])


def _parts(content: Content, p: Principle) -> Iterator[str]:
    here = principle_page(p.id)
    yield _badges(here, p)
    if p.status in (Status.SUPERSEDED, Status.RETIRED, Status.DRAFT):
        yield _standing(content, here, p)
    css = p.kind.value.replace("_", "-")
    yield (
        f'<div class="ac-claim ac-{css}"><p class="ac-claim-label">{_CLAIM_LABELS[p.kind]}</p>'
        f"{_html_paragraphs(p.claim)}</div>"
    )
    yield "## Why"
    yield text.paragraphs(p.why)
    yield "## When it holds"
    conditions = describe(p.when)
    yield text.bullets(text.inline(c) for c in conditions) if conditions else "Always."
    yield "## Expected effect"
    yield text.inline(words.effect(p.effect))
    if p.retry_when:
        yield "## What would make it worth another try"
        yield text.paragraphs(p.retry_when)
    yield "## Evidence"
    yield _evidence(content, here, p.evidence)
    links = list(_links(content, here, p))
    if links:
        yield "## Related"
        yield text.bullets(links)
    if p.references:
        yield "## References"
        yield text.bullets(text.outward(r) for r in p.references)
    yield "## Where it is used"
    yield _prompts(content, here, p)
    yield _kernels(content, here, p)
    yield "## History"
    yield history_table(content.changes.get(p.id, ()))
    yield _foot(content, p)


def _badges(here: str, p: Principle) -> str:
    parts = [
        words.kind_badge(p.kind),
        words.status_badge(p.status),
        words.badge(f"version {p.version}"),
        link_html(here, text.html(words.family_name(p.family)), family_page(p.family)),
    ]
    return f'<p class="ac-badges">{" ".join(parts)}</p>'


def _standing(content: Content, here: str, p: Principle) -> str:
    if p.status is Status.DRAFT:
        return text.block("p", "A draft: it is not put into prompts until a reviewer accepts it.", "ac-standing")
    parts = [f"This block is {p.status.value}."]
    if p.superseded_by:
        known = p.superseded_by in content.library.principles
        label = text.html(p.superseded_by)
        follower = link_html(here, label, principle_page(p.superseded_by)) if known else f"<code>{label}</code>"
        parts.append(f"It was superseded by {follower}.")
    if p.status_reason:
        parts.append(text.html(p.status_reason))
    return text.block("p", " ".join(parts), "ac-standing")


def _html_paragraphs(prose: str) -> str:
    parts = [part for part in prose.split("\n\n") if part.strip()]
    return "".join(f"<p>{text.html(' '.join(part.split()))}</p>" for part in parts)


def _evidence(content: Content, here: str, items: tuple[Evidence, ...]) -> str:
    rows = []
    for item in items:
        value = words.quantity(item.value)
        against = words.quantity(item.baseline_value)
        compared = f"{item.baseline} ({against})" if item.baseline and against else item.baseline or against
        place = ", ".join(x for x in (item.hardware, item.software) if x)
        rows.append(
            (
                words.EVIDENCE_KINDS[item.kind],
                text.html(item.what),
                f"<strong>{text.html(value)}</strong>" if value else "",
                text.html(compared),
                text.html(place),
                item.measured_on.isoformat() if item.measured_on else "",
                _source(content, here, item),
            )
        )
    columns = ("known by", "what", "value", "against", "on", "date", "source")
    kept = [i for i, name in enumerate(columns) if name in ("known by", "what") or any(row[i] for row in rows)]
    return text.html_table(
        [columns[i] for i in kept], [[row[i] for i in kept] for row in rows], wide="what", unbroken=("date",)
    )


def _source(content: Content, here: str, item: Evidence) -> str:
    parts = []
    if item.reference:
        parts.append(text.outward_html(item.reference))
    if item.record:
        name = item.record.rsplit("/", 1)[-1].removesuffix(".md")
        known = any(r.name == name for r in content.records)
        label = text.html(f"record {name}" if known else item.record)
        parts.append(link_html(here, label, record_page(name)) if known else label)
    if item.kernel:
        kernel = content.by_digest.get(item.kernel)
        label = f"kernel {item.kernel[:12]}"
        parts.append(link_html(here, label, kernel_page(kernel.manifest)) if kernel else label)
    return ", ".join(parts)


def _links(content: Content, here: str, p: Principle) -> Iterator[str]:
    def to(entry_id: str) -> str:
        other = content.library.principles.get(entry_id)
        if other is None:
            return text.code(entry_id)
        return f"{link(here, other.title, principle_page(entry_id))} ({words.KINDS[other.kind].lower()})"

    for related in p.related:
        note = f": {text.inline(related.note)}" if related.note else ""
        yield f"{_OUTGOING[related.relation]} {to(related.id)}{note}"
    for older in p.supersedes:
        yield f"supersedes {to(older)}"
    named = {(r.id, r.relation) for r in p.related}
    for relation, other in content.inverse.get(p.id, ()):
        if relation in ("alternative", "contradicts") and (other.id, relation) in named:
            continue
        yield f"{_INVERSE[relation]} {to(other.id)}"


def _prompts(content: Content, here: str, p: Principle) -> str:
    if p.status is not Status.ACCEPTED:
        return f"In no prompt: only accepted blocks are rendered, and this one is {p.status.value}."
    lines = []
    for target in Target:
        holds = applies(p.when, Situation(target=target)).holds
        offered = [c for c in p.patterns if target in _targets(content, c)]
        if holds is False or not offered:
            lines.append(f"on {target.value}: in none")
            continue
        names = ", ".join(_contract_link(content, here, c) for c in offered)
        lines.append(f"on {target.value}: {names}" + ("" if holds else ", where the other conditions hold"))
    return "In the prompts of these contracts:\n\n" + text.bullets(lines)


def _targets(content: Content, contract: str) -> tuple[Target, ...]:
    known = content.library.contracts.get(contract)
    return tuple(known.baselines) if known else tuple(Target)


def _contract_link(content: Content, here: str, contract: str) -> str:
    known = contract in content.library.contracts
    return link(here, contract, contract_page(contract)) if known else text.code(contract)


def _kernels(content: Content, here: str, p: Principle) -> str:
    rows = []
    for kernel in content.users.get(p.id, ()):
        block = next(b for b in kernel.manifest.origin.principles if b.id == p.id)
        reasons = [r for r in content.stale(kernel) if f"principle {p.id}:" in r]
        rows.append(
            (
                link(here, kernel_label(kernel), kernel_page(kernel.manifest)),
                text.inline(kernel.manifest.contract),
                kernel.manifest.target.value,
                f"version {block.version}",
                kernel.manifest.status,
                text.inline("; ".join(reasons)) or "the same meaning as today",
            )
        )
    if not rows:
        return "No kernel of the store was made from it yet."
    return "Kernels whose prompt carried it:\n\n" + text.table(
        ["kernel", "contract", "target", "with", "status", "since then"], rows
    )


def _foot(content: Content, p: Principle) -> str:
    entry = content.files.get(p.id)
    path = entry.path if entry else ""
    return text.block(
        "p",
        f"<code>{text.html(path)}</code> · by {text.html(', '.join(p.authors))} · created {p.created} · "
        f"modified {p.modified} · meaning <code>{(entry.digest or '')[:12] if entry else ''}</code>",
        "ac-foot",
    )
