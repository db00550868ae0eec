"""The entries a plan names: defined once each, with exactly the contract's parameters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kb.contract import Contract
from kb.dtype import Target
from kb.signature import parameters
from validator.source.lexer import SourceProblem, Token, tokenize
from validator.source.scopes import TAKES_PARENTHESES, Declaration, name_position

_RESTRICT = frozenset({"__restrict__", "__restrict", "restrict"})
_TYPE_WORDS = frozenset({"int", "long", "short", "char", "float", "double", "void", "signed", "unsigned", "bool"})
_BEFORE = {
    Target.CUDA: frozenset({"extern", '"C"', "__global__", "void"}),
    Target.CPU: frozenset({"extern", '"C"', "void"}),
}


def entry_problems(
    declarations: Sequence[Declaration], entries: Sequence[str], contract: Contract, target: Target
) -> Iterator[SourceProblem]:
    """Entries that are missing, defined twice, or do not have the contract's signature."""
    for entry in dict.fromkeys(entries):
        found = [d for d in declarations if d.name == entry]
        defined = [d for d in found if d.kind == "function"]
        if not defined:
            message = f"the entry '{entry}' of the launch plan is not defined; it must be a plain function of that name"
            yield SourceProblem("missing-entry", message, found[0].line if found else 1)
        for declaration in found:
            yield from _signature(declaration, entry, contract, target)
        if len(defined) > 1:
            yield SourceProblem("wrong-signature", f"'{entry}' is defined more than once", defined[1].line)


def linkage_problems(declarations: Sequence[Declaration], entries: Sequence[str]) -> Iterator[SourceProblem]:
    """C linkage for anything but entries would reach for, or stand in for, a function of the C library."""
    for declaration in declarations:
        if declaration.kind in ("function", "prototype") and declaration.c_linkage and declaration.name not in entries:
            message = f"'{declaration.name}' has C linkage; only the entries of the launch plan may"
            yield SourceProblem("forbidden-construct", message, declaration.line)


def _signature(declaration: Declaration, entry: str, contract: Contract, target: Target) -> Iterator[SourceProblem]:
    head = list(declaration.head)
    place = name_position(head)
    assert place is not None  # it has a name
    line = head[place].line
    before = _without_calls(head[:place])
    texts = {t.text for t in before}
    wanted = _BEFORE[target] if not declaration.c_linkage else _BEFORE[target] - {"extern", '"C"'}
    for missing in sorted(wanted - texts):
        yield SourceProblem("wrong-signature", f"'{entry}' must be declared with {missing}", line)
    for extra in before:
        if extra.text not in _BEFORE[target] and extra.text not in TAKES_PARENTHESES:
            yield SourceProblem("wrong-signature", f"'{entry}' must not be declared with {extra.text}", extra.line)
    given = _split(head[place + 1 :])
    expected = parameters(contract, target)
    if len(given) != len(expected):
        names = ", ".join(str(p) for p in expected)
        message = f"'{entry}' has {len(given)} parameters; the contract has {len(expected)}: ({names})"
        yield SourceProblem("wrong-signature", message, line)
        return
    for i, (tokens, parameter) in enumerate(zip(given, expected, strict=True)):
        if _canonical(tokens) != _canonical(tokenize(str(parameter))[0]):
            text = " ".join(t.text for t in tokens)
            message = f"'{entry}', parameter {i + 1}: '{text}' where the contract has '{parameter}'"
            yield SourceProblem("wrong-signature", message, tokens[0].line if tokens else line)


def _split(tokens: Sequence[Token]) -> list[list[Token]]:
    """Parameters between the outermost parentheses."""
    parts: list[list[Token]] = [[]]
    depth = 0
    for token in tokens:
        if token.text in ("(", "[", "{", "<"):
            depth += 1
            if depth == 1:
                continue
        elif token.text in (")", "]", "}", ">"):
            depth -= 1
            if depth == 0:
                break
        if token.text == "," and depth == 1:
            parts.append([])
        else:
            parts[-1].append(token)
    return [] if parts == [[]] else parts


def _canonical(tokens: Sequence[Token]) -> tuple[str, ...]:
    """The type alone: ``const`` before the star counts wherever it stands, names and ``restrict`` do not."""
    words = [t.text for t in tokens if t.text not in _RESTRICT]
    if "*" in words:
        star = words.index("*")
        pointee, rest = words[:star], [w for w in words[star + 1 :] if w != "const"]
        return (*sorted(_plain(pointee, named=False)), "*", *rest[1:])
    return tuple(sorted(w for w in _plain(words, named=True) if w != "const"))


def _plain(words: Sequence[str], named: bool) -> list[str]:
    words = list(words)
    if named and len(words) > 1 and words[-1] not in _TYPE_WORDS:
        words = words[:-1]
    if words.count("long") == 2 and "int" in words:
        words.remove("int")
    return ["int" if w == "int32_t" else w for w in words if w not in ("std", "::", "signed")]


def _without_calls(tokens: Sequence[Token]) -> list[Token]:
    """``tokens`` without anything in parentheses, such as launch bounds."""
    kept, depth = [], 0
    for token in tokens:
        if token.text == "(":
            depth += 1
        elif token.text == ")":
            depth -= 1
        elif depth == 0:
            kept.append(token)
    return kept
