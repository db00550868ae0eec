"""Admitted kernels in order, with what they were measured at."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kb.site import text
from kb.site.content import Content
from kb.site.places import kernel_label, kernel_page, link
from kb.store import Entry

_AUTHORSHIP = {"llm": "LLM", "hand-written": "hand-written", "template": "template"}


def ranking(content: Content, here: str, kernels: Sequence[Entry]) -> Iterator[str]:
    """A table per target, fastest first; what may run comes before what was revoked."""
    if not kernels:
        yield "None yet. `agentcompile generate` runs a search; what passes every gate appears here."
        return
    ordered = sorted(kernels, key=lambda k: (k.manifest.target, k.manifest.status != "admitted", -k.ratio, k.digest))
    rows = [_row(content, here, kernel) for kernel in ordered]
    columns = ("kernel", "target", "status", "ratio", "slowest shape", "share of bandwidth", "hardware", "author")
    yield text.table(columns, rows)


def legend() -> str:
    """What the numbers of a ranking mean."""
    return (
        "*ratio*: time of the strongest baseline over the kernel's, geometric mean over the shapes of the verdict that "
        "accepted it. *share of bandwidth*: the fewest bytes that must move, at the read bandwidth measured in the "
        "same run, over the kernel's time; the range is over the shapes."
    )


def authorship(kernel: Entry) -> str:
    """Who wrote it, in words."""
    origin = kernel.manifest.origin
    return f"{_AUTHORSHIP[origin.authorship]}{f' ({origin.model})' if origin.model else ''}"


def share_range(kernel: Entry) -> str:
    """Bandwidth shares of the latest verdict as a range."""
    shares = [t.bandwidth_share for t in kernel.manifest.acceptance.timings]
    if not shares:
        return "not timed"
    low, high = min(shares), max(shares)
    return f"{low:.0%}" if f"{low:.0%}" == f"{high:.0%}" else f"{low:.0%} to {high:.0%}"


def _row(content: Content, here: str, kernel: Entry) -> tuple[str, ...]:
    m = kernel.manifest
    timings = m.acceptance.timings
    status = m.status
    if m.status == "admitted" and content.stale(kernel):
        status = "admitted, stale"  # type: ignore[assignment]
    return (
        link(here, kernel_label(kernel), kernel_page(m)),
        m.target.value,
        status,
        f"{kernel.ratio:.2f}×" if timings else "not timed",
        f"{min(t.ratio for t in timings):.2f}×" if timings else "",
        share_range(kernel),
        text.inline(m.acceptance.environment.hardware),
        text.inline(authorship(kernel)),
    )


def mean_ratio(kernel: Entry) -> str:
    """The ratio of the latest verdict, or that there is none."""
    return f"{kernel.ratio:.2f}×" if kernel.ratio else "not timed"
