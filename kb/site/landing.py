"""What the hand-written pages take from the records and the library: charts and counts."""

from __future__ import annotations

from collections.abc import Iterator

from kb.principle import Kind
from kb.site import text
from kb.site.content import Content
from kb.site.places import record_page
from kb.site.plots import Bar, Group, bars
from kb.site.records import Record

CEILINGS = "h200-ceilings-2026-11-30"
ENGINE = "h200-engine-2026-11-30"
# Series: what was written by us has the same colour on every chart, and so has what it is compared with.
_PLAIN, _LIBRARY = 0, 1


def bandwidth_chart(content: Content) -> str:
    """How much of the read bandwidth the library's GEMV and a plain one reach at one row, from the record."""
    groups = []
    for label, library, plain, floor in _projections(content):
        shares = ((floor / library, _LIBRARY), (floor / plain, _PLAIN))
        groups.append(Group(label, tuple(Bar(share, f"{share:.0%}", series) for share, series in shares)))
    title = (
        f"Share of the read bandwidth ({_ceiling(content):g} TB/s, dashed) that one-row projections of Qwen3-4B reach, "
        "bfloat16, one NVIDIA H200"
    )
    return bars(title, groups, series=("plain hand-written GEMV", "cuBLAS"), reference=1.0)


def bandwidth_table(content: Content) -> str:
    """The numbers of the chart, with where they come from."""
    rows = [
        (
            text.inline(label),
            f"{library:g}",
            f"{plain:g}",
            f"{floor:.1f}",
            f"{floor / library:.0%}",
            f"{floor / plain:.0%}",
        )
        for label, library, plain, floor in _projections(content)
    ]
    columns = ("weight", "cuBLAS, µs", "plain GEMV, µs", "floor, µs", "cuBLAS", "plain GEMV")
    link = f"[the record]({record_page(CEILINGS)})"
    return f"{text.table(columns, rows)}\n\nEvery number is in {link}, with hardware, software and method."


def _ceiling(content: Content) -> float:
    return max(float(row["TB/s"]) for row in _record(content, CEILINGS).table("Read and copy bandwidth"))


def _projections(content: Content) -> Iterator[tuple[str, float, float, float]]:
    """Label, time of cuBLAS, time of the plain kernel, and time at full read bandwidth, in µs."""
    ceiling = _ceiling(content)
    record = _record(content, CEILINGS)
    for row in record.table("bfloat16 GEMV, M = 1"):
        n, k = (int(part) for part in row["weight"].split("×"))
        megabytes = n * k * 2 / 1e6
        floor = megabytes / ceiling  # MB over TB/s is µs
        label = f"{row['weight']}, {megabytes:,.0f} MB"
        yield label, float(row["cuBLAS, µs"]), float(row["kernel with PDL, µs"]), floor


def decode_table(content: Content) -> str:
    """Time a token of known engines against the floor, from the record."""
    rows = _record(content, CEILINGS).table("Decode of Qwen3-4B, random bfloat16 weights, batch 1")
    return text.table(tuple(rows[0]), [tuple(text.inline(v) for v in row.values()) for row in rows])


def ladder_chart(content: Content) -> str:
    """From eager decoding to the admitted kernels, step by step, as shares of the bandwidth floor, from the record."""
    groups = []
    for row in _record(content, ENGINE).table("Step by step, in one run"):
        took = float(row["ms a token"])
        [percent] = (value for name, value in row.items() if name.startswith("share of the floor"))
        share = float(percent.removesuffix("%").strip()) / 100
        groups.append(Group(row["rung"], (Bar(share, f"{took:#.3g} ms, {percent}"),)))
    title = (
        "Time a token of Qwen3-4B at batch 1, and its share of what the read bandwidth allows (dashed), one NVIDIA H200"
    )
    link = f"[the record]({record_page(ENGINE)})"
    source = f"All of it is one run; {link} has the method, the tokens and what was chosen."
    return f"{bars(title, groups, reference=1.0)}\n\n{source}"


def counts(content: Content) -> str:
    """How much there is, as links."""
    kinds = {kind: sum(p.kind is kind for p in content.principles) for kind in Kind}
    admitted = sum(k.manifest.status == "admitted" for k in content.kernels)
    items = (
        (kinds[Kind.DECISION], "decisions", "browse/index.html?kind=decision"),
        (kinds[Kind.DEAD_END], "dead ends", "browse/dead-ends.html"),
        (kinds[Kind.MANDATE], "mandates", "browse/index.html?kind=mandate"),
        (len(content.library.contracts), "contracts", "contracts/index.html"),
        (admitted, "admitted kernels", "kernels/index.html"),
    )
    links = (f'<a href="{target}"><strong>{number}</strong> {label}</a>' for number, label, target in items)
    cells = "".join(f'<li class="ac-count-item">{link}</li>' for link in links)
    return f'<ul class="ac-counts">{cells}</ul>'


def _record(content: Content, name: str) -> Record:
    for record in content.records:
        if record.name == name:
            return record
    raise KeyError(name)
