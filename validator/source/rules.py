"""All rules over a candidate's source, in one pass each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kb.candidate import Candidate
from kb.contract import DEVICE_SYMBOLS, Contract
from kb.dtype import Target
from validator.source.directives import attribute_problems, directive_problems, literal_problems
from validator.source.entries import entry_problems, linkage_problems
from validator.source.lexer import SourceProblem, Token, tokenize
from validator.source.names import forbidden, forbidden_when_used
from validator.source.ptx import asm_problems
from validator.source.scopes import Declaration, constant_names, is_constant, name_position, scan

_PRELUDE = frozenset({"T", "to_float", "from_float", "bfloat16", "float16", "std", "__nv_bfloat16", "__half"})


def problems_of(candidate: Candidate, contract: Contract) -> list[SourceProblem]:
    """Everything the static gate objects to, by line."""
    tokens, problems = tokenize(candidate.source)
    target = candidate.target
    declarations = scan(tokens)
    entries = [launch.entry for launch in candidate.plan.launches]
    reserved = _PRELUDE | set(contract.dims) | set(DEVICE_SYMBOLS) | {t.name for t in contract.tensors}
    problems += directive_problems(tokens, target, reserved)
    problems += attribute_problems(tokens)
    problems += literal_problems(tokens)
    problems += _name_problems(tokens, target)
    problems += _construct_problems(tokens, target)
    if target is Target.CUDA:
        problems += asm_problems(tokens)
    problems += _state_problems(declarations)
    problems += linkage_problems(declarations, entries)
    problems += entry_problems(declarations, entries, contract, target)
    return sorted(dict.fromkeys(problems), key=lambda p: p.line)


def known_constants(candidate: Candidate, contract: Contract) -> set[str]:
    """Names that are constant in the compiled candidate: its own, the dims and the device symbols."""
    tokens, _ = tokenize(candidate.source)
    return constant_names(tokens) | set(contract.dims) | set(DEVICE_SYMBOLS)


def _name_problems(tokens: Sequence[Token], target: Target) -> Iterator[SourceProblem]:
    for i, token in enumerate(tokens):
        if token.kind != "name" or _is_member(tokens, i):
            continue
        if (reason := forbidden(token.text, target)) is not None:
            yield SourceProblem("forbidden-name", f"'{token.text}' {reason}", token.line)
        elif (reason := forbidden_when_used(token.text, target)) is not None and _is_used(tokens, i):
            yield SourceProblem(
                "forbidden-name", f"'{token.text}' {reason}; name your own function otherwise", token.line
            )


def _construct_problems(tokens: Sequence[Token], target: Target) -> Iterator[SourceProblem]:
    for i, token in enumerate(tokens):
        after = [t.text for t in tokens[i + 1 : i + 5]]
        if token.text in ("<<<", ">>>") and target is Target.CUDA:
            yield SourceProblem("forbidden-construct", "a launch from device code", token.line)
        elif token.text == "extern" and after[:1] not in (['"C"'], ["__shared__"], ["template"]):
            yield SourceProblem("forbidden-construct", "extern reaches for something outside this source", token.line)
        elif token.text == "(" and (after[:3] == ["*", ")", "("] or (after[:1] == ["*"] and after[2:4] == [")", "("])):
            yield SourceProblem("forbidden-construct", "a function pointer; name the function you call", token.line)
        elif token.text == "using" and after[:2] == ["namespace", "std"] and target is Target.CPU:
            message = "using namespace std brings in the C library's names; write std:: where you mean it"
            yield SourceProblem("forbidden-construct", message, token.line)


def _state_problems(declarations: Sequence[Declaration]) -> Iterator[SourceProblem]:
    """Nothing may remember from one call to the next but the workspace."""
    for declaration in declarations:
        shared = "__shared__" in {t.text for t in declaration.head}
        if declaration.kind == "variable" and not shared and not is_constant(declaration.head):
            text = " ".join(t.text for t in declaration.head[:6])
            message = f"'{text}' keeps state between calls; the workspace is the place for that"
            yield SourceProblem("state-between-calls", message, declaration.line)
        if declaration.kind == "class":
            yield from _static_members(declaration.body)
        for i, token in enumerate(declaration.body):
            if token.text != "static" or declaration.kind != "function":
                continue
            statement = _statement(declaration.body, i)
            if not is_constant(statement) and "__shared__" not in {t.text for t in statement}:
                message = "a static local keeps state between calls; the workspace is the place for that"
                yield SourceProblem("state-between-calls", message, token.line)
    for declaration in declarations:
        for token in (*declaration.head, *declaration.body):
            if token.text in ("thread_local", "__thread", "_Thread_local"):
                yield SourceProblem("state-between-calls", f"'{token.text}' keeps state between calls", token.line)


def _statement(tokens: Sequence[Token], start: int) -> Sequence[Token]:
    """Tokens from ``start`` to the end of the statement."""
    end = next((i for i in range(start, len(tokens)) if tokens[i].text == ";"), len(tokens))
    return tokens[start:end]


def _static_members(body: Sequence[Token]) -> Iterator[SourceProblem]:
    """Static data members that are not constant."""
    for i, token in enumerate(body):
        if token.text != "static":
            continue
        rest = _statement(body, i)
        if name_position(rest) is None and not is_constant(rest):
            yield SourceProblem("state-between-calls", "a static member keeps state between calls", token.line)


def _is_member(tokens: Sequence[Token], place: int) -> bool:
    return place > 0 and tokens[place - 1].text in (".", "->")


def _is_used(tokens: Sequence[Token], place: int) -> bool:
    before = tokens[place - 1].text if place else ""
    after = tokens[place + 1].text if place + 1 < len(tokens) else ""
    if after == "(" or before == "::":
        return True
    operand = place > 1 and (tokens[place - 2].kind in ("name", "number") or tokens[place - 2].text in (")", "]"))
    return before == "&" and not operand
