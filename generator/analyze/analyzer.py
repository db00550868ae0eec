"""The analyzer's entry points: a graph, or a checkpoint's folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from generator.analyze.analysis import Analysis, PatternResult
from generator.analyze.patterns import find_patterns
from generator.analyze.regions import find_regions
from generator.analyze.structures import find_structures
from generator.ir import Graph
from kb.contract import Contract
from kb.library import assemble, entry_paths, library_root, load_entry

if TYPE_CHECKING:
    from generator.capture import Example


def analyze(graph: Graph, contracts: Mapping[str, Contract] | None = None) -> Analysis:
    """Regions, hard boundaries and patterns of a graph; the same graph always gives the same analysis.

    ``contracts`` are the library's own unless given.
    """
    structures = find_structures(graph)
    regions, boundaries = find_regions(graph, structures)
    known = own_contracts() if contracts is None else contracts
    return Analysis(regions, boundaries, find_patterns(graph, structures, known))


def own_contracts() -> Mapping[str, Contract]:
    """The contracts of the library in use, without its principles."""
    root = library_root()
    paths = (path for path in entry_paths(root) if path.startswith("contracts/"))
    return assemble(root, (load_entry(root, path) for path in paths)).contracts


def patterns_of_checkpoint(
    model_dir: Path,
    *,
    layers: int = 1,
    contracts: Mapping[str, Contract] | None = None,
    example: Example | None = None,
) -> tuple[PatternResult, ...]:
    """The patterns of the checkpoint in ``model_dir``, from its config alone: no weight is read, no memory needed.

    A decoder is captured as one decode step over a cache, longer than its sliding window where it has one; an encoder
    as one forward. Raises generator.capture.CheckpointError when there is no config that transformers can build, and
    when the model cannot be captured whole.
    """
    from generator.capture import CheckpointError, capture_checkpoint

    captured = capture_checkpoint(model_dir, layers=layers, example=example)
    if not captured.is_whole:
        first = captured.problems[0]
        raise CheckpointError(f"{model_dir}: the model cannot be captured whole: {first}")
    structures = find_structures(captured.graph)
    known = own_contracts() if contracts is None else contracts
    return find_patterns(captured.graph, structures, known)
