"""The page of one contract: the interface everybody shares, and what competes behind it."""

from __future__ import annotations

from collections.abc import Iterator

from kb.contract import Contract, Dim, DimKind, Early, Role, Tensor
from kb.dtype import Target
from kb.principle import Kind, Principle, Status
from kb.signature import signature
from kb.site import text, words
from kb.site.content import Content
from kb.site.history_table import history_table
from kb.site.places import contract_page, link, principle_page
from kb.site.ranking import legend, ranking
from kb.site.shape_plots import contract_plots

_DIM_KINDS = {
    DimKind.STATIC: "compile-time constant",
    DimKind.FLAG: "compile-time 0 or 1",
    DimKind.RUNTIME: "int argument",
    DimKind.WORKLOAD: "unknown to the kernel",
}
_ROLES = {Role.IN: "read", Role.OUT: "written", Role.INOUT: "read and written"}


def page(content: Content, contract: Contract) -> str:
    """The page in Markdown."""
    return text.page(contract.title, _parts(content, contract), description=contract.summary[:300])


def _parts(content: Content, c: Contract) -> Iterator[str]:
    here = contract_page(c.id)
    badges = (
        words.badge("Contract"),
        words.status_badge(c.status),
        words.badge(f"version {c.version}"),
        f"<code>{text.html(c.id)}</code>",
    )
    yield f'<p class="ac-badges">{" ".join(badges)}</p>'
    yield text.paragraphs(c.summary)
    yield "## What it computes"
    yield text.fence(c.semantics)
    yield "## Interface"
    yield text.table(("tensor", "role", "shape", "dtype", "aligned to", "meaning"), map(_tensor, c.tensors))
    if c.scalars:
        rows = [(text.code(s.name), s.dtype.value, f"{s.example:g}", text.inline(s.doc)) for s in c.scalars]
        yield text.table(("scalar", "dtype", "for example", "meaning"), rows)
    yield text.table(("dim", "reaches the kernel as", "range", "meaning"), [_dim(n, d) for n, d in c.dims.items()])
    if c.constraints:
        yield "Constraints: " + ", ".join(text.code(e) for e in c.constraints) + "."
    yield "## Dtypes"
    yield from _dtypes(c)
    yield "## Numerics"
    yield from _numerics(c)
    if c.preconditions:
        yield "## Where it may be used"
        yield "The analyzer uses the pattern only where all of these hold."
        yield text.table(("precondition", "what", "over dims"), _preconditions(c))
    yield "## Variants"
    yield text.table(
        ("variant", "when", "what decides"), [(v.id, text.code(v.when), text.inline(v.doc)) for v in c.variants]
    )
    yield "## C signature"
    yield "Generated from the interface; a kernel with another one is rejected before it is compiled."
    for target in Target:
        if target in c.baselines:
            yield f"### {target.value}"
            yield text.fence(signature(c, target, c.id) + ";", "cuda" if target is Target.CUDA else "cpp")
    yield "## Baselines"
    yield (
        f"A kernel is admitted when it reaches {c.performance_floor:g} of the strongest of these on every shape that "
        f"is timed. A search gets at least {c.rounds} rounds before it may give up."
    )
    yield text.table(
        ("target", "baselines"),
        [(t.value, ", ".join(text.code(n) for n in names) or "none") for t, names in c.baselines.items()],
    )
    yield "## Admitted kernels"
    yield from ranking(content, here, content.kernels_of(c.id))
    if content.kernels_of(c.id):
        yield legend()
    yield from contract_plots(content, c)
    yield "## Principles that speak to it"
    yield from _principles(here, content.speaking_to(c.id))
    yield "## Shapes"
    yield from _shapes(c)
    yield "## History"
    yield history_table(content.changes.get(c.id, ()))
    entry = content.files.get(c.id)
    if entry is not None:
        yield text.block(
            "p",
            f"<code>{text.html(entry.path)}</code> · meaning <code>{(entry.digest or '')[:12]}</code>",
            "ac-foot",
        )


