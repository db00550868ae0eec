"""A decode program recorded as one CUDA graph and replayed.

Recording runs the program for real, so it runs on padding: every row points at the dummy block and the padding slot,
whatever the engine is doing meanwhile, and the metadata is put back afterwards. All graphs share one memory pool;
recorded largest first, the pool is about as large as the largest graph's intermediates.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from runtime.engine.program import Program
from runtime.engine.sampling import Sampled
from runtime.kv.blocks import DUMMY_BLOCK
from runtime.models.step import Metadata, StepBuffers

_WARM_UP_RUNS = 2


@dataclass(frozen=True, slots=True)
class RecordedProgram:
    """A program whose ``run`` replays a graph. Keeps the program: its tensors are the graph's."""

    program: Program
    graph: torch.cuda.CUDAGraph

    @property
    def buffers(self) -> StepBuffers:
        """Where the step reads and leaves its results."""
        return self.program.buffers

    @property
    def sampled(self) -> Sampled:
        """Tokens of the step, and log-probabilities where it needs any."""
        return self.program.sampled

    def run(self) -> None:
        """Replay on the current stream."""
        self.graph.replay()


class Recorder:
    """Records programs over one set of metadata into one pool."""

    def __init__(self, metadata: Metadata, padding_slot: int) -> None:
        self._metadata = metadata
        self._padding_slot = padding_slot
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    @torch.inference_mode()
    def record(self, program: Program) -> RecordedProgram:
        """``program`` as a graph. Raises RuntimeError when a call of it cannot be captured."""
        graph = torch.cuda.CUDAGraph()
        with self._on_padding():
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                for _ in range(_WARM_UP_RUNS):  # compiles, and creates the libraries' handles and workspaces
                    program.run()
                self._stream.synchronize()
                with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
                    program.run()
            torch.cuda.current_stream().wait_stream(self._stream)
        return RecordedProgram(program, graph)

    @contextmanager
    def _on_padding(self) -> Iterator[None]:
        kept = self._metadata.flat.clone()
        self._metadata.flat.zero_()
        self._metadata.block_table.fill_(DUMMY_BLOCK)
        self._metadata.seq_lens.fill_(1)
        self._metadata.request_slots.fill_(self._padding_slot)
        try:
            yield
        finally:
            torch.cuda.synchronize()
            self._metadata.flat.copy_(kept)
