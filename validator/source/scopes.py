"""Declarations at namespace scope: enough structure to see entries, globals and function bodies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from validator.source.lexer import Token

CONSTANT = frozenset({"const", "constexpr", "__constant__", "constinit"})
_CLASS_KEYS = frozenset({"struct", "class", "union", "enum"})
_NOT_VARIABLES = frozenset({"using", "typedef", "static_assert", "friend", "namespace", "template", "asm"})
# Names that take parentheses without being the function that is declared.
TAKES_PARENTHESES = frozenset(
    {"__attribute__", "alignas", "__align__", "decltype", "__launch_bounds__", "__cluster_dims__", "__maxnreg__",
     "noexcept", "__block_size__", "sizeof", "alignof"}
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Declaration:
    """One declaration: its tokens up to the body or semicolon, and its body's tokens when it is a function.

    ``kind``: ``function`` (with ``body``), ``prototype``, ``variable``, ``class`` or ``other``.
    ``c_linkage``: under extern "C", be it by itself or by the block around it.
    """

    kind: str
    head: tuple[Token, ...]
    c_linkage: bool
    body: tuple[Token, ...] = ()
    _line: int = field(default=0)

    @property
    def line(self) -> int:
        return self.head[0].line if self.head else self._line

    @property
    def name(self) -> str:
        """Name of the function declared; empty for anything else."""
        place = name_position(self.head)
        return self.head[place].text if place is not None else ""


def scan(tokens: Sequence[Token]) -> list[Declaration]:
    """Every declaration at namespace scope, those in named namespaces and linkage blocks included."""
    return list(_scan([t for t in tokens if not t.directive], c_linkage=False))


def constant_names(tokens: Sequence[Token]) -> set[str]:
    """Names of constants: what stands before an initializer in a declaration with ``const`` or the like.

    ``__device__ const`` does not count: it is a variable in device memory that only the compiler takes for constant.
    """
    found: set[str] = set()
    word, on_device = "", False
    for i, token in enumerate(tokens):
        if token.text in CONSTANT:
            word = token.text
        elif token.text == "__device__":
            on_device = True
        elif token.text in (";", "}"):
            word, on_device = "", False
        elif token.text in ("(", "{"):
            on_device = False
        elif word and token.kind == "name" and not (on_device and word == "const"):
            after = i + 1
            while after < len(tokens) and tokens[after].text == "[":
                while after < len(tokens) and tokens[after].text != "]":
                    after += 1
                after += 1
            if after < len(tokens) and tokens[after].text in ("=", "{"):
                found.add(token.text)
    return found


def is_constant(head: Sequence[Token]) -> bool:
    """Whether a variable declared so can never change: a pointer to constants can, a constant pointer cannot."""
    words = [t.text for t in head]
    end = next((i for i, word in enumerate(words) if word in ("=", "{")), len(words))
    words = words[:end]
    if {"constexpr", "__constant__", "constinit"} & set(words):
        return "constinit" not in words or "const" in words
    if "*" in words:
        last = len(words) - 1 - words[::-1].index("*")
        return "const" in words[last:]
    return "const" in words


def name_position(head: Sequence[Token]) -> int | None:
    """Place of the name right before the parameter list; None when there is no parameter list."""
    depth = brackets = 0
    for i, token in enumerate(head):
        if token.text in ("[", "]"):  # an array's size may call functions; it declares none
            brackets += 1 if token.text == "[" else -1
        if brackets:
            continue
        if token.text == "(":
            before = head[i - 1] if i else None
            if depth == 0 and before is not None and before.kind == "name" and before.text not in TAKES_PARENTHESES:
                return i - 1
            depth += 1
        elif token.text == ")":
            depth -= 1
        elif depth == 0 and token.text in ("=", "{"):
            return None
    return None


def _scan(tokens: Sequence[Token], c_linkage: bool) -> Iterator[Declaration]:
    head: list[Token] = []
    depth = i = 0
    while i < len(tokens):
        token = tokens[i]
        if token.text in ("(", "["):
            depth += 1
        elif token.text in (")", "]"):
            depth -= 1
        if depth == 0 and token.text == "{":
            end = _closing(tokens, i)
            inner = tokens[i + 1 : end]
            names = [t.text for t in head]
            linkage = [t for t in head if t.kind == "string"]
            if "namespace" in names:
                yield from _scan(inner, c_linkage)
                head = []
            elif names[:1] == ["extern"] and len(names) == 2 and linkage:
                yield from _scan(inner, linkage[0].text == '"C"')
                head = []
            elif _is_function(head):
                c = c_linkage or _has_c_linkage(head)
                yield Declaration("function", tuple(head), c, tuple(inner))
                head = []
            elif _CLASS_KEYS & set(names) and "=" not in names:
                yield Declaration("class", tuple(head), c_linkage, tuple(inner))
                head = [t for t in head if t.text in CONSTANT]  # what follows, if anything, is a variable of it
                if end + 1 >= len(tokens) or tokens[end + 1].text == ";":
                    head = []
            # else: an initializer; what follows belongs to the same declaration
            i = end + 1
            continue
        if depth == 0 and token.text == ";":
            if head:
                yield Declaration(_kind(head), tuple(head), c_linkage or _has_c_linkage(head))
            head = []
        elif token.text != "}":
            head.append(token)
        i += 1
    if head:
        yield Declaration("other", tuple(head), c_linkage)


def _closing(tokens: Sequence[Token], start: int) -> int:
    depth = 0
    for i in range(start, len(tokens)):
        if tokens[i].text == "{":
            depth += 1
        elif tokens[i].text == "}":
            depth -= 1
            if depth == 0:
                return i
    return len(tokens) - 1


def _is_function(head: Sequence[Token]) -> bool:
    """A parameter list, and nothing after it that makes the brace an initializer."""
    place = name_position(head)
    if place is None:
        operators = [t.text for t in head]
        return "operator" in operators
    names = {t.text for t in head[:place]}
    return not (_CLASS_KEYS & names and head[0].text in _CLASS_KEYS and "(" not in {t.text for t in head})


def _kind(head: Sequence[Token]) -> str:
    head = _without_template(head)
    if not head or head[0].text in _NOT_VARIABLES:
        return "other"
    if head[0].text in _CLASS_KEYS and len(head) <= 2:
        return "class"
    return "prototype" if name_position(head) is not None else "variable"


def _without_template(head: Sequence[Token]) -> Sequence[Token]:
    """The declaration behind ``template <...>``; an explicit instantiation is nothing of interest."""
    while len(head) > 1 and head[0].text == "template" and head[1].text == "<":
        depth = 0
        for i, token in enumerate(head[1:], 1):
            depth += token.text.count("<") if token.text in ("<", "<<") else 0
            depth -= token.text.count(">") if token.text in (">", ">>") else 0
            if depth == 0:
                head = head[i + 1 :]
                break
        else:
            return ()
    return head


def _has_c_linkage(head: Sequence[Token]) -> bool:
    return len(head) > 1 and head[0].text == "extern" and head[1].text == '"C"'
