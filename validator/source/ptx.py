"""Inline assembly on CUDA: PTX instructions from a list, and none that reads a clock, calls or ends anything."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from validator.source.lexer import SourceProblem, Token

_ASM = frozenset({"asm", "__asm__", "__asm"})
_OPCODES = """
    abs activemask add addc and applypriority atom bar barrier bfe bfi bfind bmsk bra brev clusterlaunchcontrol
    clz copysign cos cp createpolicy cvt cvta discard div dp2a dp4a elect ex2 fence fma fns getctarank
    griddepcontrol isspacep ld ldmatrix ldu lg2 lop3 mad mad24 madc mapa match max mbarrier membar min mma mov
    movmatrix mul mul24 multimem neg not or pack popc prefetch prefetchu prmt rcp red redux rem rsqrt sad selp
    set setmaxnreg setp shf shfl shl shr sin slct sqrt st stmatrix sub subc szext tanh tcgen05 tensormap testp
    vote wgmma xor
"""
OPCODES = frozenset(_OPCODES.split())
_DIRECTIVES = frozenset({".reg", ".pred"})
_REGISTERS = re.compile(r"%+(clock\w*|globaltimer\w*|pm[0-9]\w*|envreg\w*|reserved\w*)")
_LABEL = re.compile(r"^[\w$%{}=]+:")
_PREDICATE = re.compile(r"^@!?%?[\w%]+\s+")
_ESCAPES = re.compile(r"\\(?![nt\"\\])")


def asm_problems(tokens: Sequence[Token]) -> Iterator[SourceProblem]:
    """Everything wrong with the asm statements among ``tokens``."""
    for i, token in enumerate(tokens):
        if token.kind == "name" and token.text in _ASM:
            yield from _statement(tokens, i)


def _statement(tokens: Sequence[Token], start: int) -> Iterator[SourceProblem]:
    line, i = tokens[start].line, start + 1
    while i < len(tokens) and tokens[i].text in ("volatile", "__volatile__", "goto", "inline"):
        if tokens[i].text == "goto":
            yield SourceProblem("forbidden-asm", "asm goto", line)
        i += 1
    if i >= len(tokens) or tokens[i].text != "(":
        yield SourceProblem("forbidden-asm", "asm without a parenthesised template", line)
        return
    template = ""
    i += 1
    while i < len(tokens) and tokens[i].kind == "string":
        if _ESCAPES.search(tokens[i].text):
            yield SourceProblem("forbidden-asm", f"the escape in {tokens[i].text[:60]}", tokens[i].line)
        template += tokens[i].text[1:-1]
        i += 1
    if i < len(tokens) and tokens[i].text not in (":", "::", ")"):
        yield SourceProblem("forbidden-asm", "an asm template that is not made of plain strings", line)
        return
    for message in template_problems(template):
        yield SourceProblem("forbidden-asm", message, line)


def template_problems(template: str) -> Iterator[str]:
    """What is wrong with the text of one asm template."""
    text = template.replace("\\n", "\n").replace("\\t", " ").replace("\\\\", "\\").replace('\\"', '"')
    if "//" in text or "/*" in text:
        yield "a comment inside the template"
    if match := _REGISTERS.search(text):
        yield f"the register '{match[0]}', which reads a clock or a counter"
    for part in re.split(r"[;\n]", text):
        statement = part.strip().strip("{} \t").strip()
        while match := _LABEL.match(statement):
            statement = statement[match.end() :].strip().strip("{} \t")
        statement = _PREDICATE.sub("", statement).strip()
        if not statement:
            continue
        word = statement.split()[0]
        if word.startswith("."):
            if word not in _DIRECTIVES:
                yield f"the directive '{word}'"
        elif word.split(".")[0] not in OPCODES:
            yield f"the instruction '{word.split('.')[0]}', which is not on the list"
