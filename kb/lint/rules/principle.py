"""AC122 to AC128: conditions, links and lists of one block."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence

from kb.diagnostic import Severity
from kb.diff.scope import scope_of_when
from kb.features import FEATURES
from kb.lint.example import block, contract
from kb.lint.rule import EntryRule, Hit, PrincipleRule, Subject
from kb.principle import Principle, Status


class UnknownFeature(PrincipleRule):
    """A feature that nobody can answer for.

    ``features`` and ``without`` use the names of one list, which the analyzer and the runtime fill in. A name outside
    it is never there, so the block would never be used.
    """

    code = "AC122"
    bad = (block(when="{features: [tensor_core]}"), block(when="{without: [speed]}"))
    good = (block(when="{target: [cuda], features: [tensor_cores]}"),)

    def check(self, block: Principle, subject: Subject) -> Iterator[Hit]:
        for name in ("features", "without"):
            for i, feature in enumerate(getattr(block.when, name)):
                if feature not in FEATURES:
                    close = difflib.get_close_matches(feature, FEATURES, n=1, cutoff=0.6)
                    fix = f"did you mean '{close[0]}'?" if close else "the list is in kb/features.py"
                    yield subject.hit(("when", name, i), f"'{feature}' is no known feature", fix)


class ImpossibleWhen(PrincipleRule):
    """Conditions that can never hold together.

    The block would be stored, reviewed and never rendered.
    """

    code = "AC123"
    bad = (
        block(when='{dims: ["width > 128", "width <= 64"]}'),
        block(when="{features: [gqa], without: [gqa]}"),
        block(when="{target: [cpu], arch: {min: sm_90}}"),
    )
    good = (block(when='{target: [cuda], arch: {min: sm_90}, dims: ["width > 64", "width <= 128"]}'),)

    def check(self, block: Principle, subject: Subject) -> Iterator[Hit]:
        if scope_of_when(block.when).is_empty:
            yield subject.hit(("when",), "these conditions never hold together", "drop the one that is wrong")


class RepeatedListEntry(EntryRule):
    """A list names the same thing twice.

    One of the two was meant to be something else, or a merge went wrong.
    """

    code = "AC124"
    bad = (block(patterns="[gemv, gemv]"), contract(baselines="{cuda: [torch_eager, torch_eager], cpu: [torch_eager]}"))
    good = (block(authors="[Ada, Grace]"),)

    def check(self, subject: Subject) -> Iterator[Hit]:
        yield from self._walk(subject.document.value, (), subject)

    def _walk(self, value: object, path: tuple[str | int, ...], subject: Subject) -> Iterator[Hit]:
        if isinstance(value, dict):
            for key, below in value.items():
                if not (path == () and key == "sweep"):
                    yield from self._walk(below, (*path, key), subject)
        elif isinstance(value, list):
            yield from self._twice(value, path, subject)
            for i, below in enumerate(value):
                yield from self._walk(below, (*path, i), subject)

    def _twice(self, items: Sequence[object], path: tuple[str | int, ...], subject: Subject) -> Iterator[Hit]:
        # A shape such as [n, n] is a list of sizes and may repeat one.
        if path and path[-1] == "shape":
            return
        seen: dict[str, int] = {}
        for i, item in enumerate(items):
            if isinstance(item, dict | list):
                continue
            if str(item) in seen:
                yield subject.hit((*path, i), f"'{str(item)[:60]}' is in the list already", "remove one of them")
            seen[str(item)] = i


class LinkToItself(PrincipleRule):
    """A block links to itself.

    A link to oneself says nothing, and a superseding chain through oneself never ends.
    """

    code = "AC125"
    bad = (block(related="[{id: demo/wide-loads, relation: refines}]"), block(supersedes="[demo/wide-loads]"))
    good = (block(),)

    def check(self, block: Principle, subject: Subject) -> Iterator[Hit]:
        links = [(("related", i, "id"), link.id) for i, link in enumerate(block.related)]
        links += [(("supersedes", i), name) for i, name in enumerate(block.supersedes)]  # type: ignore[misc]
        if block.superseded_by is not None:
            links.append((("superseded_by",), block.superseded_by))  # type: ignore[arg-type]
        for path, target in links:
            if target == block.id:
                yield subject.hit(path, "a link from the block to itself", "name the other block")


class StatusDoesNotFit(PrincipleRule):
    """A field that belongs to another status.

    ``superseded_by`` belongs to superseded blocks and ``status_reason`` to superseded and retired ones. On an accepted
    block they say that it is no longer valid, and it is rendered all the same.
    """

    code = "AC126"
    bad = (block(status_reason="A better one was found"),)
    good = (block(status="retired", status_reason="Compilers do this now"),)

    def check(self, block: Principle, subject: Subject) -> Iterator[Hit]:
        ended = block.status in (Status.SUPERSEDED, Status.RETIRED)
        if block.superseded_by is not None and block.status is not Status.SUPERSEDED:
            yield subject.hit(
                ("superseded_by",),
                f"'superseded_by' in a block that is {block.status.value}",
                "status: superseded",
                key=True,
            )
        if block.status_reason is not None and not ended:
            yield subject.hit(
                ("status_reason",),
                f"'status_reason' in a block that is {block.status.value}",
                "remove it, or end the block",
                key=True,
            )


class TitleForm(EntryRule):
    """A title that is not one line of plain words.

    Titles are shown in lists and prompts: they start with a capital letter or a digit and end without a full stop.
    """

    code = "AC127"
    severity = Severity.WARNING
    bad = (block(title="read weights with wide loads"), block(title="Read weights with wide loads."))
    good = (block(title="16-byte loads for weights"),)

    def check(self, subject: Subject) -> Iterator[Hit]:
        title = subject.entry.model.title if subject.entry.model is not None else ""
        if title.endswith(".") and not title.endswith("..."):
            yield subject.hit(("title",), "the title ends with a full stop", "remove it")
        if title[:1].islower():
            yield subject.hit(("title",), "the title starts with a small letter", "start with a capital letter")


class BatchInDims(PrincipleRule):
    """The batch range is written as a condition on dims.

    ``batch`` is a range that lists, overlaps and prompts can sort by; ``num_tokens <= 8`` under ``dims`` says the
    same and is not seen by them.
    """

    code = "AC128"
    bad = (block(when='{dims: ["num_tokens <= 8"]}'),)
    good = (block(when='{batch: {max: 8}, dims: ["num_tokens * width <= 65536"]}'),)

    def check(self, block: Principle, subject: Subject) -> Iterator[Hit]:
        for i, condition in enumerate(block.when.dims):
            if condition.names == {"num_tokens"} and "%" not in condition.text:
                yield subject.hit(
                    ("when", "dims", i), f"'{condition}' is a batch range", "write batch: {min: …, max: …}"
                )
