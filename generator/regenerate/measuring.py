"""What the kernels are worth: chosen by measurement inside the step, then decoding timed before and after, in turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from generator.regenerate.tasks import Setup
from kb.dtype import Target
from kb.store import Entry, KernelStore
from runtime.engine.choosing import BucketChoice
from runtime.engine.config import EngineConfig
from runtime.engine.engine import Engine
from runtime.engine.library_ops import Library
from runtime.engine.selecting import select
from runtime.engine.workload import Measured, Workload, engine_arm, measure
from runtime.models.weights import DecoderWeights, load_weights
from runtime.sites import Selection

LIBRARY_PATH, BEFORE, NOW = "library path", "before", "now"


@dataclass(frozen=True, slots=True)
class Decoding:
    """How the model decodes. ``prompt`` and ``output`` tokens, ``rounds`` interleaved repetitions."""

    prompt: int = 128
    output: int = 128
    rounds: int = 3


@dataclass(frozen=True, slots=True)
class Bucket:
    """One batch size: what runs at its sites now, and the speed of each path. ``speeds`` has BEFORE only where other
    implementations ran before than now."""

    size: int
    choice: BucketChoice
    speeds: dict[str, Measured]


class StoreAsOf(KernelStore):
    """The store as it was at ``moment``: kernels admitted since, and verdicts given since, are not there."""

    def __init__(self, root: Path, moment: datetime) -> None:
        super().__init__(root)
        self._moment = moment

    def admitted(self, contract: str, target: Target) -> list[Entry]:
        """See KernelStore.admitted."""
        found = []
        for entry in super().admitted(contract, target):
            verdicts = tuple(v for v in entry.manifest.verdicts if v.judged_at < self._moment)
            if verdicts:
                manifest = entry.manifest.model_copy(update={"verdicts": verdicts})
                found.append(Entry(entry.folder, manifest, entry.source))
        return found


def measure_model(setup: Setup, begun: datetime, decoding: Decoding, *, selections: Path | None = None) -> list[Bucket]:
    """Choose and measure for every bucket. ``begun``: when this regeneration started, which is what before means.

    ``selections``: folder of the records of choices; default: the user's cache. Raises ModelError, ConfigError,
    RuntimeFailure.
    """
    import torch

    device = torch.device("cuda" if setup.target is Target.CUDA else "cpu")
    dtype = getattr(torch, setup.spec.dtype.value)
    weights = load_weights(setup.model_dir, setup.spec, device, dtype)
    return [_bucket(setup, weights, size, begun, decoding, selections) for size in setup.buckets]


def _bucket(
    setup: Setup, weights: DecoderWeights, size: int, begun: datetime, decoding: Decoding, selections: Path | None
) -> Bucket:
    stores: dict[str, KernelStore] = {NOW: setup.store}
    before = StoreAsOf(setup.store.root, begun)
    if _verdicts(before, setup) != _verdicts(setup.store, setup):
        stores = {BEFORE: before, NOW: setup.store}
    engines = {name: _engine(setup, weights, size, decoding) for name in (LIBRARY_PATH, *stores)}
    try:
        choices = {
            name: select(
                engines[name].executor,
                setup.library.root,
                store=store,
                buckets=(size,),
                context=decoding.prompt + decoding.output // 2,
                cache=selections,
            )[0]
            for name, store in stores.items()
        }
        if BEFORE in choices and _chosen(choices[BEFORE]) == _chosen(choices[NOW]):
            engines.pop(BEFORE).close()
        work = Workload(decoding.prompt, decoding.output, size, setup.spec.vocab_size)
        measured = measure({name: engine_arm(engine, work) for name, engine in engines.items()}, decoding.rounds)
    finally:
        for engine in engines.values():
            engine.close()
    return Bucket(size, choices[NOW], measured)


def _engine(setup: Setup, weights: DecoderWeights, size: int, decoding: Decoding) -> Engine:
    """One engine; all share the weights, and none takes more cache than the workload needs."""
    length = decoding.prompt + decoding.output + 1
    config = EngineConfig(
        max_batch=size,
        buckets=(size,),
        max_model_len=length,
        kv_blocks=1 + size * -(-length // 16),
        prefix_cache=False,
    )
    return Engine(setup.spec, weights, config, selection=Selection(Library()))


def _chosen(choice: BucketChoice) -> Sequence[tuple[str, str]]:
    return [(str(s.site), s.digest or s.chosen) for s in choice.sites]


def _verdicts(store: KernelStore, setup: Setup) -> dict[str, int]:
    """Kernels that may run, and how many verdicts each has."""
    entries = [e for c in setup.library.contracts for e in store.admitted(c, setup.target)]
    return {e.digest: len(e.manifest.verdicts) for e in entries}
