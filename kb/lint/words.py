"""What a title or a claim is about: its content words, without grammar and without *do* and *do not*."""

from __future__ import annotations

import re

_GRAMMAR = """
    a about above after all also an and any are as at be because been before below between both but by can cannot
    could do does each either else every few for from has have how if in instead into is it its least less like many
    may more most much must near neither no nor of off on once one only onto or other otherwise out over own per put
    rather same set so some still such than that the their them then there these they this those through to too
    under until up upon use used uses using very was were what when where whether which while who whose why will
    with within without would you your let make keep give take hold never not avoid dont
"""
_STOP = frozenset(_GRAMMAR.split())
_WORD = re.compile(r"[a-z][a-z0-9]*")


def subject_words(text: str) -> frozenset[str]:
    """Stems of the content words of ``text``; an opposite claim about one subject has nearly the same."""
    return frozenset(_stem(w) for w in _WORD.findall(text.casefold()) if len(w) > 2 and w not in _STOP)


def _stem(word: str) -> str:
    for ending in ("ings", "ing", "ies", "ied", "ers", "es", "ed", "er", "s", "e"):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return word[: len(word) - len(ending)]
    return word
