"""All rules, by code."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import TypeVar

from kb.cli.failure import Failure
from kb.lint.rule import Rule
from kb.lint.rules import (
    change,
    contract,
    entry,
    evidence,
    library,
    links,
    principle,
    schema,
    waivers,
    yaml_syntax,
    yaml_text,
)

R = TypeVar("R", bound=Rule)
_MODULES = (yaml_text, yaml_syntax, waivers, schema, entry, evidence, principle, contract, links, library, change)


@lru_cache(maxsize=1)
def rules() -> tuple[Rule, ...]:
    """One instance of every rule, sorted by code."""
    return tuple(sorted(_instances(), key=lambda rule: rule.code))


@lru_cache(maxsize=8)
def rules_of(kind: type[R]) -> tuple[R, ...]:
    """The rules of one sort, sorted by code."""
    return tuple(rule for rule in rules() if isinstance(rule, kind))


@lru_cache(maxsize=1)
def by_code() -> dict[str, Rule]:
    """Rules by code."""
    return {rule.code: rule for rule in rules()}


def rule(code: str) -> Rule:
    """The rule with this code. Raises Failure."""
    found = by_code().get(code.upper())
    if found is None:
        raise Failure(f"{code}: no such rule; 'agentcompile check --rules' lists them")
    return found


def chosen(select: Iterable[str], ignore: Iterable[str]) -> frozenset[str]:
    """Codes that start with a selected prefix (all, where none is given) and with no ignored one. Raises Failure."""
    select, ignore = tuple(select), tuple(ignore)
    for prefix in (*select, *ignore):
        if not any(code.startswith(prefix.upper()) for code in by_code()):
            raise Failure(f"{prefix}: no rule starts with it; 'agentcompile check --rules' lists them")
    return frozenset(
        code
        for code in by_code()
        if (not select or any(code.startswith(p.upper()) for p in select))
        and not any(code.startswith(p.upper()) for p in ignore)
    )


def _instances() -> Iterator[Rule]:
    for module in _MODULES:
        for value in vars(module).values():
            if isinstance(value, type) and issubclass(value, Rule) and value.__module__ == module.__name__:
                yield value()
