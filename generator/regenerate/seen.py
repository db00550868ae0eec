"""The analyzer's view of the model's graph beside the engine's: reasons for what is skipped, and where they differ.

The engine's own definition of the decode step decides which dims kernels are looked up by, so it decides here. The
graph of the model as its authors wrote it is the check: a pattern that only one of the two sees is worth a line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from generator.regenerate.patterns import Pattern, dims_text

if TYPE_CHECKING:
    from generator.analyze import Match, PatternResult
    from kb.contract import Contract

# The graph is captured at some number of rows, whatever the batches of steps are.
_OPEN = frozenset({"num_tokens"})


def look(model_dir: Path, contracts: Mapping[str, Contract]) -> tuple[tuple[PatternResult, ...], str | None]:
    """What the analyzer finds in the checkpoint's graph, or nothing and why it could not be captured."""
    try:
        from generator.analyze import patterns_of_checkpoint
        from generator.capture import CheckpointError
    except ImportError as error:
        return (), f"The model's graph was not checked: that needs {error.name}."
    try:
        return patterns_of_checkpoint(model_dir, contracts=contracts), None
    except CheckpointError as error:
        return (), f"The model's graph was not checked: {error}."


def compared(patterns: Sequence[Pattern], seen: Sequence[PatternResult]) -> tuple[list[Pattern], list[str]]:
    """``patterns`` with the analyzer's reasons where it has better ones, and a note for each difference."""
    if not seen:
        return list(patterns), []
    by_contract = {result.contract: result for result in seen}
    told, notes = [], []
    for pattern in patterns:
        result = by_contract.get(pattern.contract.id)
        if result is None:
            told.append(pattern)
            continue
        told.append(_explained(pattern, result))
        notes += _differences(pattern, result)
    return told, notes


def _explained(pattern: Pattern, result: PatternResult) -> Pattern:
    if pattern.found or not result.skipped:
        return pattern
    skip = result.skipped[0]
    return replace(pattern, reason=f"{pattern.reason}; in the graph, {skip.module or 'nowhere'}: {skip.reason}")


def _differences(pattern: Pattern, result: PatternResult) -> list[str]:
    name = pattern.contract.id
    if not pattern.found:
        if not result.found:
            return []
        return [f"{name} is in the graph ({_place(result.found[0])}), but the engine's decode step does not call it."]
    if not result.found:
        why = f": {result.skipped[0].reason}" if result.skipped else ""
        return [f"{name} is called by the engine's decode step, but was not seen in the model's graph{why}."]
    return [
        f"{name} has {dims_text(_fixed(match))} in the graph ({_place(match)}), which no call of the engine's step has."
        for match in result.found
        if not any(_agrees(match, need.at) for need in (*pattern.needs, *pattern.parts))
    ]


def _agrees(match: Match, at: Mapping[str, int]) -> bool:
    return all(at.get(dim) == value for dim, value in _fixed(match).items())


def _fixed(match: Match) -> dict[str, int]:
    return {dim: value for dim, value in match.dims.items() if dim not in _OPEN and dim not in match.assumed}


def _place(match: Match) -> str:
    return match.module or "at its end"
