"""Values a command needs: from flags, else asked for in a terminal, else one error that names every missing flag."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import typer

from kb.cli.failure import Failure
from kb.yaml.source import forbidden_characters

Answer = str | list[str]


@dataclass(frozen=True, slots=True)
class Question:
    """What a flag gives, or a prompt asks for.

    ``many``: several values, separated by commas at the prompt. ``check`` raises ValueError on a bad answer.
    An ``optional`` one is never asked for.
    """

    flag: str
    text: str
    many: bool = False
    optional: bool = False
    default: str | None = None
    check: Callable[[str], object] | None = None


def answers(questions: Sequence[Question], given: Mapping[str, Answer | None]) -> dict[str, Answer]:
    """One answer a question, by flag; "" for an optional one that was not given.

    Raises Failure for a bad value, for a flag that no question takes, and without a terminal for what is missing.
    """
    known = {q.flag for q in questions}
    alien = [flag for flag, value in given.items() if value and flag not in known]
    if alien:
        raise Failure(f"{', '.join(alien)}: not for this sort of entry")
    for question in questions:
        for value in _listed(given.get(question.flag)):
            if (problem := _problem(question, value)) is not None:
                raise Failure(f"{question.flag}: {problem}")
    missing = [q.flag for q in questions if not (given.get(q.flag) or q.optional or q.default)]
    if missing and not sys.stdin.isatty():
        raise Failure(f"missing: {', '.join(missing)} (in a terminal they are asked for)")
    return {q.flag: given.get(q.flag) or _ask(q) for q in questions}


def _ask(question: Question) -> Answer:
    if question.optional or not sys.stdin.isatty():
        return question.default or ""
    while True:
        typed = str(typer.prompt(question.text, default=question.default)).strip()
        values = [v.strip() for v in typed.split(",") if v.strip()] if question.many else _listed(typed)
        problems = [p for v in values if (p := _problem(question, v)) is not None]
        if values and not problems:
            return values if question.many else values[0]
        typer.echo(f"  {problems[0] if problems else 'something is needed here'}", err=True)


def _listed(value: Answer | None) -> list[str]:
    if not value:
        return []
    return [value] if isinstance(value, str) else list(value)


def _problem(question: Question, value: str) -> str | None:
    invisible = forbidden_characters(" ".join(value.split()))
    if invisible:
        return invisible[0].message
    try:
        if question.check is not None:
            question.check(value)
    except ValueError as error:
        return str(error)
    return None
