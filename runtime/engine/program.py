"""A decode step bound to static buffers: the list of functions that a graph records and a timing loop repeats."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from runtime.engine.sampling import Needs, PenaltyTable, Sampled, sample
from runtime.engine.sampling_table import SamplingTable
from runtime.models.decoder import Decoder
from runtime.models.step import Step, StepBuffers
from runtime.sites import Bound, Selection, Site, SiteCall


@dataclass(frozen=True, slots=True)
class Program:
    """A whole decode step of ``bucket`` sequences.

    ``calls[i]`` is what ``bound[i]`` runs. The tokens end up in ``buffers.out_ids``, published; a program that samples
    leaves their log-probabilities in ``sampled`` as well, where it needs any.
    """

    bucket: int
    greedy: bool
    buffers: StepBuffers
    calls: tuple[SiteCall, ...]
    bound: tuple[Bound, ...]
    sampled: Sampled

    def run(self) -> None:
        """Run the step on the current stream; nothing waits for the host, and nothing here allocates by choice."""
        for call in self.bound:
            call()


@dataclass(frozen=True, slots=True)
class LogprobBuffers:
    """Where sampled steps leave log-probabilities: ``chosen`` float32 ``[sequences]``, ``top_ids`` int64 and ``top``
    float32 ``[sequences, most]``."""

    chosen: torch.Tensor
    top_ids: torch.Tensor
    top: torch.Tensor

    @classmethod
    def allocate(cls, sequences: int, most: int, device: torch.device) -> LogprobBuffers:
        """Room for ``most`` of the most probable tokens of each sequence."""
        ids = torch.zeros((sequences, most), dtype=torch.int64, device=device)
        return cls(torch.zeros(sequences, device=device), ids, torch.zeros((sequences, most), device=device))

    def keep(self, sampled: Sampled) -> None:
        """Copy what ``sampled`` has."""
        if sampled.logprob is None or sampled.top_ids is None or sampled.top_logprobs is None:
            return
        count, most = sampled.top_ids.shape
        self.chosen[:count].copy_(sampled.logprob)
        self.top_ids[:count, :most].copy_(sampled.top_ids)
        self.top[:count, :most].copy_(sampled.top_logprobs)

    def beside(self, ids: torch.Tensor, needs: Needs) -> Sampled:
        """What was kept for the rows of ``ids``, as ``needs`` says."""
        count, most = ids.shape[0], min(needs.num_logprobs, self.top.shape[1])
        if needs.num_logprobs < 0:
            return Sampled(ids)
        return Sampled(ids, self.chosen[:count], self.top_ids[:count, :most], self.top[:count, :most])


@dataclass(frozen=True, slots=True)
class SampledEnd:
    """How a program ends that is not greedy: where its logits go, the parameters it reads, what it leaves.

    ``logits``: float32 ``[sequences, vocab_size]``.
    """

    logits: torch.Tensor
    table: SamplingTable
    needs: Needs
    penalties: PenaltyTable | None
    logprobs: LogprobBuffers

    def bind(self, buffers: StepBuffers) -> Bound:
        """A function that samples a token for every row of ``buffers``."""
        count = buffers.out_ids.shape[0]
        logits, rows = self.logits[:count], self.table.rows(count, self.needs)

        def run() -> None:
            sampled = sample(logits, rows, self.penalties, buffers.request_slots)
            buffers.out_ids.copy_(sampled.ids)
            if self.penalties is not None and self.needs.penalises:
                self.penalties.count(buffers.request_slots, sampled.ids)
            self.logprobs.keep(sampled)

        return run


def build_program(
    decoder: Decoder, selection: Selection, buffers: StepBuffers, bucket: int, end: SampledEnd | None
) -> Program:
    """Bind the step of ``bucket`` sequences over ``buffers``, greedy without an ``end``. May raise
    FallbackRefusedError."""
    cut = buffers.sliced(bucket, bucket)
    calls = list(decoder.calls(Step(cut, num_decode=bucket)))
    calls.append(decoder.argmax(cut) if end is None else decoder.logits(cut, end.logits[:bucket]))
    calls = [part for call in calls for part in selection.expand(call)]
    bound = [selection.bind(call) for call in calls]
    if end is not None:
        calls.append(SiteCall(Site("sample_tokens", (("num_tokens", bucket),), decoder.storage), {}, {}))
        bound.append(end.bind(cut))
    calls.append(decoder.publish(cut))
    bound.append(selection.bind(calls[-1]))
    sampled = Sampled(cut.out_ids) if end is None else end.logprobs.beside(cut.out_ids, end.needs)
    return Program(bucket, end is None, cut, tuple(calls), tuple(bound), sampled)
