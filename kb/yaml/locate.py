"""From a pydantic error to the node that caused it, in words an author can act on.

``loc`` mixes path steps with names of types and validators, and a model's own validator reports the whole model.
So the path is walked as far as it leads, and what a validator says is searched for the field it talks about.
"""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Iterable, Iterator
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from kb.expr import ExprError
from kb.yaml.document import Document, Node, Step
from kb.yaml.source import Problem

Loc = tuple[Step, ...]


def locate(document: Document, error: ValidationError, model: type[BaseModel]) -> list[Problem]:
    """One problem for each thing that is wrong, in file order, with the offset of the offending node."""
    known = _field_names(model)
    relevant = list(_relevant(document, error))
    mistyped = {
        (*details["loc"][:-1], meant)
        for details in relevant
        if details["type"] == "extra_forbidden" and (meant := _meant(str(details["loc"][-1]), known))
    }
    unique = dict.fromkeys(
        _problem(document, details, known)
        for details in relevant
        if not (details["type"] == "missing" and details["loc"] in mistyped)
    )
    return sorted(unique, key=lambda p: (p.offset or 0, p.code, p.message))


def _relevant(document: Document, error: ValidationError) -> Iterator[ErrorDetails]:
    """Errors without the branches of a union that the author did not mean."""
    unions: dict[Loc, list[tuple[str, ErrorDetails]]] = {}
    for details in error.errors(include_url=False):
        if details["type"] == "too_short" and len(document.at(details["loc"]) or ()) >= details["ctx"]["min_length"]:
            continue  # pydantic counts the entries that are valid; those that are not are reported themselves
        prefix, branch = _union(document, details["loc"], details["type"])
        if branch is None:
            yield details
        else:
            unions.setdefault(prefix, []).append((branch, details))
    for prefix, branches in unions.items():
        if isinstance(document.at(prefix), dict):
            yield from (d for branch, d in branches if not branch.startswith("literal["))
        else:
            literal = [d for branch, d in branches if branch.startswith("literal[")]
            yield (literal or [d for _, d in branches])[0]


def _union(document: Document, loc: Loc, kind: str) -> tuple[Loc, str | None]:
    """The path of the union an error is inside of, and the branch's name; (loc, None) when there is none."""
    node = document.root
    for index, step in enumerate(loc):
        below = node.child(step) if node is not None else None
        if below is None:
            last = index == len(loc) - 1
            if step == "[key]" or (last and kind in ("missing", "extra_forbidden")):
                return loc, None
            return loc[:index], str(step)
        node = below
    return loc, None


def _problem(document: Document, details: ErrorDetails, known: frozenset[str]) -> Problem:
    kind, loc = details["type"], details["loc"]
    node, path = document.nearest(loc)
    offset = node.start if node is not None else 0
    name = str(loc[-1]) if loc else ""
    if kind == "missing":
        if node is not None and node.key is not None and node.style == "map":
            offset = node.key[0]  # a block mapping is best shown by its name
        where = f" in '{_show(path)}'" if path else ""
        return Problem("AC102", offset, f"the field '{name}' is missing{where}")
    if kind == "extra_forbidden":
        meant = _meant(name, known)
        at = node.key[0] if node is not None and node.key is not None else offset
        return Problem("AC101", at, f"unknown field '{name[:60]}'", f"did you mean '{meant}'?" if meant else "")
    if loc and loc[-1] == "[key]" and node is not None and node.key is not None:
        return _pattern(str(path[-1]), node.key[0], details)
    if kind == "string_pattern_mismatch":
        return _pattern(str(details["input"]), offset, details)
    if kind == "value_error":
        return _value_error(document, details, node, path, offset)
    if kind == "string_type" and isinstance(details["input"], int | float | bool) and node is not None:
        written = document.text[node.start : node.end]
        return Problem(
            "AC104",
            offset,
            f"'{_label(path)}' is text, {written} is read as {_noun(details['input'])}",
            f'quote it: "{written}"',
        )
    return Problem("AC103", offset, f"{_label(path)}: {_say(details)}")


def _meant(name: str, known: Iterable[str]) -> str | None:
    return next(iter(difflib.get_close_matches(name, known, n=1, cutoff=0.75)), None)


def _value_error(document: Document, details: ErrorDetails, node: Node | None, path: Loc, offset: int) -> Problem:
    cause = details.get("ctx", {}).get("error")
    message = str(cause) if cause is not None else details["msg"].removeprefix("Value error, ")
    if isinstance(cause, ExprError):
        return Problem("AC107", offset, message)
    if message.startswith("there is no day"):
        return Problem("AC023", offset, message, "use a day of the calendar, YYYY-MM-DD")
    if node is not None and node.fields is not None:
        at = _pointed_at(document, node, path, message)
        return Problem("AC106", at, message)
    return Problem("AC103", offset, f"{_label(path)}: {message}")


# A validator that misses a field can only be shown at the field that made it necessary.
_ASKED_BY = (("dead end needs", "kind"), ("evidence needs", "kind"), ("block needs", "status"))


def _pointed_at(document: Document, node: Node, path: Loc, message: str) -> int:
    """Offset of what a model's own validator talks about: a dotted path, a named field, else the model itself."""
    if dotted := re.match(r"[a-z_]+(?:\.[a-z0-9_-]+)+", message):
        return _walk_names(document, node, path, dotted.group().split(".")).start
    for needle, field in _ASKED_BY:
        if needle in message and (asker := node.child(field)) is not None:
            return asker.start
    if twice := re.match(r"the name '([a-z0-9_]+)' is used twice", message):
        return _last_named(document, node, twice[1])
    for word in re.findall(r"[a-z_]+", message):
        named = node.child(word)
        if named is not None:
            return named.start
    return node.start


