"""Names and numbers as a reader sees them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kb.manifest import Comparison
from kb.principle import Effect, EvidenceKind, Kind, Principle, Status, Value
from kb.site.text import html

KINDS = {Kind.DECISION: "Decision", Kind.DEAD_END: "Dead end", Kind.MANDATE: "Mandate"}
PLURALS = {Kind.DECISION: "Decisions", Kind.DEAD_END: "Dead ends", Kind.MANDATE: "Mandates"}
# A shape beside the colour: the kinds are told apart without colour, too.
MARKS = {Kind.DECISION: "✓", Kind.DEAD_END: "✕", Kind.MANDATE: "!"}
EVIDENCE_KINDS = {
    EvidenceKind.MEASURED: "measured here",
    EvidenceKind.PUBLISHED: "published",
    EvidenceKind.REASONED: "reasoned",
}
COMPARISONS = {
    Comparison.FASTER: "faster",
    Comparison.MATCHED: "matched",
    Comparison.SLOWER: "slower",
    Comparison.IMPOSSIBLE: "impossible",
}


def kind_badge(kind: Kind) -> str:
    """The kind as an HTML badge."""
    css = kind.value.replace("_", "-")
    return f'<span class="ac-badge ac-{css}"><span aria-hidden="true">{MARKS[kind]}</span> {KINDS[kind]}</span>'


def status_badge(status: Status | str) -> str:
    """The status as an HTML badge."""
    name = status.value if isinstance(status, Status) else status
    return f'<span class="ac-badge ac-status-{html(name)}">{html(name)}</span>'


def badge(label: str) -> str:
    """A neutral HTML badge."""
    return f'<span class="ac-badge">{html(label)}</span>'


def family_name(family: str) -> str:
    """``gated-mlp`` as a heading."""
    special = {"mlp": "MLP", "gemv": "GEMV", "rope": "RoPE", "kv": "KV"}
    words = family.split("-")
    return " ".join(special.get(w, w.capitalize() if i == 0 else w) for i, w in enumerate(words))


def effect(value: Effect | str) -> str:
    """The expected size of an effect, in words."""
    if not isinstance(value, Effect):
        return "Its size is not known."
    ratio = f"{value.low:g}×" if value.low == value.high else f"{value.low:g}× to {value.high:g}×"
    if value.high < 1:
        verdict = ", a loss"
    elif value.low >= 1:
        verdict = ""
    else:
        verdict = ", a loss or a gain"
    return f"{ratio} the speed of {value.of}{verdict}."


def effect_short(value: Effect | str) -> str:
    """The same for a table cell."""
    if not isinstance(value, Effect):
        return "unknown"
    return f"{value.low:g}×" if value.low == value.high else f"{value.low:g}–{value.high:g}×"


def quantity(value: Value | None) -> str:
    """A number with its unit; percent without a space."""
    if value is None:
        return ""
    number = f"{value.number:,.6g}" if abs(value.number) >= 10_000 else f"{value.number:g}"
    return f"{number} {value.unit}"


def shape(dims: Mapping[str, int]) -> str:
    """Dims as text."""
    return ", ".join(f"{name}={value}" for name, value in dims.items())


def shapes_apart(shapes: Sequence[Mapping[str, int]]) -> tuple[str, list[str]]:
    """What all shapes have in common, and what tells each from the others; one shape alone is all told apart."""
    common = {
        name: value
        for name, value in (shapes[0] if len(shapes) > 1 else {}).items()
        if all(s.get(name) == value for s in shapes)
    }
    if len(shapes) > 1 and len(common) == len(shapes[0]):
        common = {}
    return shape(common), [shape({n: v for n, v in s.items() if n not in common}) for s in shapes]


def microseconds(value: float) -> str:
    """A time in µs with three significant digits at least."""
    return f"{value:,.1f}" if value >= 100 else f"{value:.3g}"


def freshest(principle: Principle) -> str:
    """Date of the newest dated evidence, ISO; empty where none has a date."""
    return max((e.measured_on.isoformat() for e in principle.evidence if e.measured_on), default="")
