"""How one entry is laid out on a terminal. Author's text goes in as rich Text, so brackets in it stay brackets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kb.condition import describe
from kb.contract import Contract
from kb.principle import Effect, Evidence, Principle, Value

if TYPE_CHECKING:
    from rich.console import RenderableType


def principle_page(principle: Principle) -> list[RenderableType]:
    """Claim, mechanism, conditions, effect, evidence and links."""
    page: list[RenderableType] = []
    if principle.status_reason:
        page += _section(f"Why it is {principle.status.value}", principle.status_reason)
    if principle.superseded_by:
        page += _section("Superseded by", principle.superseded_by)
    page += _section("Claim", principle.claim)
    page += _section("Why", principle.why)
    page += _section("Holds when", "; ".join(describe(principle.when)) or "always")
    page += _section("Speaks to", ", ".join(principle.patterns))
    page += _section("Effect", _effect(principle.effect))
    page.append(_heading("Evidence"))
    page += [Padding(Text(_evidence(item)), (0, 0, 0, 2), expand=False) for item in principle.evidence]
    if principle.retry_when:
        page += _section("Worth another try when", principle.retry_when)
    if principle.supersedes:
        page += _section("Supersedes", ", ".join(principle.supersedes))
    if principle.related:
        notes = (f"{r.relation} {r.id}" + (f": {r.note}" if r.note else "") for r in principle.related)
        page += _section("Related", "\n".join(notes))
    if principle.references:
        page += _section("References", "\n".join(principle.references))
    dates = f"{', '.join(principle.authors)}; created {principle.created}, modified {principle.modified}"
    return [*page, *_section("Authors", dates)]


def contract_page(contract: Contract, signatures: Mapping[str, str]) -> list[RenderableType]:
    """Semantics, interface, rounding, numerics, gates, variants and the C signatures."""
    page = _section("Summary", contract.summary) + _section("Semantics", contract.semantics.rstrip())
    ranges = [
        (name, d.kind.value, "0..1" if d.kind.value == "flag" else f"{d.min}..{'' if d.max is None else d.max}", d.doc)
        for name, d in contract.dims.items()
    ]
    page += [_heading("Dims"), _table(("name", "kind", "range", "meaning"), ranges)]
    tensors = [
        (t.name, t.role.value, "[" + ", ".join(str(e) for e in t.shape) + "]", t.dtype.value, t.doc)
        for t in contract.tensors
    ]
    page += [_heading("Tensors"), _table(("name", "role", "shape", "dtype", "meaning"), tensors)]
    if contract.scalars:
        scalars = [(s.name, s.dtype.value, s.doc) for s in contract.scalars]
        page += [_heading("Scalars"), _table(("name", "dtype", "meaning"), scalars)]
    if contract.constraints:
        page += _section("Constraints", "\n".join(str(c) for c in contract.constraints))
    rules = contract.dtypes
    roundings = [
        f"{r.point}: to {r.to.value}, {'binding' if r.binding else 'allowed'} ({r.why})" for r in rules.rounding
    ]
    storage = f"T is {' or '.join(rules.storage)}; sums in {rules.accumulate.value}"
    page += _section("Dtypes", "\n".join([storage, *roundings]))
    numerics = contract.numerics
    tolerance = f"error at most {numerics.tolerance.kappa:g} x the baseline's + {numerics.tolerance.floor:g} eps(T)"
    page += _section("Numerics", f"{tolerance}\ninputs: {', '.join(numerics.distributions)}")
    if contract.preconditions:
        page += _section("Preconditions", "\n".join(f"{p.name}: {p.doc}" for p in contract.preconditions))
    page += _section("Variants", "\n".join(f"{v.id}: {v.when} ({v.doc})" for v in contract.variants))
    baselines = "\n".join(f"{target.value}: {', '.join(names)}" for target, names in contract.baselines.items())
    page += _section("Baselines", f"{baselines}\nat least {contract.performance_floor:g} of the strongest")
    for target, text in signatures.items():
        page += _section(f"Signature on {target}", text)
    return page


def _heading(title: str) -> Text:
    return Text.assemble("\n", (title, "bold"))


def _section(title: str, text: str) -> list[RenderableType]:
    return [_heading(title), Padding(Text(text), (0, 0, 0, 2), expand=False)]


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Padding:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return Padding(table, (0, 0, 0, 2), expand=False)


def _effect(effect: Effect | str) -> str:
    if not isinstance(effect, Effect):
        return "unknown"
    ratio = f"{effect.low:g}" if effect.low == effect.high else f"{effect.low:g} to {effect.high:g}"
    return f"{ratio} times the speed of {effect.of}"


def _evidence(item: Evidence) -> str:
    lines = [f"{item.kind.value}: {item.what}"]
    if item.value is not None:
        against = f" against {_value(item.baseline_value)}" if item.baseline_value is not None else ""
        base = f", compared with {item.baseline}" if item.baseline else ""
        lines.append(f"  {_value(item.value)}{against}{base}")
    place = ", ".join(str(p) for p in (item.hardware, item.software, item.measured_on) if p)
    source = item.reference or item.record or (f"kernel {item.kernel[:12]}" if item.kernel else "")
    lines += [f"  {text}" for text in (place, source) if text]
    return "\n".join(lines)


def _value(value: Value | None) -> str:
    return "" if value is None else f"{value.number:g} {value.unit}"
