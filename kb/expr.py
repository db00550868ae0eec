"""Safe integer and boolean expressions over named dimensions.

Shapes, launch plans, shape sweeps and applicability conditions are written as small expressions such as
``ceil_div(intermediate_size, 8)`` or ``head_dim <= 128 and num_tokens == 1``. They are parsed once into a
closed set of nodes and evaluated by walking that tree; nothing is ever handed to Python's ``eval``.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import core_schema

Value = int | bool

MAX_LENGTH = 500
MAX_NODES = 200
MAX_MAGNITUDE = 2**63 - 1


class ExprError(ValueError):
    """An expression that cannot be parsed or evaluated; the message says which part and why."""


def _ceil_div(numerator: int, denominator: int) -> int:
    return -(-numerator // denominator)


_FUNCTIONS: dict[str, tuple[int | None, Callable[..., int]]] = {
    "min": (None, min),
    "max": (None, max),
    "ceil_div": (2, _ceil_div),
}
_BINARY: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.FloorDiv: lambda a, b: a // b,
    ast.Mod: lambda a, b: a % b,
}
_COMPARE: dict[type[ast.cmpop], Callable[[int, int], bool]] = {
    ast.Lt: lambda a, b: a < b,
    ast.LtE: lambda a, b: a <= b,
    ast.Gt: lambda a, b: a > b,
    ast.GtE: lambda a, b: a >= b,
    ast.Eq: lambda a, b: a == b,
    ast.NotEq: lambda a, b: a != b,
}


@dataclass(frozen=True, slots=True)
class Expr:
    """A parsed expression. ``text`` is what the author wrote; ``names`` are the dimensions it reads.

    Raises ExprError when the text is not an expression of integers, ``+ - * // %``, comparisons,
    ``and or not``, ``min``, ``max`` and ``ceil_div``.
    """

    text: str
    names: frozenset[str] = field(init=False, compare=False)
    _tree: ast.expr = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        tree = _parse(self.text)
        object.__setattr__(self, "_tree", tree)
        object.__setattr__(self, "names", frozenset(_names(tree)))

    def __str__(self) -> str:
        return self.text

    def evaluate(self, env: Mapping[str, int]) -> Value:
        """Value under ``env``. Raises ExprError for an unknown name, a zero divisor or a value beyond 63 bits."""
        missing = sorted(self.names - set(env))
        if missing:
            known = ", ".join(sorted(env)) or "none"
            raise ExprError(f"'{self.text}': unknown name '{missing[0]}' (known: {known})")
        value = _walk(self._tree, env, self.text)
        assert value is not None  # every name is known
        return value

    def evaluate_int(self, env: Mapping[str, int]) -> int:
        """Like evaluate, for a place that needs a number; raises ExprError when the value is a truth value."""
        value = self.evaluate(env)
        if isinstance(value, bool):
            raise ExprError(f"'{self.text}': a number is needed here, this is a condition")
        return value

    def evaluate_partial(self, env: Mapping[str, int]) -> Value | None:
        """Value when ``env`` decides it, else None (three-valued logic: ``False and unknown`` is False)."""
        return _walk(self._tree, env, self.text)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(
            _validate, serialization=core_schema.plain_serializer_function_ser_schema(_serialize)
        )

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {
            "anyOf": [{"type": "integer"}, {"type": "string", "maxLength": MAX_LENGTH}],
            "description": "Expression over dims: integers, + - * // %, min, max, ceil_div, comparisons, and/or/not.",
        }


def _validate(value: object) -> Expr:
    if isinstance(value, Expr):
        return value
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError("expected an integer or an expression such as 'ceil_div(hidden_size, 8)'")
    return parse(str(value))


def _serialize(value: Expr) -> int | str:
    return int(value.text) if value.text.isdigit() else value.text


@lru_cache(maxsize=4096)
def parse(text: str) -> Expr:
    """Parse once, remember the tree. Raises ExprError."""
    return Expr(text)


def _parse(text: str) -> ast.expr:
    if len(text) > MAX_LENGTH:
        raise ExprError(f"expression of {len(text)} characters; {MAX_LENGTH} at most")
    if not text.isascii():
        raise ExprError(f"'{text}': only ASCII is allowed in an expression")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ExprError(f"'{text}': not an expression") from None
    nodes = sum(1 for _ in ast.walk(tree))
    if nodes > MAX_NODES:
        raise ExprError(f"expression of {nodes} parts; {MAX_NODES} at most")
    _check(tree, text)
    return tree


def _check(node: ast.expr, text: str) -> None:
    match node:
        case ast.Constant(value=bool()):
            raise ExprError(f"'{text}': True and False are not needed here; write a comparison")
        case ast.Constant(value=int(number)) if abs(number) <= MAX_MAGNITUDE:
            return
        case ast.Name():
            return
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            _check(left, text)
            _check(right, text)
        case ast.BinOp(op=ast.Div()):
            raise ExprError(f"'{text}': '/' is not defined on integers; use '//' or ceil_div")
        case ast.UnaryOp(op=ast.USub() | ast.Not(), operand=operand):
            _check(operand, text)
        case ast.BoolOp(values=values):
            for value in values:
                _check(value, text)
        case ast.Compare(left=left, ops=ops, comparators=comparators) if all(type(o) in _COMPARE for o in ops):
            for part in (left, *comparators):
                _check(part, text)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
            arity = _FUNCTIONS.get(name, (0, None))[0]
            if name not in _FUNCTIONS:
                raise ExprError(f"'{text}': unknown function '{name}' (min, max, ceil_div)")
            if not args or (arity is not None and len(args) != arity) or any(isinstance(a, ast.Starred) for a in args):
                raise ExprError(f"'{text}': wrong number of arguments to {name}")
            for argument in args:
                _check(argument, text)
        case _:
            raise ExprError(
                f"'{text}': '{ast.unparse(node)}' is not allowed (integers, names, + - * // %, min, max, ceil_div)"
            )


def _names(tree: ast.expr) -> set[str]:
    called = {id(n.func) for n in ast.walk(tree) if isinstance(n, ast.Call)}
    return {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and id(n) not in called}


def _walk(node: ast.expr, env: Mapping[str, int], text: str) -> Value | None:
    match node:
        case ast.Constant(value=int(number)):
            return number
        case ast.Name(id=name):
            return env.get(name)
        case ast.UnaryOp(op=op, operand=operand):
            value = _walk(operand, env, text)
            if value is None:
                return None
            return (not value) if isinstance(op, ast.Not) else -value
        case ast.BoolOp(op=op, values=values):
            return _kleene(isinstance(op, ast.And), [_walk(v, env, text) for v in values])
        case ast.BinOp(left=left, op=op, right=right):
            a, b = _walk(left, env, text), _walk(right, env, text)
            return None if a is None or b is None else _apply(_BINARY[type(op)], (a, b), text)
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            parts = [_walk(p, env, text) for p in (left, *comparators)]
            results = [
                None if a is None or b is None else _COMPARE[type(o)](a, b)
                for a, o, b in zip(parts, ops, parts[1:], strict=False)
            ]
            return _kleene(True, list(results))
        case ast.Call(func=ast.Name(id=name), args=args):
            values_ = [_walk(a, env, text) for a in args]
            if any(v is None for v in values_):
                return None
            return _apply(_FUNCTIONS[name][1], tuple(v for v in values_ if v is not None), text)
    raise ExprError(f"'{text}': not an expression")  # _check admits nothing else


def _kleene(conjunction: bool, values: list[Value | None]) -> bool | None:
    decided = not conjunction
    if any(v is not None and bool(v) is decided for v in values):
        return decided
    return None if any(v is None for v in values) else not decided


def _apply(function: Callable[..., int], arguments: tuple[int, ...], text: str) -> int:
    try:
        value = function(*arguments)
    except ZeroDivisionError:
        raise ExprError(f"'{text}': division by zero") from None
    if abs(value) > MAX_MAGNITUDE:
        raise ExprError(f"'{text}': value beyond 63 bits")
    return value