_EARLY = {
    Early.ALL: "A dependent launch may read it before its wait.",
    Early.ALL_BUT_NEWEST: "A dependent launch may read all but each sequence's last position before its wait.",
}


def _tensor(t: Tensor) -> tuple[str, ...]:
    notes = [text.inline(t.doc)]
    if t.present_when is not None:
        notes.append(f"Null unless {text.code(t.present_when)}.")
    if t.writes is not None:
        notes.append(f"Writes {text.inline(t.writes)}.")
    if t.early is not None:
        notes.append(_EARLY[t.early])
    shape = text.code("[" + ", ".join(str(e) for e in t.shape) + "]")
    joined = " ".join(n if n.endswith(".") else f"{n}." for n in notes)
    return (text.code(t.name), _ROLES[t.role], shape, t.dtype.value, f"{t.align} bytes", joined)


def _dim(name: str, d: Dim) -> tuple[str, ...]:
    if d.kind is DimKind.FLAG:
        span = "0 or 1"
    else:
        span = f"{d.min:,} to {d.max:,}" if d.max is not None else f"{d.min:,} and up"
    return (text.code(name), _DIM_KINDS[d.kind], span, text.inline(d.doc))


def _dtypes(c: Contract) -> Iterator[str]:
    storage = ", ".join(d.value for d in c.dtypes.storage)
    yield f"`T`, the storage type, is one of {storage}. Sums of products are kept in {c.dtypes.accumulate.value}."
    if c.dtypes.rounding:
        rows = [
            (
                text.inline(r.point),
                f"to {r.to.value}",
                "required" if r.binding else "allowed; keeping more is better",
                text.inline(r.why),
            )
            for r in c.dtypes.rounding
        ]
        yield text.table(("rounding point", "rounded", "binding", "why"), rows)


def _numerics(c: Contract) -> Iterator[str]:
    tolerance = c.numerics.tolerance
    yield (
        f"The truth is the float64 reference {text.code(c.numerics.reference)}. A kernel's error may be at most "
        f"{tolerance.kappa:g} × the baseline's own error on the same input, plus {tolerance.floor:g} eps(T) of the "
        "output's RMS."
        + (
            f" A different index passes when its logit is within {tolerance.index_margin:g} eps(T)."
            if tolerance.index_margin is not None
            else ""
        )
        + (" Two runs agree bit for bit." if c.numerics.deterministic else " Two runs may differ within that bound.")
    )
    yield "Inputs: " + ", ".join(f"{text.code(d)}" for d in c.numerics.distributions) + "."
    if c.numerics.edge_cases:
        yield "Edge cases:"
        yield text.bullets(text.inline(e) for e in c.numerics.edge_cases)


def _preconditions(c: Contract) -> Iterator[tuple[str, ...]]:
    for p in c.preconditions:
        where = text.code(p.dims) if p.dims is not None else "structural, on the graph"
        yield (p.name, text.inline(p.doc), where)


def _principles(here: str, principles: tuple[Principle, ...]) -> Iterator[str]:
    if not principles:
        yield "None yet."
    for kind in (Kind.MANDATE, Kind.DECISION, Kind.DEAD_END):
        chosen = [p for p in principles if p.kind is kind]
        if not chosen:
            continue
        yield f"### {words.PLURALS[kind]}"
        yield text.bullets(
            link(here, p.title, principle_page(p.id)) + ("" if p.status is Status.ACCEPTED else f" ({p.status.value})")
            for p in chosen
        )


def _shapes(c: Contract) -> Iterator[str]:
    for label, shapes in (("Timed", c.sweep.performance), ("Always checked", c.sweep.correctness)):
        names = list(c.dims)
        yield f"{label}:"
        yield text.table([text.code(n) for n in names], [[str(s[n]) for n in names] for s in shapes])
    if c.sweep.vary:
        varied = ", ".join(f"{text.code(n)} in {', '.join(map(str, v))}" for n, v in c.sweep.vary.items())
        yield f"Hidden shapes perturb {varied}."
