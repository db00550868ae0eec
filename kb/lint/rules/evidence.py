"""AC109 and AC116 to AC121: what a block stands on."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kb.diagnostic import Severity
from kb.lint.example import block, dead_end
from kb.lint.known import CURRENT_SOFTWARE, OLD_HARDWARE, SOFTWARE_VERSION
from kb.lint.rule import Hit, PrincipleRule, Subject
from kb.principle import Effect, EvidenceKind, Kind, Principle

_REASONED = """
  - kind: reasoned
    what: A scalar loop issues one request a lane where a wide one issues a quarter of that."""
_MEASURED = """
  - kind: measured
    what: The whole row against its wide part.
    hardware: NVIDIA H200
    software: {software}
    measured_on: "2026-11-30"
    value: {{number: 1.4, unit: {unit}}}
    record: {record}"""


def _measured(software: str = "torch 2.11", unit: str = "ratio", record: str = "bench/results/rows.md") -> str:
    return _MEASURED.format(software=software, unit=unit, record=record)


def _published(reference: str) -> str:
    return f"\n  - {{kind: published, what: Wide loads, value: {{number: 2, unit: ratio}}, reference: '{reference}'}}"


class DeadEndWithoutNumber(PrincipleRule):
    """A dead end without a measured or published number.

    *We tried it and it was slow* buries an idea for good. A dead end needs at least one measured or published evidence
    with a ``value``, so that the next reader can tell whether it still holds.
    """

    code = "AC109"
    bad = (dead_end(evidence=_REASONED, effect="unknown"),)
    good = (dead_end(), block(evidence=_REASONED, effect="unknown"))

    def check(self, block: Principle, subject: Subject) -> Iterator[Hit]:
        if block.kind is not Kind.DEAD_END or any(
            e.kind is not EvidenceKind.REASONED and e.value is not None for e in block.evidence
        ):
            return
        yield subject.hit(
            ("evidence",),
            "a dead end needs measured or published evidence with a number",
            "add 'value: {number: ..., unit: ...}' to what was measured or published",
            key=True,
        )


_REFERENCE = re.compile(
    r"https://[^\s<>\"'`]+|[A-Za-z0-9][\w.-]*/[\w.-]+(?:#[0-9]+|@[0-9a-f]{7,40})?"
    r"|arXiv:[0-9]{4}\.[0-9]{4,5}(?:v[0-9]+)?|doi:10\.[0-9]{4,9}/\S+"
)


class ReferenceFormat(PrincipleRule):
    """A reference that nobody can follow.

    A source is an ``https`` address, ``owner/name``, ``owner/name#number``, ``owner/name@commit``,
    ``arXiv:2508.18850`` or ``doi:10.…``. *vllm#123* could be any of a hundred forks.
    """

    code = "AC116"
    bad = (
        block(evidence=_published("kernels#12")),
        block(references="[http://example.org/page]"),
        block(references="[a talk at a conference]"),
    )
    good = (
        block(references='["https://example.org/page", "someone/kernels#12", "arXiv:2508.18850", someone/kernels]'),
    )

    def check(self, block: Principle, subject: Subject) -> Iterator[Hit]:
        for i, evidence in enumerate(block.evidence):
            if evidence.reference is not None:
                yield from self._judge(evidence.reference, ("evidence", i, "reference"), subject)
        for i, reference in enumerate(block.references):
            yield from self._judge(reference, ("references", i), subject)

    def _judge(self, reference: str, path: tuple[str | int, ...], subject: Subject) -> Iterator[Hit]:
        if _REFERENCE.fullmatch(reference):
            return
        fix = "https://…, owner/name#number or arXiv:2508.18850"
        if arxiv := re.fullmatch(r"(?i)arxiv[ :]*([0-9]{4}\.[0-9]{4,5}(?:v[0-9]+)?)", reference):
            fix = f"write arXiv:{arxiv[1]}"
        elif reference.startswith("http://"):
            fix = "use https"
        elif re.fullmatch(r"[\w.-]+#[0-9]+", reference):
            fix = f"write owner/{reference}"
        yield subject.hit(path, f"'{reference[:60]}' is no address, repository or paper", fix)


class RecordFormat(PrincipleRule):
    """A benchmark record that is not a path under ``bench/results/``.

    Measured evidence links to a record in the repository, so that it can be run again and compared.
    """

    code = "AC117"
    bad = (
        block(evidence=_measured(record="/home/ada/rows.md")),
        block(evidence=_measured(record="bench/results/../x.md")),
    )
    good = (block(evidence=_measured()),)

    def check(self, block: Principle, subject: Subject) -> Iterator[Hit]:
        for i, evidence in enumerate(block.evidence):
            record = evidence.record
            if record is not None and not re.fullmatch(r"bench/results/(?:[\w-][\w.-]*/)*[\w-][\w.-]*", record):
                yield subject.hit(
                    ("evidence", i, "record"), f"'{record}' is no path under bench/results/", "bench/results/<name>.md"
                )


class EffectAgainstKind(PrincipleRule):
    """An effect that contradicts the kind of block.

    A decision that only loses is a dead end, and a dead end that only wins is a decision. One of kind and effect is
    wrong, or low and high are the wrong way up (1.05 is five percent faster, 0.95 is five percent slower).
    """

    code = "AC118"
    bad = (block(effect="{low: 0.5, high: 0.9, of: time}"), dead_end(effect="{low: 1.1, high: 1.3, of: time}"))
    good = (dead_end(effect="{low: 0.8, high: 1.02, of: time}"),)

    def check(self, block: Principle, subject: Subject) -> Iterator[Hit]:
        if not isinstance(block.effect, Effect):
            return
        if block.kind is Kind.DECISION and block.effect.high < 1:
            yield subject.hit(
                ("effect",), f"a decision that loses: {block.effect.high} at best", "check kind and effect"
            )
        if block.kind is Kind.DEAD_END and block.effect.low > 1:
            yield subject.hit(
                ("effect",), f"a dead end that wins: {block.effect.low} at worst", "check kind and effect"
            )


class EffectWithoutNumber(PrincipleRule):
    """An effect with numbers that no evidence bears out.

    A range such as 1.2 to 1.6 comes from somewhere. Add the measured or published value it comes from, or say
    ``unknown``.
    """

    code = "AC119"
    bad = (block(evidence=_REASONED),)
    good = (block(evidence=_REASONED, effect="unknown"), block())

    def check(self, block: Principle, subject: Subject) -> Iterator[Hit]:
        if isinstance(block.effect, Effect) and not any(
            e.kind is not EvidenceKind.REASONED and e.value is not None for e in block.evidence
        ):
            yield subject.hit(
                ("effect",), "no evidence has a number for this effect", "add it, or write effect: unknown"
            )


class StaleEvidence(PrincipleRule):
    """Evidence from hardware or software that is no longer current.

    Age alone spoils nothing; a changed dependency does. A short table names the architectures below the ones kernels
    are made for, and the last releases before a change that is known to matter. Measure again, or add newer evidence
    and excuse the old one with its reason.
    """

    code = "AC120"
    severity = Severity.WARNING
    bad = (
        block(evidence=_published("someone/kernels#12").replace("Wide loads,", "Wide loads, hardware: Tesla V100,")),
        block(evidence=_measured(software="torch 1.13")),
    )
    good = (block(evidence=_measured(software="torch 2.11+cu130, CUDA 13.0")),)

    def check(self, block: Principle, subject: Subject) -> Iterator[Hit]:
        for i, evidence in enumerate(block.evidence):
            if evidence.hardware is not None:
                yield from self._hardware(evidence.hardware, ("evidence", i, "hardware"), subject)
            if evidence.software is not None:
                yield from self._software(evidence.software, ("evidence", i, "software"), subject)

    def _hardware(self, text: str, path: tuple[str | int, ...], subject: Subject) -> Iterator[Hit]:
        for pattern, generation in OLD_HARDWARE.items():
            for match in re.finditer(pattern, text):
                yield subject.hit_in(
                    path,
                    match.group(),
                    match.start(),
                    f"'{match.group()}' is no longer current ({generation})",
                    "measure again",
                )

    def _software(self, text: str, path: tuple[str | int, ...], subject: Subject) -> Iterator[Hit]:
        for match in SOFTWARE_VERSION.finditer(text):
            known = CURRENT_SOFTWARE.get(match[1].lower())
            if known is not None and (int(match[2]), int(match[3])) < known[0]:
                oldest = ".".join(map(str, known[0]))
                yield subject.hit_in(
                    path,
                    match.group(),
                    match.start(),
                    f"'{match.group()}' is older than {oldest}: {known[1]}",
                    "measure again",
                )


class UnitsDoNotCompare(PrincipleRule):
    """A value and its baseline in different units.

    A ratio of µs to ms/step says nothing. Both values carry one unit, and microseconds are written µs (U+00B5).
    """

    code = "AC121"
    bad = (
        block(
            evidence="\n  - {kind: published, what: Wide loads, reference: someone/kernels, "
            "value: {number: 3, unit: µs}, baseline_value: {number: 2, unit: ms}}"
        ),
        block(evidence=_measured(unit="us")),
    )
    good = (block(evidence=_measured(unit="µs")),)

    def check(self, block: Principle, subject: Subject) -> Iterator[Hit]:
        for i, evidence in enumerate(block.evidence):
            value, baseline = evidence.value, evidence.baseline_value
            for name, quantity in (("value", value), ("baseline_value", baseline)):
                if quantity is not None and re.match(r"(?:us|usec|\u03bcs|mcs)\b", quantity.unit):
                    yield subject.hit(
                        ("evidence", i, name, "unit"), f"'{quantity.unit}' for microseconds", "write µs (U+00B5)"
                    )
            if baseline is not None and value is None:
                yield subject.hit(
                    ("evidence", i, "baseline_value"), "a baseline value without a value", "add 'value'", key=True
                )
            elif baseline is not None and value is not None and _plain_unit(value.unit) != _plain_unit(baseline.unit):
                yield subject.hit(
                    ("evidence", i, "baseline_value", "unit"),
                    f"the baseline is in '{baseline.unit}', the value in '{value.unit}'",
                    "give both in one unit",
                )


def _plain_unit(unit: str) -> str:
    """The unit without how sure one is of the number, and without the plural."""
    bare = re.sub(r"[, ]*\b(?:at best|at worst|at most|at least|about|almost)\b", "", unit)
    return re.sub(r"(?<=[a-z]{3})s\b", "", bare).strip()
