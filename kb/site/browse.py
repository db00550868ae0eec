"""Ways into the knowledge: one page that filters in the browser, and lists by each thing a reader may start from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from kb.condition import describe
from kb.dtype import Target
from kb.principle import Kind, Principle, Status
from kb.site import text, words
from kb.site.content import Content
from kb.site.places import contract_page, family_page, link, link_html, principle_page

FILTER = "browse/index.md"
PATTERN, TARGET, ARCH, STATUS, FRESH, DEAD = (
    f"browse/{name}.md" for name in ("by-pattern", "by-target", "by-architecture", "by-status", "freshest", "dead-ends")
)


def pages(content: Content) -> Iterator[tuple[str, str]]:
    """Path and text of every page of this section but the matrix."""
    yield FILTER, filter_page(content)
    yield PATTERN, _by_pattern(content)
    yield TARGET, _by_target(content)
    yield ARCH, _by_architecture(content)
    yield STATUS, _by_status(content)
    yield FRESH, _freshest(content)
    yield DEAD, _dead_ends(content)


def filter_page(content: Content) -> str:
    """All principles as a list; a small script hides what does not match. Without the script it is the whole list."""
    rows = "".join(_item(p) for p in content.principles)
    controls = "".join(
        (
            _search_box(),
            _select("kind", "Kind", [(k.value, words.PLURALS[k]) for k in Kind]),
            _select("contract", "Contract", [(c, c) for c in sorted(content.library.contracts)]),
            _select("target", "Target", [(t.value, t.value) for t in Target]),
            _select("status", "Status", [(s.value, s.value) for s in Status if _has(content, s)]),
            _select("evidence", "Evidence", [(k.value, v) for k, v in words.EVIDENCE_KINDS.items()]),
        )
    )
    form = (
        f'<form class="ac-filter" role="search" aria-label="Filter principles" hidden>{controls}'
        '<button type="reset">Clear</button></form>'
        f'<p class="ac-count" role="status" aria-live="polite">{len(content.principles)} principles</p>'
        f'<ul class="ac-list" data-ac-list>{rows}</ul>'
    )
    others = [
        ("by pattern", PATTERN),
        ("by target", TARGET),
        ("by architecture", ARCH),
        ("by status", STATUS),
        ("freshest evidence", FRESH),
        ("dead ends only", DEAD),
        ("decision matrix", "browse/matrix.md"),
    ]
    lists = "Ready-made lists: " + " · ".join(link(FILTER, name, page) for name, page in others)
    return text.page("Browse the knowledge", [lists, form], description="Filter all principles.", hide=["toc"])


def _item(p: Principle) -> str:
    targets = " ".join(t.value for t in (p.when.target or tuple(Target)))
    evidence = " ".join(sorted({e.kind.value for e in p.evidence}))
    words_to_find = " ".join((p.id, p.title, p.claim, p.why, " ".join(p.patterns)))
    data = {
        "kind": p.kind.value,
        "contract": " ".join(p.patterns),
        "target": targets,
        "status": p.status.value,
        "evidence": evidence,
        "text": " ".join(words_to_find.lower().split()),
    }
    attributes = "".join(f' data-{name}="{text.html(value)}"' for name, value in data.items())
    conditions = "; ".join(describe(p.when)) or "always"
    title = link_html(FILTER, text.html(p.title), principle_page(p.id))
    status = "" if p.status is Status.ACCEPTED else words.status_badge(p.status)
    return (
        f"<li{attributes}>{words.kind_badge(p.kind)}{status} {title}"
        f'<span class="ac-conditions">{text.html(words.family_name(p.family))} · {text.html(conditions)}'
        f" · effect {text.html(words.effect_short(p.effect))}</span></li>"
    )


def _search_box() -> str:
    return '<label>Text<input type="search" name="text" placeholder="a word of the claim or the reason"></label>'


def _select(name: str, label: str, options: Sequence[tuple[str, str]]) -> str:
    items = "".join(f'<option value="{text.html(value)}">{text.html(shown)}</option>' for value, shown in options)
    return f'<label>{text.html(label)}<select name="{name}"><option value="">all</option>{items}</select></label>'


def _has(content: Content, status: Status) -> bool:
    return any(p.status is status for p in content.principles)


def _by_pattern(content: Content) -> str:
    parts = []
    for contract in sorted(content.library.contracts):
        chosen = content.speaking_to(contract)
        counts = ", ".join(_count(chosen, kind) for kind in Kind if any(p.kind is kind for p in chosen))
        heading = content.library.contracts[contract].title
        parts += [
            f"## {text.inline(heading)}",
            f"{link(PATTERN, contract, contract_page(contract))}: {counts or 'none'}",
        ]
        parts.append(listing(PATTERN, chosen))
    return text.page("By pattern", parts)


def _count(principles: Sequence[Principle], kind: Kind) -> str:
    number = sum(p.kind is kind for p in principles)
    return f"{number} {(words.KINDS if number == 1 else words.PLURALS)[kind].lower()}"


def _by_target(content: Content) -> str:
    groups: dict[str, list[Principle]] = {"On every target": []}
    for target in Target:
        groups[f"On {target.value}"] = [p for p in content.principles if target in p.when.target]
    groups["On every target"] = [p for p in content.principles if not p.when.target]
    return text.page("By target", _groups(TARGET, groups))


def _by_architecture(content: Content) -> str:
    groups: dict[str, list[Principle]] = {}
    for p in content.principles:
        arch = p.when.arch
        if arch is None:
            label = "Any architecture"
        else:
            span = [f"from {arch.min}" if arch.min else "", f"up to {arch.max}" if arch.max else "", *arch.any_of]
            label = " ".join(part for part in span if part)
        groups.setdefault(label, []).append(p)
    ordered = dict(sorted(groups.items(), key=lambda item: (item[0] == "Any architecture", item[0])))
    return text.page("By architecture", _groups(ARCH, ordered))


def _by_status(content: Content) -> str:
    groups = {s.value.capitalize(): [p for p in content.principles if p.status is s] for s in Status}
    return text.page("By status", _groups(STATUS, groups))


def _groups(here: str, groups: Mapping[str, Sequence[Principle]]) -> Iterator[str]:
    for label, principles in groups.items():
        if principles:
            yield f"## {text.inline(label)}"
            yield listing(here, principles)


def _freshest(content: Content) -> str:
    dated = sorted(content.principles, key=lambda p: (words.freshest(p), p.modified.isoformat()), reverse=True)
    rows = []
    for p in dated:
        newest = words.freshest(p)
        hardware = next((e.hardware for e in p.evidence if e.measured_on and e.measured_on.isoformat() == newest), None)
        hardware = hardware or next((e.hardware for e in p.evidence if e.hardware), None)
        rows.append(
            (
                newest or "no date",
                link_html(FRESH, text.html(p.title), principle_page(p.id)),
                words.KINDS[p.kind].lower(),
                text.html(hardware or ""),
                p.modified.isoformat(),
            )
        )
    intro = (
        "Newest measurement first. Published evidence carries the date of its source only where the entry states it."
    )
    columns = ("measured", "principle", "kind", "hardware", "entry modified")
    return text.page(
        "Freshest evidence",
        [intro, text.html_table(columns, rows, wide="principle", unbroken=("measured", "entry modified"))],
    )


def _dead_ends(content: Content) -> str:
    parts = ["What was tried, measured, and lost: so that nobody tries it again without a reason."]
    for family, principles in content.families.items():
        chosen = [p for p in principles if p.kind is Kind.DEAD_END]
        if not chosen:
            continue
        parts.append(f"## {text.inline(words.family_name(family))}")
        rows = [
            (
                link(DEAD, p.title, principle_page(p.id)),
                words.effect_short(p.effect),
                text.inline("; ".join(describe(p.when)) or "always"),
                text.inline(p.retry_when or ""),
            )
            for p in chosen
        ]
        parts.append(text.table(("dead end", "effect", "holds when", "worth another try when"), rows))
    return text.page("Dead ends", parts)


def listing(here: str, principles: Sequence[Principle]) -> str:
    """Principles as a table: kind, title, conditions, effect."""
    order = list(Kind)
    rows = [
        (
            f"{words.MARKS[p.kind]} {words.KINDS[p.kind].lower()}",
            link(here, p.title, principle_page(p.id)) + ("" if p.status is Status.ACCEPTED else f" ({p.status.value})"),
            text.inline("; ".join(describe(p.when)) or "always"),
            words.effect_short(p.effect),
        )
        for p in sorted(principles, key=lambda p: (order.index(p.kind), p.id))
    ]
    return text.table(("kind", "principle", "holds when", "effect"), rows) if rows else "None yet."


def family_index(content: Content, family: str) -> str:
    """Page of one family."""
    here = family_page(family)
    return text.page(words.family_name(family), [listing(here, content.families[family])])


def principles_index(content: Content) -> str:
    """Page that leads to all families."""
    here = "principles/index.md"
    rows = [
        (
            link(here, words.family_name(family), family_page(family)),
            *(str(sum(p.kind is kind for p in principles)) for kind in Kind),
        )
        for family, principles in content.families.items()
    ]
    parts = [
        "A principle is one decision, one falsified dead end, or one mandate, with the conditions under which it holds "
        f"and how it is known. There are {len(content.principles)}. {link(here, 'Filter them all', FILTER)}.",
        text.table(("family", *(words.PLURALS[k].lower() for k in Kind)), rows),
    ]
    return text.page("Principles", parts)
