"""A decode step bound to static buffers: the list of functions that a graph records and a timing loop repeats."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from runtime.models.decoder import Decoder
from runtime.models.step import Step, StepBuffers
from runtime.sites import Bound, Selection, SiteCall


@dataclass(frozen=True, slots=True)
class Program:
    """A whole decode step of ``bucket`` sequences.

    ``calls[i]`` is what ``bound[i]`` runs. A greedy program ends with the tokens in ``buffers.out_ids`` and
    published; any other ends with float32 logits, and sampling follows.
    """

    bucket: int
    greedy: bool
    buffers: StepBuffers
    calls: tuple[SiteCall, ...]
    bound: tuple[Bound, ...]

    def run(self) -> None:
        """Run the step on the current stream; nothing waits for the host, and nothing here allocates by choice."""
        for call in self.bound:
            call()


def build_program(
    decoder: Decoder, selection: Selection, buffers: StepBuffers, bucket: int, logits: torch.Tensor | None
) -> Program:
    """Bind the step of ``bucket`` sequences over ``buffers``. With ``logits``, they are written there instead of an
    argmax being taken. May raise FallbackRefusedError."""
    cut = buffers.sliced(bucket, bucket)
    calls = list(decoder.calls(Step(cut, num_decode=bucket)))
    if logits is None:
        calls += [decoder.argmax(cut), decoder.publish(cut)]
    else:
        calls.append(decoder.logits(cut, logits[:bucket]))
    calls = [part for call in calls for part in selection.expand(call)]
    bound = tuple(selection.bind(call) for call in calls)
    return Program(bucket, logits is None, cut, tuple(calls), bound)
