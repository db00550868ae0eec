"""Rules about preprocessor lines, attributes and literals."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence

from kb.dtype import Target
from validator.source.lexer import SourceProblem, Token


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


HEADERS = {
    Target.CPU: re.compile(
        r"^(c?(std(int|def|bool)|math|string|float|limits|assert)(\.h)?|algorithm|array|limits|numeric|type_traits|utility"
        r"|tuple|vector|bit|functional|iterator|initializer_list|omp\.h|immintrin\.h|arm_neon\.h|arm_sve\.h|memory|new)$"
    ),
    Target.CUDA: re.compile(
        r"^(cuda_(bf16|fp16|fp8|fp6|fp4|pipeline|pipeline_primitives|awbarrier|awbarrier_primitives)\.h|mma\.h"
        r"|cooperative_groups\.h|cooperative_groups/[a-z_]+\.h|(cuda|cub|thrust)/[a-z0-9_/]+(\.h|\.hpp|\.cuh)?"
        r"|c?(std(int|def)|limits|math|type_traits)(\.h)?|type_traits|utility|vector_types\.h|math_constants\.h)$"
    ),
}
_DIRECTIVES = _words("define undef include if ifdef ifndef elif else endif pragma error warning")
_PRAGMAS = {
    "unroll": None, "nounroll": None, "once": None, "nv_diag_suppress": None, "nv_diag_default": None,
    "omp": re.compile(r"^(?!.*\b(target|interop|declare)\b)"), "GCC": re.compile(r"^(ivdep|unroll|diagnostic)\b"),
    "clang": re.compile(r"^(loop|diagnostic)\b"),
}  # fmt: skip
_ATTRIBUTES = _words(
    "always_inline __always_inline__ noinline __noinline__ inline aligned __aligned__ hot cold pure const flatten "
    "unused __unused__ maybe_unused vector_size __vector_size__ may_alias __may_alias__ packed target optimize "
    "assume_aligned likely unlikely nodiscard fallthrough noreturn no_unique_address gnu artificial nonnull "
    "returns_nonnull min_vector_width ext_vector_type"
)
_KEYWORDS = _words(
    "alignas auto bool break case char class const constexpr continue decltype default delete do double else enum "
    "extern false float for friend goto if inline int long namespace new noexcept operator private protected public "
    "register return short signed sizeof static static_assert struct switch template this true typedef typename union "
    "unsigned using virtual void volatile while reinterpret_cast static_cast const_cast defined"
)


def directive_problems(tokens: Sequence[Token], target: Target, reserved: Collection[str]) -> Iterator[SourceProblem]:
    """What is wrong with the preprocessor lines. ``reserved``: names of the prelude, which no macro may replace."""
    defined: set[str] = set()
    for line in _lines(tokens):
        where = line[0].line
        if len(line) == 1:
            continue
        word = line[1].text
        if line[1].kind == "number":
            yield SourceProblem("forbidden-directive", "a line marker", where)
        elif word not in _DIRECTIVES:
            yield SourceProblem("forbidden-directive", f"#{word} is not allowed", where)
        elif word == "include":
            header = _header(line[2:])
            if not HEADERS[target].match(header):
                yield SourceProblem("forbidden-include", f"#include of '{header}'; the list of headers is short", where)
        elif word == "pragma":
            yield from _pragma(line, where)
        elif word in ("define", "undef"):
            name = line[2].text if len(line) > 2 else ""
            if name in _KEYWORDS or name in reserved or name.startswith("__"):
                yield SourceProblem("forbidden-macro", f"#{word} of '{name}', which means something already", where)
            if word == "undef" and name not in defined:
                yield SourceProblem("forbidden-macro", f"#undef of '{name}', which this source did not define", where)
            defined.add(name)
            if any(t.text in ("#", "##") for t in line[2:]):
                yield SourceProblem("forbidden-macro", f"the macro '{name}' pastes or stringizes tokens", where)


def literal_problems(tokens: Sequence[Token]) -> Iterator[SourceProblem]:
    """Strings stand in ``extern "C"``, ``static_assert``, inline assembly and attributes, and nowhere else."""
    for i, token in enumerate(tokens):
        if token.kind == "char" and "\\" in token.text and token.text not in (r"'\0'", r"'\n'", r"'\t'"):
            yield SourceProblem("forbidden-literal", f"the escape in {token.text}", token.line)
        if token.kind != "string" or token.directive:
            continue
        if i and tokens[i - 1].text == "extern" and token.text == '"C"':
            continue
        if _inside(
            tokens, i, ("static_assert", "asm", "__asm__", "__asm", "target", "optimize", "_Pragma", "deprecated")
        ):
            continue
        yield SourceProblem(
            "forbidden-literal", f"the string {token.text[:40]}; a kernel has no use for one", token.line
        )


def attribute_problems(tokens: Sequence[Token]) -> Iterator[SourceProblem]:
    """Attributes from a short list: none that runs code, renames a symbol or moves it to another section."""
    for i, token in enumerate(tokens):
        if token.text in ("__attribute__", "__attribute", "__declspec"):
            start, end = i + 1, _matching(tokens, i + 1)
        elif token.text == "[" and i + 1 < len(tokens) and tokens[i + 1].text == "[":
            start, end = i, _matching(tokens, i)
        elif token.text == "_Pragma":
            body = "".join(t.text for t in tokens[i + 1 : i + 4])
            if not re.fullmatch(r'\("(unroll|nounroll|GCC ivdep|unroll [0-9]+|omp simd)"\)', body):
                yield SourceProblem("forbidden-directive", "_Pragma; only unroll is allowed there", token.line)
            continue
        else:
            continue
        for word in _top_names(tokens[start : end + 1]):
            if word.text not in _ATTRIBUTES:
                yield SourceProblem("forbidden-attribute", f"the attribute '{word.text}'", word.line)


def _lines(tokens: Sequence[Token]) -> Iterator[list[Token]]:
    line: list[Token] = []
    for token in tokens:
        if token.first and token.directive:
            if line:
                yield line
            line = [token]
        elif token.directive and line:
            line.append(token)
        elif line:
            yield line
            line = []
    if line:
        yield line


def _header(rest: Sequence[Token]) -> str:
    text = "".join(t.text for t in rest)
    if len(text) > 2 and (text[0], text[-1]) in (("<", ">"), ('"', '"')):
        return text[1:-1]
    return text or "nothing"


def _pragma(line: Sequence[Token], where: int) -> Iterator[SourceProblem]:
    word = line[2].text if len(line) > 2 else ""
    rest = " ".join(t.text for t in line[3:])
    pattern = _PRAGMAS.get(word)
    if word not in _PRAGMAS or (pattern is not None and not pattern.match(rest)):
        yield SourceProblem("forbidden-directive", f"#pragma {word} {rest}".strip(), where)


def _top_names(tokens: Sequence[Token]) -> Iterator[Token]:
    """Attribute names, without their arguments."""
    depth, arguments_below = 0, None
    for i, token in enumerate(tokens):
        if token.text in ("(", "["):
            depth += 1
            if arguments_below is None and i and tokens[i - 1].kind == "name":
                arguments_below = depth
        elif token.text in (")", "]"):
            if arguments_below == depth:
                arguments_below = None
            depth -= 1
        elif token.kind == "name" and arguments_below is None:
            yield token


def _inside(tokens: Sequence[Token], place: int, callers: Collection[str]) -> bool:
    """Whether ``place`` lies in the parentheses after one of ``callers`` (``asm volatile`` included)."""
    depth = 0
    for i in range(place - 1, max(-1, place - 400), -1):
        text = tokens[i].text
        if text == ")":
            depth += 1
        elif text == "(":
            if depth == 0:
                before = [t.text for t in tokens[max(0, i - 2) : i] if t.text not in ("volatile", "__volatile__")]
                if before and before[-1] in callers:
                    return True
            else:
                depth -= 1
        elif text in (";", "{", "}") and depth == 0:
            return False
    return False


def _matching(tokens: Sequence[Token], start: int) -> int:
    depth = 0
    for i in range(start, len(tokens)):
        if tokens[i].text in ("(", "["):
            depth += 1
        elif tokens[i].text in (")", "]"):
            depth -= 1
            if depth == 0:
                return i
    return len(tokens) - 1
