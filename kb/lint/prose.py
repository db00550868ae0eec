"""Which texts of an entry are prose, and what in a prose is kernel source or markup."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from kb.yaml.document import Step

Loc = tuple[Step, ...]

# Evidence is left out on purpose: it may name models, sizes and instructions.
_PRINCIPLE = ("title", "claim", "why", "retry_when", "status_reason")
_CONTRACT = ("title", "summary", "semantics")

_CPP_TYPE = (
    r"(?:const |constexpr |static |extern |unsigned |volatile |__restrict__ )*"
    r"(?:int|float|half|double|bool|char|long|short|void|auto|size_t|unsigned|u?int(?:8|16|32|64)_t"
    r"|__nv_bfloat16|__half2?|__nv_bfloat162|bf16|float[24]|half2|u?int[24]|__m(?:128|256|512)[id]?)"
)
# Nobody writes these in a sentence.
_TOKENS = (
    (r"```|~~~", "a code fence"),
    (r"#\s*(?:include|define|pragma|ifdef|ifndef|if|endif)\b", "a preprocessor line"),
    (r"\b__[a-z]\w*?(?:__)?(?=\W|$)", "a CUDA or compiler identifier"),
    (r"<<<|>>>", "a kernel launch"),
    (r"\b(?:threadIdx|blockIdx|blockDim|gridDim)\b(?:\.[xyz])?", "a CUDA built-in variable"),
    (r"\b(?:reinterpret|static|const|dynamic)_cast\s*<", "a C++ cast"),
    (r"\btemplate\s*<|\bstd::\w+|\bcuda::\w+|\bcg::\w+|\bcute::\w+|\bcutlass::\w+", "C++"),
    (r"\basm\s*(?:volatile)?\s*\(", "inline assembly"),
    (r"%(?:r|rd|f|fd|p|h)[0-9]+\b", "a PTX operand"),
    (r"\b(?:atomic[A-Z]\w*|cuda[A-Z]\w*|cublas[A-Z]\w*|cu[A-Z]\w*)\s*\(", "an intrinsic or API call with arguments"),
    (
        r"\b(?:_mm\d*_\w+|v(?:ld|st|add|mul|fma|mla|cvt)\w*q?_\w+|__\w+|\w+_sync|\w+_async)\s*\(",
        "an intrinsic with arguments",
    ),
    (r"\b(?:fmaf|rsqrtf|sqrtf|expf|exp2f|fmaxf|fminf|tanhf|memcpy|memset|printf)\s*\(", "a C call"),
    (r"@triton\.jit|\btl\.\w+\s*\(|\btriton\.\w+\s*\(", "Triton source"),
    (r"->\s*\w+\s*\(", "a member call"),
)
# A formula in a contract may look like these; a sentence does not.
_STATEMENTS = (
    (rf"\b{_CPP_TYPE}\s*[*&]*\s+[*&]*\w+\s*(?:=[^=]|\[|;)", "a declaration"),
    (r"\b\w[\w\[\].]*\s*(?:[-+*/|&^%]|<<|>>)?=\s*[^=<>;\n]{1,200};", "a statement"),
    (r"\b(?:for|while|if|switch)\s*\([^)]*[;<>=!][^)]*\)", "a control statement"),
    (r"\breturn\s+[\w(][^.\n]{0,80};", "a statement"),
    (r"[\w\]]\+\+|\+\+\w|\w--(?=\W)", "an increment"),
    (r"\{[^{}\n]*;[^{}\n]*\}", "a block of statements"),
    (r"\bdef\s+\w+\s*\(|\blambda\s+\w+\s*:", "Python source"),
    (r"\w\[[^\]\n]+\]\s*(?:[-+*/]?=)[^=]", "an assignment"),
)
_MARKUP = (
    (
        r"<\s*/?\s*(?:script|img|iframe|svg|a|div|span|style|link|object|embed|form|input|details|table|br|b|i|p|h[1-6])(?:\s+[\w-]+\s*=[^>]*|\s*/?)>",
        "an HTML tag",
    ),
    (r"<!--", "an HTML comment"),
    (r"(?i:\b(?:javascript|vbscript|data)\s*:\s*[\w/(])", "an active link"),
    (r"(?i:\bon(?:error|load|click|mouseover|focus)\s*=)", "an event handler"),
    (r"--8<--|\{%|\{\{", "an include or template"),
    (r"!?\[[^\]\n]*\]\([^)\n]*\)", "a Markdown link"),
    (r"\{:?\s*[.#][\w-]+[^}]*\}", "an attribute list"),
)
_PLACEHOLDER = re.compile(r"(?i)\b(?:todo|tbd|fixme|xxx+|tba|lorem ipsum)\b|\?\?\?|<(?:what|why|fill|your)[^>]*>")


@dataclass(frozen=True, slots=True)
class Patterns:
    """Patterns with what they find. ``hint`` matches somewhere in every text that any of them matches in."""

    each: tuple[tuple[re.Pattern[str], str], ...]
    hint: re.Pattern[str]


def _compiled(patterns: tuple[tuple[str, str], ...], hint: str) -> Patterns:
    return Patterns(tuple((re.compile(p), what) for p, what in patterns), re.compile(hint))


# Plain sentences have none of these, so one look at most prose is enough.
_SOURCE_HINT = r"[`~#<>%={};@(\[]|__|::|->|\+\+|--|(?:thread|block)Idx|(?:block|grid)Dim|\bdef\b|\blambda\b"
TOKENS = _compiled(_TOKENS, _SOURCE_HINT)
TOKENS_AND_STATEMENTS = _compiled((*_TOKENS, *_STATEMENTS), _SOURCE_HINT)
MARKUP = _compiled(_MARKUP, r"[<\[{:=]|--8<--")


def prose_of(value: dict[str, object], *, contract: bool) -> Iterator[tuple[Loc, str]]:
    """Every prose of an entry with its path, in a fixed order."""
    for name in _CONTRACT if contract else _PRINCIPLE:
        if isinstance(text := value.get(name), str):
            yield (name,), text
    if contract:
        yield from _docs(value, ())
        return
    effect = value.get("effect")
    if isinstance(effect, dict) and isinstance(text := effect.get("of"), str):
        yield ("effect", "of"), text
    related = value.get("related")
    for i, link in enumerate(related if isinstance(related, list) else []):
        if isinstance(link, dict) and isinstance(text := link.get("note"), str):
            yield ("related", i, "note"), text


def findings(text: str, patterns: Patterns) -> Iterator[tuple[str, int, str]]:
    """What is found, where in the text, and what it is. Overlapping finds are one."""
    if patterns.hint.search(text) is None:
        return
    taken: list[tuple[int, int]] = []
    for pattern, what in patterns.each:
        for match in pattern.finditer(text):
            if any(match.start() < end and start < match.end() for start, end in taken):
                continue
            taken.append(match.span())
            found = match.group()
            yield found.strip(), match.start() + len(found) - len(found.lstrip()), what


def placeholders(text: str) -> Iterator[tuple[str, int]]:
    """Words that say the text is not finished."""
    for match in _PLACEHOLDER.finditer(text):
        yield match.group(), match.start()


def _docs(value: object, path: Loc) -> Iterator[tuple[Loc, str]]:
    if isinstance(value, dict):
        for key, below in value.items():
            if key in ("doc", "why", "point", "writes") and isinstance(below, str):
                yield (*path, key), below
            elif key not in ("sweep",):
                yield from _docs(below, (*path, key))
    elif isinstance(value, list):
        for i, below in enumerate(value):
            if isinstance(below, str) and path and path[-1] == "edge_cases":
                yield (*path, i), below
            else:
                yield from _docs(below, (*path, i))
