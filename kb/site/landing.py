"""What the hand-written pages take from the records and the library: charts and counts."""

from __future__ import annotations

from kb.principle import Kind
from kb.site import text
from kb.site.content import Content
from kb.site.places import record_page
from kb.site.plots import Bar, Group, bars
from kb.site.records import Record

CEILINGS = "h200-ceilings-2026-11-30"


def bandwidth_chart(content: Content) -> str:
    """How much of the read bandwidth the library's GEMV and a plain one reach at one row, from the record."""
    record = _record(content, CEILINGS)
    ceiling = max(float(row["TB/s"]) for row in record.table("Read and copy bandwidth"))
    groups, rows = [], []
    for row in record.table("bfloat16 GEMV, M = 1"):
        n, k = (int(part) for part in row["weight"].split("×"))
        megabytes = n * k * 2 / 1e6
        floor = megabytes / ceiling  # MB over TB/s is µs
        library, plain = float(row["cuBLAS, µs"]), float(row["kernel with PDL, µs"])
        shares = floor / library, floor / plain
        label = f"{row['weight']}, {megabytes:,.0f} MB"
        shown = [Bar(share, f"{share:.0%}", series) for series, share in enumerate(shares)]
        groups.append(Group(label, tuple(shown)))
        rows.append((text.inline(label), f"{library:g}", f"{plain:g}", f"{floor:.1f}", *(f"{s:.0%}" for s in shares)))
    title = "Share of read bandwidth, one-row projections of Qwen3-4B in bfloat16, one NVIDIA H200"
    chart = bars(title, groups, series=("cuBLAS", "plain hand-written GEMV"), reference=1.0)
    columns = ("weight", "cuBLAS, µs", "plain GEMV, µs", "floor, µs", "cuBLAS", "plain GEMV")
    link = f"[the record]({record_page(CEILINGS)})"
    return f"{chart}\n\n{text.table(columns, rows)}\n\nEvery number is in {link}, with hardware, software and method."


def decode_table(content: Content) -> str:
    """Time a token of known engines against the floor, from the record."""
    rows = _record(content, CEILINGS).table("Decode of Qwen3-4B, random bfloat16 weights, batch 1")
    return text.table(tuple(rows[0]), [tuple(text.inline(v) for v in row.values()) for row in rows])


def counts(content: Content) -> str:
    """How much there is, as links."""
    kinds = {kind: sum(p.kind is kind for p in content.principles) for kind in Kind}
    admitted = sum(k.manifest.status == "admitted" for k in content.kernels)
    items = (
        (kinds[Kind.DECISION], "decisions", "browse/index.md?kind=decision"),
        (kinds[Kind.DEAD_END], "dead ends", "browse/dead-ends.md"),
        (kinds[Kind.MANDATE], "mandates", "browse/index.md?kind=mandate"),
        (len(content.library.contracts), "contracts", "contracts/index.md"),
        (admitted, "admitted kernels", "kernels/index.md"),
    )
    cells = "".join(
        f'<li><a href="{target.replace(".md", ".html")}"><strong>{number}</strong> {label}</a></li>'
        for number, label, target in items
    )
    return f'<ul class="ac-counts">{cells}</ul>'


def _record(content: Content, name: str) -> Record:
    for record in content.records:
        if record.name == name:
            return record
    raise KeyError(name)