def _walk_names(document: Document, node: Node, path: Loc, names: Iterable[str]) -> Node:
    """Follow names; in a list a name is an index or the ``name``/``id`` of an entry."""
    for name in names:
        step: Step = name
        if node.items is not None:
            entries = document.at(path) or []
            matching = (
                i for i, e in enumerate(entries) if isinstance(e, dict) and name in (e.get("name"), e.get("id"))
            )
            step = int(name) if name.isdigit() else next(matching, -1)
        below = node.child(step)
        if below is None:
            return node
        node, path = below, (*path, step)
    return node


def _last_named(document: Document, node: Node, name: str) -> int:
    places = [node.start]
    for group in ("tensors", "scalars"):
        for index, entry in enumerate(document.at((group,)) or []):
            if isinstance(entry, dict) and entry.get("name") == name:
                places.append(document.nearest((group, index, "name"))[0].start)  # type: ignore[union-attr]
    dims = document.at(("dims",))
    if isinstance(dims, dict) and name in dims and len(places) < 3:
        key = document.nearest(("dims", name))[0].key  # type: ignore[union-attr]
        places.append(key[0] if key else node.start)
    return max(places)


_PATTERNS = {
    "^[a-z0-9]+(-[a-z0-9]+)*/[a-z0-9]+(-[a-z0-9]+)*$": "a principle id is family/slug",
    "^[a-z0-9]+(-[a-z0-9]+)*$": "a slug is words of a-z and 0-9 joined by '-'",
    "^[a-z][a-z0-9]*(_[a-z0-9]+)*$": "a contract id is words of a-z and 0-9 joined by '_'",
    "^[a-z][a-z0-9_]*$": "a name starts with a-z and goes on with a-z, 0-9 and '_'",
    "^[0-9a-f]{64}$": "a digest is 64 hexadecimal digits",
}


def _pattern(value: str, offset: int, details: ErrorDetails) -> Problem:
    pattern = str(details.get("ctx", {}).get("pattern", ""))
    if pattern == r"^[^\n]+$":
        return Problem("AC103", offset, f"{_label(details['loc'])}: one line of text is needed", "join the lines")
    if pattern.startswith("^(sm_"):
        return Problem("AC103", offset, f"'{value[:40]}' is no architecture", "such as sm_90, x86_64, aarch64")
    expected = _PATTERNS.get(pattern, f"it must match {pattern}" if pattern else str(details["msg"]))
    for char in value:
        if not char.isascii():
            name = f"U+{ord(char):04X} {unicodedata.name(char, '')}".rstrip()
            return Problem("AC105", offset, f"'{value[:60]}' holds the non-ASCII character {name}", expected)
    return Problem("AC105", offset, f"'{value[:60]}' is malformed", expected)


def _say(details: ErrorDetails) -> str:
    """Pydantic's message in our words."""
    kind, value, context = details["type"], details["input"], details.get("ctx", {})
    shown = _noun(value) if isinstance(value, dict | list) else _written(value)
    match kind:
        case "literal_error" | "enum":
            expected = str(context["expected"]).replace(" or ", ", ")
            return f"{shown} is not {expected}" if "," not in expected else f"{shown} is none of {expected}"
        case "string_type":
            return f"text is needed, this is {_noun(value)}"
        case "int_type" | "int_from_float":
            return f"a whole number is needed, this is {shown}"
        case "float_type" | "float_parsing":
            return f"a number is needed, this is {shown}"
        case "bool_type":
            return f"true or false is needed, this is {shown}"
        case "tuple_type" | "list_type":
            return f"a list is needed, this is {_noun(value)}"
        case "dict_type" | "model_type" | "model_attributes_type":
            return f"a mapping of fields is needed, this is {_noun(value)}"
        case "string_too_long":
            return f"{len(str(value))} characters; {context['max_length']} at most"
        case "string_too_short":
            return "the text is empty"
        case "too_short":
            return f"at least {context['min_length']} needed, {context['actual_length']} given"
        case "greater_than_equal" | "greater_than" | "less_than_equal" | "less_than":
            bound = next(iter(context.values()))
            sign = {"greater_than_equal": "at least", "greater_than": "above", "less_than_equal": "at most"}
            return f"{shown} given; {sign.get(kind, 'below')} {bound} is needed"
        case _:
            return details["msg"][:1].lower() + details["msg"][1:]


def _noun(value: object) -> str:
    names = {bool: "a truth value", int: "a number", float: "a number", str: "text", list: "a list", dict: "a mapping"}
    return names.get(type(value), "null")


def _written(value: object) -> str:
    if isinstance(value, str):
        return f"'{value[:40]}'"
    return "null" if value is None else str(value).lower()[:40]


def _show(path: Loc) -> str:
    return ".".join(str(step) for step in path)


def _label(path: Loc) -> str:
    return _show(tuple(path)) or "the entry"


def _field_names(model: type[BaseModel], seen: frozenset[type] = frozenset()) -> frozenset[str]:
    """Names of all fields of ``model`` and the models inside it, for 'did you mean'."""
    names: set[str] = set(model.model_fields)
    for field in model.model_fields.values():
        for inner in _models(field.annotation):
            if inner not in seen:
                names |= _field_names(inner, seen | {model})
    return frozenset(names)


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models(argument)
