"""What a rule is: one class that holds its code, its documentation, its examples and its check.

The docstring is the documentation page and the examples are the tests, so neither can say something the code
does not do.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from typing import ClassVar

from kb.contract import Contract
from kb.diagnostic import Diagnostic, Severity
from kb.library import Entry, Library
from kb.lint.example import Example
from kb.lint.summary import View
from kb.principle import Principle
from kb.yaml import Document
from kb.yaml.document import Path

Place = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Hit:
    """One place where a rule is broken. The engine adds path, code and severity."""

    place: Place
    message: str
    fix: str = ""


class Rule:
    """A rule. The first line of the docstring is the title; the rest says what it holds, why, and what to do."""

    code: ClassVar[str]
    severity: ClassVar[Severity] = Severity.ERROR
    # A file that cannot be read as an entry cannot be excused.
    waivable: ClassVar[bool] = True
    # Codes that are broken along with this one in its examples.
    companions: ClassVar[tuple[str, ...]] = ()
    bad: ClassVar[tuple[Example, ...]]
    good: ClassVar[tuple[Example, ...]]

    @property
    def title(self) -> str:
        return (inspect.getdoc(type(self)) or "").split("\n", 1)[0].rstrip(".")

    @property
    def body(self) -> str:
        return (inspect.getdoc(type(self)) or "").split("\n", 1)[-1].strip()

    @property
    def name(self) -> str:
        """``DeadEndWithoutNumber`` is ``dead-end-without-number``."""
        name = type(self).__name__
        return "".join(f"-{c.lower()}" if c.isupper() else c for c in name).removeprefix("-")


class LoaderRule(Rule):
    """Found while the file is read (kb.yaml); the class documents it."""

    waivable = False


class EngineRule(Rule):
    """Found by the engine itself: files out of place, waivers that excuse nothing."""

    waivable = False


@dataclass(frozen=True, slots=True)
class Subject:
    """The entry a rule looks at, with where its parts stand."""

    entry: Entry

    @property
    def document(self) -> Document:
        return self.entry.document

    def hit(self, path: Path, message: str, fix: str = "", *, key: bool = False) -> Hit:
        """A finding at the value at ``path``, or at its key."""
        return Hit(self.document.place(path, key=key), message, fix)

    def hit_in(self, path: Path, needle: str, index: int, message: str, fix: str = "") -> Hit:
        """A finding at ``needle``, which starts at ``index`` of the text at ``path``."""
        return Hit(self.document.place_in_text(path, needle, index), message, fix)


class EntryRule(Rule, ABC):
    """Looks at one readable entry of either kind."""

    @abstractmethod
    def check(self, subject: Subject) -> Iterator[Hit]:
        """Every place in the entry where the rule is broken."""


class PrincipleRule(Rule, ABC):
    """Looks at one readable principle."""

    @abstractmethod
    def check(self, block: Principle, subject: Subject) -> Iterator[Hit]:
        """Every place in the block where the rule is broken."""


class ContractRule(Rule, ABC):
    """Looks at one readable contract."""

    @abstractmethod
    def check(self, contract: Contract, subject: Subject) -> Iterator[Hit]:
        """Every place in the contract where the rule is broken."""


class LibraryRule(Rule, ABC):
    """Looks at all readable entries together, as summaries, so that unchanged files need not be read again."""

    @abstractmethod
    def check(self, view: View) -> Iterator[tuple[str, Hit]]:
        """Paths and places where the rule is broken."""


@dataclass(frozen=True, slots=True)
class Revision:
    """A library and the revision it is based on."""

    base: Library
    head: Library
    today: date


class ChangeRule(Rule, ABC):
    """Compares a library with the revision it is based on. Such a finding belongs to a change, so no file waives it."""

    waivable = False

    @abstractmethod
    def check(self, revision: Revision) -> Iterator[tuple[str, Hit]]:
        """Paths in ``head`` and places where the rule is broken."""


def diagnostic(rule: Rule, path: str, hit: Hit) -> Diagnostic:
    """A hit as a finding."""
    return Diagnostic(path, *hit.place, rule.code, hit.message, rule.severity, hit.fix)
