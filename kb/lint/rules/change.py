"""AC401 to AC408: what may not happen between the base revision and this one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kb.contract import Contract
from kb.diagnostic import Severity
from kb.digest import meaning_digest
from kb.library import Entry
from kb.lint.example import block, change, contract
from kb.lint.rule import ChangeRule, Hit, Revision
from kb.principle import Principle

_ORDER = {"draft": 0, "accepted": 1, "superseded": 2, "retired": 2}
_CLAIM = "Let neighbouring lanes read neighbouring 4-byte pieces of one weight row."


def _pairs(revision: Revision) -> Iterator[tuple[Entry, Principle | Contract, Principle | Contract]]:
    """Entries of both revisions: the file now, the model before and the model now."""
    for entry in revision.head.entries:
        model = entry.model
        if isinstance(model, Principle) and (before := revision.base.principles.get(model.id)) is not None:
            yield entry, before, model
        elif isinstance(model, Contract) and (old := revision.base.contracts.get(model.id)) is not None:
            yield entry, old, model


class MeaningWithoutBump(ChangeRule):
    """A principle's meaning changed and its version did not.

    Manifests name the version a kernel was made from. Kind, patterns, conditions, claim, reason, effect and
    ``retry_when`` are the meaning; layout, punctuation and case of prose are not.
    """

    code = "AC401"
    bad = (change(block(), block(claim=_CLAIM)), change(block(), block(when="{target: [cuda], batch: {max: 8}}")))
    good = (
        change(block(), block(claim=_CLAIM, version="2")),
        change(block(), block(title="Read weights with wide loads, always")),
    )

    def check(self, revision: Revision) -> Iterator[tuple[str, Hit]]:
        for entry, before, now in _pairs(revision):
            if isinstance(now, Principle) and before.version == now.version:
                if meaning_digest(before) == meaning_digest(now):
                    continue
                yield (
                    entry.path,
                    Hit(
                        entry.document.place(("version",)),
                        f"the meaning changed, the version is still {now.version}",
                        f"version: {now.version + 1}",
                    ),
                )


class VersionWentWrong(ChangeRule):
    """A version went back, or leapt.

    Versions count changes of meaning one by one. A lower one names an older text, a leap leaves versions that never
    were.
    """

    code = "AC402"
    bad = (
        change(block(version="3"), block(version="2", claim=_CLAIM)),
        change(block(), block(version="3", claim=_CLAIM)),
    )
    good = (change(block(), block(version="2", claim=_CLAIM)),)

    def check(self, revision: Revision) -> Iterator[tuple[str, Hit]]:
        for entry, before, now in _pairs(revision):
            if now.version < before.version:
                message = f"the version went back from {before.version} to {now.version}"
            elif now.version > before.version + 1:
                message = f"the version leapt from {before.version} to {now.version}"
            else:
                continue
            yield entry.path, Hit(entry.document.place(("version",)), message, f"version: {before.version + 1}")


class ModifiedDoesNotFollow(ChangeRule):
    """``modified`` does not follow the content.

    It changes with the content, and only then: a reader sorts and trusts by it. Comments and layout are no content.
    """

    code = "AC403"
    _new_title = "Read weights with wide loads, always"
    bad = (
        change(
            block(created='"2026-01-10"', modified='"2026-01-10"'),
            block(created='"2026-01-10"', modified='"2026-01-10"', title=_new_title),
        ),
        change(block(created='"2026-01-10"', modified='"2026-01-10"'), block(created='"2026-01-10"')),
    )
    good = (
        change(block(created='"2026-01-10"', modified='"2026-01-10"'), block(created='"2026-01-10"', title=_new_title)),
    )

    def check(self, revision: Revision) -> Iterator[tuple[str, Hit]]:
        for entry, before, now in _pairs(revision):
            if not isinstance(before, Principle) or not isinstance(now, Principle):
                continue
            changed = before.model_copy(update={"modified": now.modified}) != now
            place = entry.document.place(("modified",))
            if now.modified < before.modified:
                yield (
                    entry.path,
                    Hit(place, f"'modified' went back from {before.modified}", f'modified: "{revision.today}"'),
                )
            elif changed and now.modified == before.modified and now.modified < revision.today:
                yield (
                    entry.path,
                    Hit(
                        place,
                        f"the content changed, 'modified' is still {now.modified}",
                        f'modified: "{revision.today}"',
                    ),
                )
            elif not changed and now.modified != before.modified:
                yield (
                    entry.path,
                    Hit(place, "'modified' changed, the content did not", f'modified: "{before.modified}"'),
                )


class IdRemoved(ChangeRule):
    """An entry was removed.

    Kernels, links and papers refer to it. An entry that no longer holds is retired or superseded and stays as a file.
    (A draft may go.)
    """

    code = "AC404"
    bad = (change(block(id="demo/other", title="Read activations once"), None),)
    good = (change(block(id="demo/other", title="Read activations once", status="draft"), None),)

    def check(self, revision: Revision) -> Iterator[tuple[str, Hit]]:
        sides: tuple[tuple[Mapping[str, Principle | Contract], Mapping[str, Principle | Contract]], ...] = (
            (revision.base.principles, revision.head.principles),
            (revision.base.contracts, revision.head.contracts),
        )
        present = {entry.path for entry in revision.head.entries}
        for before, now in sides:
            for name, model in before.items():
                path = next(e.path for e in revision.base.entries if e.model is model)
                # A file that is there and cannot be read has findings of its own.
                if name not in now and model.status.value != "draft" and path not in present:
                    yield (
                        path,
                        Hit((0, 0), f"'{name}' was removed", "keep the file; status: retired, with a status_reason"),
                    )


class ContractWithoutBump(ChangeRule):
    """What a contract asks of a kernel changed and its version did not.

    Admitted kernels were judged against the old text. Dims, tensors, scalars, semantics, dtypes, numerics, variants,
    baselines and the sweep count; titles and explanations do not.
    """

    code = "AC405"
    bad = (change(contract(), contract(semantics="out = round_T(x @ w^T), sums in T.")),)
    good = (
        change(contract(), contract(semantics="out = round_T(x @ w^T), sums in T.", version="2")),
        change(contract(), contract(summary="Some rows times one weight.")),
    )

    def check(self, revision: Revision) -> Iterator[tuple[str, Hit]]:
        from kb.diff.contract import contract_changes

        for entry, before, now in _pairs(revision):
            if not isinstance(before, Contract) or not isinstance(now, Contract) or before.version != now.version:
                continue
            if meaning_digest(before) != meaning_digest(now):
                what = next(
                    (f"{c.path} ({c.kind.value})" for c in contract_changes(before, now) if c.kind != "editorial"), ""
                )
                yield (
                    entry.path,
                    Hit(
                        entry.document.place(("version",)),
                        f"the contract changed, the version is still {now.version}: {what}",
                        f"version: {now.version + 1}",
                    ),
                )


class StatusWentBack(ChangeRule):
    """A status went back.

    draft → accepted → superseded or retired, never the other way: a retired block that is right again is a new block
    that says why.
    """

    code = "AC406"
    _retired = block(
        status="retired", status_reason="Compilers do this now", created='"2026-01-10"', modified='"2026-01-10"'
    )
    bad = (change(_retired, block(created='"2026-01-10"')),)
    good = (
        change(block(status="draft", created='"2026-01-10"', modified='"2026-01-10"'), block(created='"2026-01-10"')),
    )

    def check(self, revision: Revision) -> Iterator[tuple[str, Hit]]:
        for entry, before, now in _pairs(revision):
            old, new = before.status.value, now.status.value
            if _ORDER[new] < _ORDER[old] or (old == "retired" and new == "superseded"):
                place = entry.document.place(("status",))
                yield (
                    entry.path,
                    Hit(place, f"the status went back from {old} to {new}", "write a new block that says why"),
                )


class CreatedChanged(ChangeRule):
    """``created`` changed.

    The day an entry was made does not change. Work on it is ``modified``.
    """

    code = "AC407"
    bad = (change(block(created='"2026-01-10"', modified='"2026-01-10"'), block(created='"2026-02-10"')),)
    good = (change(block(), block()),)

    def check(self, revision: Revision) -> Iterator[tuple[str, Hit]]:
        for entry, before, now in _pairs(revision):
            if isinstance(before, Principle) and isinstance(now, Principle) and before.created != now.created:
                place = entry.document.place(("created",))
                yield entry.path, Hit(place, f"'created' was {before.created}", f'created: "{before.created}"')


class NeedlessBump(ChangeRule):
    """A version changed and the meaning did not.

    Kernels made from the older version look stale without reason, and are judged again for nothing.
    """

    code = "AC408"
    severity = Severity.WARNING
    bad = (change(block(created='"2026-01-10"', modified='"2026-01-10"'), block(created='"2026-01-10"', version="2")),)
    good = (change(block(), block(version="2", claim=_CLAIM)),)

    def check(self, revision: Revision) -> Iterator[tuple[str, Hit]]:
        for entry, before, now in _pairs(revision):
            if now.version == before.version + 1 and meaning_digest(before) == meaning_digest(now):
                place = entry.document.place(("version",))
                yield entry.path, Hit(place, "the version changed, the meaning did not", f"version: {before.version}")
