"""The rounds that led to a kernel, from its transcript: what was asked, what came back, and what the gates said.

A transcript was written by whatever version made the kernel, so it is read with care: what is missing is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kb.site import text, words
from kb.site.plots import steps

MAX_FINDINGS = 8
Event = Mapping[str, Any]


def rounds(transcript: Sequence[Event], digest: str) -> Iterator[str]:
    """The timeline in Markdown; nothing for a kernel without a transcript."""
    attempts = [event for event in transcript if event.get("event") == "attempt"]
    if not attempts:
        return
    replies = {event.get("key"): event for event in transcript if event.get("event") == "reply"}
    yield "### Rounds"
    points = [(f"round {a.get('round', '?')}", _ratio(a)) for a in attempts]
    if any(value is not None for _, value in points):
        yield steps(
            "Slowest shape against the strongest baseline, round by round; the line is the best so far",
            points,
            reference=1.0,
            shown="dashed: equal to the baseline; ✕: not timed",
        )
    for attempt in attempts:
        yield from _round(attempt, replies.get(attempt.get("key")), digest)
    yield from _prompt(transcript)


def finding(data: Mapping[str, Any]) -> str:
    """One finding on one line of Markdown."""
    place = []
    if data.get("line") is not None:
        place.append(f"line {data['line']}")
    if data.get("tensor"):
        index = data.get("index") or ()
        place.append(str(data["tensor"]) + (f"[{', '.join(map(str, index))}]" if index else ""))
    if data.get("shape"):
        place.append("at " + words.shape(data["shape"]))
    if data.get("distribution"):
        place.append(f"on {data['distribution']} inputs")
    where = f" ({text.inline('; '.join(place))})" if place else ""
    return f"{text.code(data.get('code', ''))} {text.inline(str(data.get('message', '')))}{where}"


def _round(attempt: Event, reply: Event | None, digest: str) -> Iterator[str]:
    verdict: Mapping[str, Any] = attempt.get("verdict") or {}
    lane = int(attempt.get("lane") or 0)
    title = f"Round {attempt.get('round', '?')}" + (f", lane {lane + 1}" if lane else "")
    accepted = bool(verdict.get("accepted"))
    yield f"#### {text.inline(f'{title}: {_outcome(verdict)}')}"
    facts = [fact for fact in (_usage(reply), _speed(attempt)) if fact]
    if facts:
        yield text.inline("; ".join(facts) + ".")
    found = list(attempt.get("findings") or ())
    if not accepted:
        found += [f for gate in verdict.get("gates") or () for f in gate.get("findings") or ()]
    items = [finding(f) + _quoted_line(attempt, f) for f in found[:MAX_FINDINGS]]
    if len(found) > MAX_FINDINGS:
        items.append(f"and {len(found) - MAX_FINDINGS} more")
    if items:
        yield text.bullets(items)
    candidate: Mapping[str, Any] = attempt.get("candidate") or {}
    if candidate.get("notes"):
        yield _details("What the author said", str(candidate["notes"]))
    if candidate.get("source") and verdict.get("candidate") != digest:
        yield _details("Its source", str(candidate["source"]))


def _outcome(verdict: Mapping[str, Any]) -> str:
    if not verdict:
        return "the reply held no usable candidate"
    if verdict.get("accepted"):
        return "accepted"
    failed = next((g for g in verdict.get("gates") or () if g.get("outcome") == "failed"), None)
    return f"stopped at gate {failed.get('gate', '?')}" if failed else "not accepted"


def _usage(reply: Event | None) -> str:
    completion: Mapping[str, Any] = (reply or {}).get("completion") or {}
    usage: Mapping[str, Any] = completion.get("usage") or {}
    counts = [
        f"{value:,} {name.replace('_', ' ')}" for name, value in usage.items() if isinstance(value, int) and value
    ]
    return ", ".join(counts)


def _speed(attempt: Event) -> str:
    ratio = _ratio(attempt)
    return f"slowest shape at {ratio:.2f}× the strongest baseline" if ratio is not None else ""


def _ratio(attempt: Event) -> float | None:
    timings = (attempt.get("verdict") or {}).get("timings") or ()
    return min((float(t["ratio"]) for t in timings), default=None)


def _quoted_line(attempt: Event, data: Mapping[str, Any]) -> str:
    """The line of the round's own source that a finding points at."""
    lines = str((attempt.get("candidate") or {}).get("source") or "").split("\n")
    number = data.get("line")
    if not isinstance(number, int) or not 1 <= number <= len(lines) or not lines[number - 1].strip():
        return ""
    return f": {text.code(lines[number - 1].strip()[:160])}"


def _prompt(transcript: Sequence[Event]) -> Iterator[str]:
    prefix = next((str(e["text"]) for e in transcript if e.get("event") == "prefix" and e.get("text")), "")
    if prefix:
        yield "### The prompt"
        yield "What every round was told first; the diagnostics above came after it."
        yield _details("Show the prompt", prefix)


def _details(summary: str, content: str) -> str:
    """A closed disclosure with preformatted text. Line breaks are entities: a blank line would end the HTML block."""
    shown = text.html(content.strip("\n")).replace("\n", "&#10;")
    return (
        f'<details class="ac-details" data-search-exclude><summary>{text.html(summary)}</summary>'
        f'<pre tabindex="0"><code>{shown}</code></pre></details>'
    )
