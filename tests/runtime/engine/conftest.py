"""Checkpoints are made once a session: they are cheap, but not free."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from runtime.engine.config import EngineConfig
from runtime.engine.engine import Engine
from runtime.models.spec import DecoderSpec, read_spec
from runtime.models.weights import DecoderWeights, load_weights
from tests.runtime.engine import checkpoints


@dataclass(frozen=True)
class Checkpoint:
    """A small checkpoint with its transformers model and what the engine loads of it."""

    folder: Path
    model: Any
    spec: DecoderSpec
    weights: DecoderWeights

    def engine(self, **settings: Any) -> Engine:
        """An engine without a tokenizer; settings as in EngineConfig, over small defaults."""
        defaults = {"kv_blocks": 257, "block_size": 4, "max_batch": 8, "max_step_tokens": 64}
        return Engine(self.spec, self.weights, EngineConfig(**{**defaults, **settings}))


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Matrices this small gain nothing from a second thread, and on a busy machine waiting for it costs seconds."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Checkpoint]:
    """Checkpoints by their name in ``checkpoints.SHAPES``."""
    made: dict[str, Checkpoint] = {}

    def make(name: str) -> Checkpoint:
        if name not in made:
            model = checkpoints.build(name)
            folder = checkpoints.save(model, tmp_path_factory.mktemp(name))
            spec = read_spec(folder)
            weights = load_weights(folder, spec, torch.device("cpu"), torch.float32)
            made[name] = Checkpoint(folder, model, spec, weights)
        return made[name]

    return make


@pytest.fixture
def image_cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Compiled kernels go to a folder of this run, not to the user's cache; each is compiled once."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache-home"))
