"""Sizes of a spec: integers, or products and sums over the dims of the contract the kernel is made for.

The same text is read by C++ (dims are constants or arguments there) and by the launch plan's expressions, so only what
means the same in both is allowed: integers, names, ``+ - *`` and parentheses.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from kb.expr import parse

Size = int | str

_ALLOWED = re.compile(r"[A-Za-z0-9_+\-*() ]+")


def check_size(size: Size) -> None:
    """Raises ValueError when ``size`` is not an integer or an expression that C++ and launch plans read alike."""
    if isinstance(size, int):
        return
    if not _ALLOWED.fullmatch(size) or "**" in size:
        raise ValueError(f"the size '{size}' has more than integers, names, + - * and parentheses")
    parse(size)


def text(size: Size) -> str:
    """As it stands in C++ and in a launch plan, safe to put beside any operator."""
    if isinstance(size, int):
        return str(size)
    return size if re.fullmatch(r"\w+", size) else f"({size})"


def value(size: Size, dims: Mapping[str, int] | None = None) -> int | None:
    """The number, where ``dims`` decide it."""
    if isinstance(size, int):
        return size
    found = parse(size).evaluate_partial(dims or {})
    return None if found is None else int(found)


def reads(size: Size, names: Collection[str]) -> bool:
    """Whether ``size`` depends on one of these dims."""
    return isinstance(size, str) and not parse(size).names.isdisjoint(names)


def product(sizes: Iterable[Size]) -> Size:
    """The product in one normal form: equal products of equal factors give equal results."""
    number, names = 1, []
    for size in sizes:
        if isinstance(size, int):
            number *= size
            continue
        for factor in _factors(size):
            if factor.isdigit():
                number *= int(factor)
            else:
                names.append(factor)
    if number == 0 or not names:
        return number
    return " * ".join([*([str(number)] if number != 1 else []), *sorted(names)])


def dense_strides(shape: Sequence[Size]) -> tuple[Size, ...]:
    """Strides in elements of a dense row-major tensor."""
    return tuple(product(shape[i + 1 :]) for i in range(len(shape)))


def same(a: Size, b: Size) -> bool:
    """Whether two sizes are equal by their form; sizes that are equal only for some dims are not."""
    return product([a]) == product([b])


def multiple_of(size: Size, number: int, dims: Mapping[str, int] | None = None) -> bool | None:
    """Whether ``size`` is a multiple; None when the dims do not say."""
    if (known := value(size, dims)) is not None:
        return known % number == 0
    constant = 1
    for factor in _factors(str(product([size]))):
        constant *= int(factor) if factor.isdigit() else 1
    return True if constant % number == 0 else None


def _factors(size: str) -> list[str]:
    """Factors at the top level; a sum is one factor, in parentheses."""
    parts, depth, start = [], 0, 0
    for i, letter in enumerate(size):
        depth += (letter == "(") - (letter == ")")
        if depth == 0 and letter in "+-":
            return [f"({size.strip()})"]
        if depth == 0 and letter == "*":
            parts.append(size[start:i])
            start = i + 1
    parts = [p.strip() for p in (*parts, size[start:])]
    if len(parts) == 1 and parts[0].startswith("("):
        inner = parts[0][1:-1].strip()
        return _factors(inner) if "+" not in inner and "-" not in inner else parts
    return [f for part in parts for f in (_factors(part) if part.startswith("(") else [part])]
