"""Charts of timings: a contract's kernels at each shape, and one kernel over its shapes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kb.contract import Contract
from kb.dtype import Target
from kb.manifest import ShapeTiming
from kb.site import text, words
from kb.site.content import Content
from kb.site.places import kernel_label
from kb.site.plots import Bar, Group, bars
from kb.store import Entry

MAX_KERNELS = 5
_KERNEL, _BASELINE, _FLOOR = 0, 1, 2
_SERIES = ("admitted kernel", "baseline", "bandwidth floor")


def contract_plots(content: Content, contract: Contract) -> Iterator[str]:
    """For each target and timed shape: the kernels, the baselines and the floor, in µs, with the numbers beside."""
    for target in Target:
        kernels = [k for k in content.kernels_of(contract.id, target) if k.manifest.status == "admitted"]
        shapes: dict[tuple[str, str], list[tuple[Entry, ShapeTiming]]] = {}
        for kernel in kernels:
            for timing in kernel.manifest.acceptance.timings:
                key = (words.shape(timing.dims), timing.dtype.value)
                shapes.setdefault(key, []).append((kernel, timing))
        if shapes:
            yield f"### Time per shape on {target.value}"
        for (dims, dtype), measured in sorted(shapes.items()):
            measured.sort(key=lambda pair: (pair[1].candidate_us, pair[0].digest))
            yield _shape_plot(f"{dims}, T = {dtype}", measured[:MAX_KERNELS])
        if shapes:
            fastest = [measured[0] for _, measured in sorted(shapes.items())]
            yield "The fastest kernel of each shape in numbers:"
            yield timing_table([timing for _, timing in fastest])


def _shape_plot(title: str, measured: Sequence[tuple[Entry, ShapeTiming]]) -> str:
    fastest = measured[0][1]
    baselines = dict(fastest.all_baselines_us) or {fastest.baseline: fastest.baseline_us}
    groups = [
        Group(
            f"kernel {kernel_label(kernel)}",
            (
                Bar(
                    t.candidate_us,
                    f"{words.microseconds(t.candidate_us)} µs",
                    _KERNEL,
                    *t.candidate_us_interval,
                ),
            ),
        )
        for kernel, t in measured
    ]
    groups += [
        Group(name, (Bar(value, f"{words.microseconds(value)} µs", _BASELINE),))
        for name, value in sorted(baselines.items(), key=lambda item: item[1])
    ]
    groups.append(Group("floor", (Bar(fastest.floor_us, f"{words.microseconds(fastest.floor_us)} µs", _FLOOR),)))
    return bars(f"Time a call in µs at {title}", groups, series=_SERIES)


def kernel_plots(timings: Sequence[ShapeTiming]) -> Iterator[str]:
    """Ratio to the strongest baseline, and share of the floor, at each shape."""
    if not timings:
        return
    labels = _labels(timings)
    ratio = [
        Group(label, (Bar(t.ratio, f"{t.ratio:.2f}×", _KERNEL, *t.ratio_interval),))
        for label, t in zip(labels, timings, strict=True)
    ]
    yield bars("Speed against the strongest baseline (dashed: equal), with 95 % intervals", ratio, reference=1.0)
    share = [
        Group(label, (Bar(t.bandwidth_share, f"{t.bandwidth_share:.0%}", _FLOOR),))
        for label, t in zip(labels, timings, strict=True)
    ]
    yield bars("Share of the read bandwidth measured in the same run (dashed: all of it)", share, reference=1.0)


def timing_table(timings: Sequence[ShapeTiming]) -> str:
    """Every number of the charts, with its spread."""
    common, labels = words.shapes_apart([t.dims for t in timings])
    rows = [
        (
            text.inline(label),
            t.dtype.value,
            f"{words.microseconds(t.candidate_us)} ({_interval(t.candidate_us_interval)})",
            f"{words.microseconds(t.baseline_us)} ({_interval(t.baseline_us_interval)})",
            text.code(t.baseline),
            f"{t.ratio:.3f} ({t.ratio_interval[0]:.3f}–{t.ratio_interval[1]:.3f})",
            words.COMPARISONS[t.comparison],
            words.microseconds(t.floor_us),
            f"{t.bandwidth_share:.0%}",
            str(t.samples),
        )
        for label, t in zip(labels, timings, strict=True)
    ]
    columns = (
        "shape",
        "T",
        "kernel, µs",
        "baseline, µs",
        "baseline",
        "ratio",
        "verdict",
        "floor, µs",
        "share",
        "samples",
    )
    return text.table(columns, rows) + (f"\n\nIn all of them {text.inline(common)}." if common else "")


def _interval(interval: tuple[float, float]) -> str:
    return "–".join(words.microseconds(v) for v in interval)


def _labels(timings: Sequence[ShapeTiming]) -> list[str]:
    """Shapes by the dims that differ between them; the table has the rest."""
    labels = words.shapes_apart([t.dims for t in timings])[1]
    if len({t.dtype for t in timings}) > 1:
        labels = [f"{label}, {t.dtype.value}" for label, t in zip(labels, timings, strict=True)]
    return [label if len(label) <= 66 else label[:65] + "…" for label in labels]
