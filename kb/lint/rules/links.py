"""AC301 to AC308, AC311 and AC316: ids, links and what they lead to."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping

from kb.condition import When
from kb.diagnostic import Severity
from kb.lint.example import at, block, contract, raw, together
from kb.lint.overlap import overlap
from kb.lint.rule import EngineRule, Hit, LibraryRule
from kb.lint.summary import Summary, View, rightful_first

_OTHER = {"id": "demo/other", "title": "Read activations once"}


class DuplicateId(LibraryRule):
    """Two files hold one id.

    Only one of them is used. An id is never reused, not even after its entry was retired.
    """

    code = "AC301"
    companions = ("AC108",)
    bad = (together(block(title="A second one"), at("principles/demo/copy.yaml", block())),)
    good = (block(id="demo/other", title="A second one"),)

    def check(self, view: View) -> Iterator[tuple[str, Hit]]:
        seen: dict[tuple[str, str], str] = {}
        for summary in rightful_first(view.summaries):
            first = seen.setdefault((summary.kind, summary.id), summary.path)
            if first != summary.path:
                yield (
                    summary.path,
                    Hit(summary.place("id"), f"the id '{summary.id}' is used in {first}", "choose another id"),
                )


class MisplacedFile(EngineRule):
    """A file that nothing loads.

    Entries are ``principles/<family>/<slug>.yaml`` and ``contracts/<id>.yaml``. A file under another name or one folder
    too high or too deep would be reviewed, merged and never used.
    """

    code = "AC302"
    bad = (
        raw("id: x\n", path="principles/demo/other.yml"),
        raw("id: x\n", path="principles/other.yaml"),
        raw("id: x\n", path="contracts/demo/gemv.yaml"),
    )
    good = (together(block(), raw("# Notes\n", path="principles/README.md")),)


class DanglingLink(LibraryRule):
    """A link to a block that does not exist.

    Ids stay forever: superseded and retired blocks remain as files, so a link that leads nowhere is a mistake.
    """

    code = "AC303"
    bad = (
        block(related="[{id: demo/narrow-loads, relation: refines}]"),
        block(supersedes="[demo/gone]"),
        block(status="superseded", status_reason="Replaced", superseded_by="demo/wide-load"),
    )
    good = (together(block(related="[{id: demo/other, relation: refines}]"), block(**_OTHER)),)

    def check(self, view: View) -> Iterator[tuple[str, Hit]]:
        for summary in view.summaries:
            for path, target in _links(summary):
                if target not in view.principles and target not in view.broken:
                    close = difflib.get_close_matches(target, view.principles, n=1, cutoff=0.8)
                    fix = f"did you mean '{close[0]}'?" if close else "name a block that exists"
                    yield summary.path, Hit(summary.place(*path), f"there is no block '{target}'", fix)


class UnknownPattern(LibraryRule):
    """A pattern that is no contract.

    A block speaks to contracts by id. One that names none that exist is never rendered. A retired contract is no
    pattern for an accepted block either.
    """

    code = "AC304"
    bad = (
        block(patterns="[gemv, gemm]"),
        together(contract(status="retired"), block()),
    )
    good = (block(),)

    def check(self, view: View) -> Iterator[tuple[str, Hit]]:
        for summary in view.summaries:
            for i, pattern in enumerate(summary.data.get("patterns", ())):
                found = view.contracts.get(pattern)
                place = summary.place("patterns", i)
                if found is None and pattern not in view.broken:
                    close = difflib.get_close_matches(pattern, view.contracts, n=1, cutoff=0.7)
                    fix = f"did you mean '{close[0]}'?" if close else "name a contract that exists"
                    yield summary.path, Hit(place, f"there is no contract '{pattern}'", fix)
                elif found is not None and summary.is_accepted() and found.data["status"] in ("retired", "superseded"):
                    status = found.data["status"]
                    yield summary.path, Hit(place, f"the contract '{pattern}' is {status}", "remove it from patterns")


class UndeclaredDim(LibraryRule):
    """A condition on a dim that a pattern does not have.

    Every pattern of a block must declare the dims its conditions read; for the one that does not, the condition is
    never decided and the block is neither used nor dropped.
    """

    code = "AC305"
    bad = (block(when='{dims: ["depth > 4"]}'),)
    good = (block(when='{dims: ["width > 4"]}'),)

    def check(self, view: View) -> Iterator[tuple[str, Hit]]:
        for summary in view.summaries:
            for i, (text, names) in enumerate(summary.data.get("dims", ()) if summary.kind == "principle" else ()):
                for pattern in summary.data["patterns"]:
                    declared = view.contracts.get(pattern)
                    missing = [n for n in names if declared is not None and n not in declared.data["dims"]]
                    if missing:
                        message = f"'{text}' reads '{missing[0]}', which is no dim of '{pattern}'"
                        yield (
                            summary.path,
                            Hit(summary.place("when", "dims", i), message, "drop the pattern or the condition"),
                        )
                        break


class LinkCycle(LibraryRule):
    """Superseding, requiring or refining goes round in a circle.

    Two blocks that supersede each other leave none that is valid; two that require each other are one block.
    """

    code = "AC306"
    bad = (
        together(
            block(related="[{id: demo/other, relation: requires}]"),
            block(**_OTHER, related="[{id: demo/wide-loads, relation: requires}]"),
        ),
    )
    good = (
        together(
            block(related="[{id: demo/other, relation: requires}]"),
            block(**_OTHER, related="[{id: demo/wide-loads, relation: alternative}]"),
        ),
    )

    def check(self, view: View) -> Iterator[tuple[str, Hit]]:
        for relation in ("supersedes", "requires", "refines"):
            edges = {name: _edges(s, relation) for name, s in view.principles.items()}
            for cycle in _cycles(edges):
                summary = view.principles[cycle[0]]
                path = edges[cycle[0]][cycle[1 % len(cycle)]]
                shown = " → ".join([*cycle, cycle[0]])
                yield (
                    summary.path,
                    Hit(summary.place(*path), f"'{relation}' goes round in a circle: {shown}", "remove one link"),
                )


class OneSidedSuperseding(LibraryRule):
    """Superseding that only one side knows of.

    The new block says ``supersedes``, the old one ``status: superseded`` and ``superseded_by``. If one is missing,
    the old block is still rendered, or a reader of it does not find the new one.
    """

    code = "AC307"
    bad = (
        together(block(supersedes="[demo/other]"), block(**_OTHER)),
        together(
            block(), block(**_OTHER, status="superseded", status_reason="Replaced", superseded_by="demo/wide-loads")
        ),
    )
    good = (
        together(
            block(supersedes="[demo/other]"),
            block(**_OTHER, status="superseded", status_reason="Replaced", superseded_by="demo/wide-loads"),
        ),
    )

    def check(self, view: View) -> Iterator[tuple[str, Hit]]:
        for summary in view.principles.values():
            for i, old in enumerate(summary.data["supersedes"]):
                before = view.principles.get(old)
                if before is not None and before.data["superseded_by"] != summary.id and before.id != summary.id:
                    message = f"'{old}' does not say superseded_by: {summary.id}"
                    yield (
                        summary.path,
                        Hit(summary.place("supersedes", i), message, f"set it and its status in {before.path}"),
                    )
            new = summary.data["superseded_by"]
            after = view.principles.get(new) if new else None
            if after is not None and summary.id not in after.data["supersedes"]:
                message = f"'{new}' does not say supersedes: [{summary.id}]"
                yield summary.path, Hit(summary.place("superseded_by"), message, f"add it in {after.path}")


class OneSidedRelation(LibraryRule):
    """Two blocks disagree about how they are related.

    *Contradicts* holds both ways, and a reader of either block must learn of it, so both say it. Where one says
    *requires* and the other *contradicts*, one of them is wrong. (Other inverses are shown by the site and by
    ``show``.)
    """

    code = "AC308"
    bad = (together(block(related="[{id: demo/other, relation: contradicts}]"), block(**_OTHER)),)
    good = (
        together(
            block(related="[{id: demo/other, relation: contradicts}]"),
            block(**_OTHER, related="[{id: demo/wide-loads, relation: contradicts}]"),
        ),
    )

    def check(self, view: View) -> Iterator[tuple[str, Hit]]:
        for summary in view.principles.values():
            for i, (target, relation) in enumerate(summary.data["related"]):
                other = view.principles.get(target)
                if other is None or other.id == summary.id or relation != "contradicts":
                    continue
                back = {r for t, r in other.data["related"] if t == summary.id}
                place = summary.place("related", i, "id")
                if back - {"contradicts"}:
                    said = sorted(back - {"contradicts"})[0]
                    yield (
                        summary.path,
                        Hit(place, f"this contradicts '{target}', which says {said}", "make both say the same"),
                    )
                elif not back:
                    fix = f"add {{id: {summary.id}, relation: contradicts}} to related in {other.path}"
                    yield summary.path, Hit(place, f"'{target}' does not say that it contradicts this block", fix)


class LinkToInvalid(LibraryRule):
    """An accepted block requires or refines one that is not valid.

    A draft may still change, a superseded or retired block no longer holds; what builds on it stands on nothing.
    """

    code = "AC311"
    bad = (together(block(related="[{id: demo/other, relation: requires}]"), block(**_OTHER, status="draft")),)
    good = (together(block(related="[{id: demo/other, relation: alternative}]"), block(**_OTHER, status="draft")),)

    def check(self, view: View) -> Iterator[tuple[str, Hit]]:
        for summary in view.principles.values():
            for i, (target, relation) in enumerate(summary.data["related"]):
                other = view.principles.get(target)
                if other is None or not summary.is_accepted() or other.is_accepted():
                    continue
                if relation in ("requires", "refines"):
                    message = f"this {relation} '{target}', which is {other.data['status']}"
                    yield (
                        summary.path,
                        Hit(summary.place("related", i, "id"), message, "link to a block that is accepted"),
                    )


class ContradictionNeverMet(LibraryRule):
    """Two blocks contradict each other under conditions that never meet.

    Where no situation satisfies both, there is nothing to contradict: each holds where it holds. Use *alternative*, or
    correct the conditions.
    """

    code = "AC316"
    severity = Severity.WARNING
    bad = (
        together(
            block(when="{target: [cuda]}", related="[{id: demo/other, relation: contradicts}]"),
            block(**_OTHER, when="{target: [cpu]}", related="[{id: demo/wide-loads, relation: contradicts}]"),
        ),
    )
    good = (
        together(
            block(when="{target: [cuda]}", related="[{id: demo/other, relation: contradicts}]"),
            block(**_OTHER, when="{}", related="[{id: demo/wide-loads, relation: contradicts}]"),
        ),
    )

    def check(self, view: View) -> Iterator[tuple[str, Hit]]:
        for summary in view.principles.values():
            for i, (target, relation) in enumerate(summary.data["related"]):
                other = view.principles.get(target)
                if relation != "contradicts" or other is None or other.id <= summary.id:
                    continue
                if not overlap(_when(summary), _when(other)):
                    message = f"contradicts '{target}', but no situation satisfies the conditions of both"
                    yield summary.path, Hit(summary.place("related", i, "id"), message, "relation: alternative")


def _when(summary: Summary) -> When:
    return When.model_validate(summary.data["when"])


def _links(summary: Summary) -> Iterator[tuple[tuple[str | int, ...], str]]:
    for i, (target, _) in enumerate(summary.data.get("related", ())):
        yield ("related", i, "id"), target
    for i, target in enumerate(summary.data.get("supersedes", ())):
        yield ("supersedes", i), target
    if target := summary.data.get("superseded_by"):
        yield ("superseded_by",), target


def _edges(summary: Summary, relation: str) -> dict[str, tuple[str | int, ...]]:
    """Targets of one relation, with where each stands."""
    if relation == "supersedes":
        return {target: ("supersedes", i) for i, target in enumerate(summary.data["supersedes"])}
    return {t: ("related", i, "id") for i, (t, r) in enumerate(summary.data["related"]) if r == relation}


def _cycles(edges: Mapping[str, Mapping[str, object]]) -> Iterator[list[str]]:
    """Each cycle once, starting at its smallest name. Self-links are another rule's."""
    done: set[str] = set()
    for start in sorted(edges):
        if start in done or not edges[start]:
            continue
        path: list[str] = []
        on_path: dict[str, int] = {}
        stack: list[tuple[str, Iterator[str]]] = [("", iter([start]))]
        while stack:
            following = next(stack[-1][1], None)
            if following is None:
                name, _ = stack.pop()
                if name:
                    done.add(name)
                    on_path.pop(path.pop())
                continue
            if following in on_path:
                cycle = path[on_path[following] :]
                if len(cycle) > 1:
                    first = cycle.index(min(cycle))
                    yield [*cycle[first:], *cycle[:first]]
            elif following not in done and following in edges:
                on_path[following] = len(path)
                path.append(following)
                stack.append((following, iter(edges[following])))
