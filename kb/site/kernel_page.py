"""The page of one kernel of the store: what it is, how it was judged, how fast it is, and how it came to be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kb.dtype import Target
from kb.manifest import Environment, GateResult, Manifest, Outcome, Verdict
from kb.site import text, words
from kb.site.content import Content
from kb.site.places import contract_page, kernel_label, kernel_page, link, principle_page
from kb.site.ranking import authorship, mean_ratio, share_range
from kb.site.rounds import finding, rounds
from kb.site.shape_plots import kernel_plots, timing_table
from kb.store import Entry

_MARKS = {Outcome.PASSED: "✓\u00a0passed", Outcome.FAILED: "✕\u00a0failed", Outcome.SKIPPED: "–\u00a0skipped"}


def page(content: Content, kernel: Entry) -> str:
    """The page in Markdown."""
    m = kernel.manifest
    title = f"{m.contract} on {m.target.value}, kernel {kernel_label(kernel)}"
    return text.page(title, _parts(content, kernel), description=f"{title}: {mean_ratio(kernel)}", hide=["navigation"])


def _parts(content: Content, kernel: Entry) -> Iterator[str]:
    m = kernel.manifest
    here = kernel_page(m)
    latest = m.acceptance
    badges = [
        words.badge("Kernel"),
        words.status_badge(m.status),
        words.badge(m.target.value),
        words.badge(authorship(kernel)),
    ]
    yield f'<p class="ac-badges">{" ".join(badges)}</p>'
    if m.status == "revoked":
        yield text.block("p", f"This kernel is revoked and never runs: {text.html(m.reason)}", "ac-standing")
    stale = content.stale(kernel)
    if stale:
        yield text.block(
            "p",
            f"Stale: it was made from what the library no longer says ({text.html('; '.join(stale))}).",
            "ac-standing",
        )
    yield _summary(content, here, kernel)
    if m.notes:
        yield "## The author's notes"
        yield text.paragraphs(m.notes)
    yield "## Gates"
    yield _verdict_line(latest)
    yield _gates(latest)
    yield from _findings(latest)
    yield "## Timings"
    yield from _timings(latest)
    yield from _errors(latest)
    yield "## How it came to be"
    yield from _origin(content, here, m)
    yield from rounds(kernel.transcript(), m.digest)
    yield "## Launch plan"
    yield _plan(m)
    yield "## Source"
    yield text.fence(kernel.source, "cuda" if m.target is Target.CUDA else "cpp", numbers=True)
    if len(m.verdicts) > 1:
        yield "## Other verdicts"
        yield _others(m)
    yield "## Record"
    yield _record(m)


def _summary(content: Content, here: str, kernel: Entry) -> str:
    m = kernel.manifest
    contract = link(here, m.contract, contract_page(m.contract)) if m.contract in content.library.contracts else ""
    rows = [
        ("contract", f"{contract or text.code(m.contract)}, version {m.contract_version}"),
        ("ratio to the strongest baseline", f"**{mean_ratio(kernel)}** (geometric mean over the timed shapes)"),
        ("share of read bandwidth", share_range(kernel)),
        ("judged on", text.inline(m.acceptance.environment.hardware)),
        ("digest", text.code(m.digest)),
    ]
    return text.table(("", ""), [(f"**{name}**", value) for name, value in rows])


def _verdict_line(v: Verdict) -> str:
    layers = ", ".join(v.environment.sandbox)
    return (
        f"Judged {v.judged_at.date().isoformat()} with seed {v.seed} against version {v.contract_version} of the "
        "contract"
        + (f", isolated by {text.inline(layers)}" if layers else "")
        + ". [What the gates prove and what they cannot](../../../guide/gates.md)."
    )


def _gates(v: Verdict) -> str:
    rows = [
        (gate.gate.value, _MARKS[gate.outcome], _details(gate), f"{gate.seconds:.1f}\u00a0s" if gate.seconds else "")
        for gate in v.gates
    ]
    return text.table(("gate", "outcome", "what it measured", "took"), rows)


def _details(gate: GateResult) -> str:
    parts = [text.inline(gate.reason)] if gate.reason else []
    for name, value in sorted(gate.details.items()):
        parts.append(text.inline(f"{name.replace('_', ' ')}: {_shown(value)[:400]}"))
    return "; ".join(parts)


def _shown(value: object) -> str:
    """A measured detail, nested or not, as a person would write it."""
    if isinstance(value, Mapping):
        pairs = ((k, f"({_shown(v)})" if isinstance(v, Mapping) else _shown(v)) for k, v in value.items())
        return ", ".join(f"{k} {v}" for k, v in pairs)
    if isinstance(value, list | tuple):
        return ", ".join(_shown(item) for item in value) or "none"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _findings(v: Verdict) -> Iterator[str]:
    noted = [(gate, f) for gate in v.gates for f in gate.findings]
    if noted:
        yield "Noted:"
        yield text.bullets(f"{gate.gate.value}: {finding(f.model_dump(mode='json'))}" for gate, f in noted)


def _timings(v: Verdict) -> Iterator[str]:
    if not v.timings:
        yield "It was not timed in its latest verdict."
        return
    yield (
        "Interleaved with the baseline, cold cache, medians with 95 % bootstrap intervals. The floor is the fewest "
        f"bytes that must move at {v.timings[0].bandwidth_gbps:,.0f} GB/s, measured in the same run."
    )
    yield from kernel_plots(v.timings)
    yield timing_table(v.timings)


def _errors(v: Verdict) -> Iterator[str]:
    if not v.errors:
        return
    yield "### Worst errors"
    worst = sorted(v.errors, key=lambda e: (-(e.error / e.allowed if e.allowed else 0.0), str(e.dims), e.tensor))[:12]
    common, labels = words.shapes_apart([e.dims for e in worst])
    rows = [
        (
            text.inline(label),
            e.dtype.value,
            text.inline(e.distribution),
            text.code(e.tensor),
            f"{e.error:.3g}",
            f"{e.baseline_error:.3g}",
            f"{e.allowed:.3g}",
            f"{e.error / e.allowed:.0%}" if e.allowed else "exact",
        )
        for label, e in zip(labels, worst, strict=True)
    ]
    columns = ("shape", "T", "inputs", "output", "error", "baseline's error", "allowed", "used")
    yield text.table(columns, rows)
    if common:
        yield f"In all of them {text.inline(common)}."


def _origin(content: Content, here: str, m: Manifest) -> Iterator[str]:
    o = m.origin
    if o.authorship == "llm":
        yield (
            f"Written by {text.inline(o.model or 'a language model')} through provider {text.code(o.provider)} in "
            f"round {o.rounds}."
            + (f" The prompt's digest is {text.code(o.prompt_digest[:12])}." if o.prompt_digest else "")
            + (f" The search started from kernel {text.code(o.seeded_from[:12])}." if o.seeded_from else "")
        )
    else:
        yield f"It is {text.inline(o.authorship)}; no language model wrote it."
    if not o.principles:
        return
    rows = []
    for block in o.principles:
        known = content.library.principles.get(block.id)
        label = link(here, known.title, principle_page(block.id)) if known else text.code(block.id)
        kind = words.KINDS[known.kind].lower() if known else ""
        now = f"v{known.version}" if known else "gone"
        rows.append((label, kind, f"v{block.version}", now))
    yield "Principles in its prompt:"
    yield text.table(("principle", "kind", "then", "now"), rows)


def _plan(m: Manifest) -> str:
    rows = []
    for launch in m.plan.launches:
        flags = [
            name
            for name, on in (
                ("cooperative", launch.cooperative),
                ("programmatic dependent launch", launch.programmatic_dependent),
            )
            if on
        ]
        rows.append(
            (
                text.code(launch.entry),
                text.code(", ".join(str(e) for e in launch.grid)),
                text.code(", ".join(str(e) for e in launch.block)),
                text.code(launch.shared_bytes),
                text.code(", ".join(str(e) for e in launch.cluster)),
                text.code(launch.when) if launch.when is not None else "always",
                ", ".join(flags),
            )
        )
    table = text.table(("entry", "grid", "block", "shared bytes", "cluster", "when", "attributes"), rows)
    return f"{table}\n\nWorkspace: {text.code(m.plan.workspace.bytes)} bytes, zeroed {m.plan.workspace.zeroed}."


def _others(m: Manifest) -> str:
    rows = [
        (
            v.judged_at.date().isoformat(),
            text.inline(v.environment.hardware),
            "all that the contract asks for" if v.at is None else text.inline(words.shape(v.at)),
            "accepted" if v.accepted else f"failed at {v.failed_gate.gate.value if v.failed_gate else '?'}",
            f"{min(t.ratio for t in v.timings):.2f}×" if v.timings else "not timed",
        )
        for v in reversed(m.verdicts)
        if v is not m.acceptance
    ]
    return text.table(("judged", "on", "about", "verdict", "slowest shape"), rows)


def _record(m: Manifest) -> str:
    e: Environment = m.acceptance.environment
    rows = [
        ("admitted", m.admitted_at.date().isoformat()),
        ("hardware", text.inline(f"{e.hardware}, {e.arch}")),
        ("driver", text.inline(e.driver)),
        ("compiler", text.inline(e.compiler)),
        ("software", text.inline(", ".join(f"{k} {v}" for k, v in sorted(e.software.items())))),
        ("contract digest", text.code(m.contract_digest)),
        ("prompt digest", text.code(m.origin.prompt_digest or "")),
        ("transcript digest", text.code(m.transcript_digest or "")),
    ]
    return text.table(("", ""), [(f"**{name}**", value) for name, value in rows if value])
