"""AC309, AC310, AC312 to AC315: what only shows when all entries are seen together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from datetime import date, timedelta

from kb.condition import When
from kb.diagnostic import Severity
from kb.lint.example import block, dead_end, together
from kb.lint.overlap import overlap
from kb.lint.rule import Hit, LibraryRule
from kb.lint.summary import Summary, View

DRAFT_DAYS = 180
# Two blocks speak of one subject when this share of the shorter title's content words agrees, and of the texts'.
_TITLE_SHARE = 0.6
_TEXT_SHARE = 0.5
_COMMON_WORDS = 3


class UnstatedContradiction(LibraryRule):
    """Two accepted blocks contradict each other and do not say so.

    One tells to do what the other is a dead end for, about the same subject, for a common pattern, under conditions
    that can hold at once. A prompt would carry both. Either narrow a ``when``, supersede one, or link them with
    ``related`` (*contradicts*, with a note that says which wins where). Subjects are compared by the content words of
    title and claim, so a pair worded very differently is not found.
    """

    code = "AC309"
    bad = (
        together(
            block(title="Stage the activations in shared memory"),
            dead_end(
                title="Do not stage the activations in shared memory",
                claim="Do not let lanes of one block read pieces of the weight row from shared memory again.",
            ),
        ),
    )
    good = (
        together(
            block(title="Stage the activations in shared memory", when="{batch: {min: 4}}"),
            dead_end(title="Do not stage the activations in shared memory", when="{batch: {max: 3}}"),
        ),
    )

    def check(self, view: View) -> Iterator[tuple[str, Hit]]:
        accepted = [s for s in view.principles.values() if s.is_accepted()]
        advice = [s for s in accepted if s.data["block"] != "dead_end"]
        by_word: defaultdict[str, list[int]] = defaultdict(list)
        for i, summary in enumerate(advice):
            for word in summary.data["title_words"]:
                by_word[word].append(i)
        for dead in accepted:
            if dead.data["block"] != "dead_end":
                continue
            # Titles with enough words in common share one that is not among the most common: the others need no look.
            words = sorted(dead.data["title_words"], key=lambda word: len(by_word.get(word, ())))
            rare = words[: max(0, len(words) - _COMMON_WORDS + 1)]
            for i in sorted({i for word in rare for i in by_word.get(word, ())}):
                other = advice[i]
                common = len(set(words) & set(other.data["title_words"]))
                if common >= _COMMON_WORDS and self._clash(dead, other, common):
                    message = f"speaks against '{other.id}' ({other.path}) under conditions that can hold at once"
                    yield dead.path, Hit(dead.place("title"), message, "say so with related, or narrow one 'when'")

    def _clash(self, a: Summary, b: Summary, common: int) -> bool:
        titles = min(len(a.data["title_words"]), len(b.data["title_words"]))
        words_a, words_b = set(a.data["words"]), set(b.data["words"])
        text = len(words_a & words_b) / max(1, min(len(words_a), len(words_b)))
        if common / titles < _TITLE_SHARE or text < _TEXT_SHARE:
            return False
        if any(t == b.id for t, _ in a.data["related"]) or any(t == a.id for t, _ in b.data["related"]):
            return False
        if not set(a.data["patterns"]) & set(b.data["patterns"]):
            return False
        return overlap(When.model_validate(a.data["when"]), When.model_validate(b.data["when"]))


class DuplicateTitle(LibraryRule):
    """Two entries have one title.

    In a list, a prompt or a search result they cannot be told apart; often one is a copy that was never finished.
    """

    code = "AC310"
    bad = (together(block(), block(id="demo/other")),)
    good = (together(block(), block(id="demo/other", title="Read activations once")),)

    def check(self, view: View) -> Iterator[tuple[str, Hit]]:
        seen: dict[tuple[str, str], Summary] = {}
        for summary in view.summaries:
            title = " ".join(str(summary.data["title"]).casefold().split())
            first = seen.setdefault((summary.kind, title), summary)
            if first is not summary and first.id != summary.id:
                yield (
                    summary.path,
                    Hit(summary.place("title"), f"'{first.id}' has the same title", "say what is different"),
                )


class OldDraft(LibraryRule):
    """A draft that nobody has touched for half a year.

    Knowledge that is neither accepted nor rejected helps nobody. Accept it, retire it with a reason, or go on with it.
    """

    code = "AC312"
    severity = Severity.WARNING
    bad = (block(status="draft", created='"2025-01-10"', modified='"2025-01-10"'),)
    good = (block(status="draft"),)

    def check(self, view: View) -> Iterator[tuple[str, Hit]]:
        for summary in view.principles.values():
            modified = date.fromisoformat(summary.data["modified"])
            if summary.data["status"] == "draft" and view.today - modified > timedelta(days=DRAFT_DAYS):
                message = f"a draft, last modified on {modified}"
                yield summary.path, Hit(summary.place("status"), message, "accept it, retire it, or go on with it")


class MissingRecord(LibraryRule):
    """Evidence links to a benchmark record that is not there.

    Without the record a number cannot be checked or measured again. (Not asked where the library is installed without
    ``bench/results/``.)
    """

    code = "AC313"
    _evidence = """
  - kind: measured
    what: The whole row against its wide part.
    hardware: NVIDIA H200
    software: torch 2.11
    measured_on: "2026-11-30"
    value: {number: 1.4, unit: ratio}
    record: bench/results/rows.md"""
    bad = (together(block(evidence=_evidence), beside=("bench/results/columns.md",)),)
    good = (together(block(evidence=_evidence), beside=("bench/results/rows.md",)),)

    def check(self, view: View) -> Iterator[tuple[str, Hit]]:
        for summary in view.principles.values():
            for i, evidence in enumerate(summary.data["evidence"]):
                record = evidence.get("record")
                if record is not None and view.exists(record) is False:
                    yield (
                        summary.path,
                        Hit(summary.place("evidence", i, "record"), f"there is no file {record}", "add the record"),
                    )


class MissingKernel(LibraryRule):
    """Evidence links to a kernel that is not in the store.

    The digest is the only way back to what was measured. (Not asked where there is no store.)
    """

    code = "AC314"
    _evidence = MissingRecord._evidence.replace("record: bench/results/rows.md", f"kernel: {'ab' * 32}")
    bad = (together(block(evidence=_evidence), beside=(f"kernels/gemv/cuda/{'cd' * 32}",)),)
    good = (together(block(evidence=_evidence), beside=(f"kernels/gemv/cuda/{'ab' * 32}",)),)

    def check(self, view: View) -> Iterator[tuple[str, Hit]]:
        for summary in view.principles.values():
            for i, evidence in enumerate(summary.data["evidence"]):
                kernel = evidence.get("kernel")
                if kernel is not None and view.exists(f"kernels/*/*/{kernel}") is False:
                    message = f"there is no kernel {kernel[:12]}… in the store"
                    yield (
                        summary.path,
                        Hit(summary.place("evidence", i, "kernel"), message, "admit it first, or link a record"),
                    )


class DateInTheFuture(LibraryRule):
    """A date that has not come yet.

    Nothing was created, modified or measured tomorrow. (One day is allowed for, because of time zones.)
    """

    code = "AC315"
    bad = (block(modified='"2031-01-01"'),)
    good = (block(),)

    def check(self, view: View) -> Iterator[tuple[str, Hit]]:
        latest = (view.today + timedelta(days=1)).isoformat()
        for summary in view.principles.values():
            dates = [(("created",), summary.data["created"]), (("modified",), summary.data["modified"])]
            dates += [
                (("evidence", i, "measured_on"), e["measured_on"])  # type: ignore[misc]
                for i, e in enumerate(summary.data["evidence"])
                if "measured_on" in e
            ]
            for path, day in dates:
                if day > latest:
                    yield summary.path, Hit(summary.place(*path), f"{day} is in the future", "use the day it happened")
