"""Launch expressions as C: the same text a launch plan holds, for a wrapper that has no evaluator."""

from __future__ import annotations

import ast

from kb.expr import Expr

_BINARY = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.FloorDiv: "/", ast.Mod: "%"}
_COMPARE = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!="}


def c_text(expression: Expr) -> str:
    """``expression`` in C. Sizes are not negative, so C's division is the expression's."""
    return _text(ast.parse(expression.text.strip(), mode="eval").body)


def _text(node: ast.expr) -> str:
    match node:
        case ast.Constant(value=int(number)):
            return f"{number}LL" if abs(number) > 2**31 - 1 else str(number)
        case ast.Name(id=name):
            return name
        case ast.UnaryOp(op=op, operand=operand):
            return f"({'!' if isinstance(op, ast.Not) else '-'}{_text(operand)})"
        case ast.BinOp(left=left, op=op, right=right):
            return f"({_text(left)} {_BINARY[type(op)]} {_text(right)})"
        case ast.BoolOp(op=op, values=values):
            return "(" + (" && " if isinstance(op, ast.And) else " || ").join(_text(v) for v in values) + ")"
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            parts = [left, *comparators]
            pairs = zip(parts, ops, parts[1:], strict=False)
            return "(" + " && ".join(f"{_text(a)} {_COMPARE[type(o)]} {_text(b)}" for a, o, b in pairs) + ")"
        case ast.Call(func=ast.Name(id="ceil_div"), args=[a, b]):
            return f"(({_text(a)} + {_text(b)} - 1) / {_text(b)})"
        case ast.Call(func=ast.Name(id=name), args=args):
            return _extreme("<" if name == "min" else ">", [_text(a) for a in args])
    raise ValueError(f"'{ast.unparse(node)}' is no launch expression")


def _extreme(sign: str, texts: list[str]) -> str:
    if len(texts) == 1:
        return texts[0]
    rest = _extreme(sign, texts[1:])
    return f"({texts[0]} {sign} {rest} ? {texts[0]} : {rest})"
