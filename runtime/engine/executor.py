"""Carrying out a plan: metadata to the device, the model's calls, the tokens.

A decode step is a *program*: the decoder's calls bound once per batch bucket over static buffers. Programs are what a
CUDA graph records and what kernel selection times; the executor itself only runs them. A step with prompts in it has
a shape of its own and is bound and run on the spot.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from runtime.engine.graphs import RecordedProgram, Recorder
from runtime.engine.library_ops import Library
from runtime.engine.plan import Chunk, StepPlan
from runtime.engine.program import LogprobBuffers, Program, SampledEnd, build_program
from runtime.engine.prompt_ops import prompt_operations
from runtime.engine.request import MAX_LOGPROBS, TokenLogprobs
from runtime.engine.sampling import Needs, PenaltyTable, Sampled, SamplingRows
from runtime.engine.sampling_table import SamplingTable
from runtime.engine.staging import Staging
from runtime.kv.swap import SwapSpace
from runtime.models.decoder import Decoder
from runtime.models.step import Sizes, Step, allocate_buffers, allocate_metadata
from runtime.sites import Bound, Selection


@dataclass(frozen=True, slots=True)
class InFlight:
    """A step that was started. ``wait`` is the only point where the host waits for the device."""

    plan: StepPlan
    sampled: Sampled | None
    arrived: torch.cuda.Event | None = None

    def wait(self) -> tuple[list[int], list[TokenLogprobs | None]]:
        """Tokens of ``plan.emitting`` in order, and the log-probabilities of those that asked for them."""
        chunks = self.plan.emitting
        if self.sampled is None:
            return [], []
        if self.arrived is not None:
            self.arrived.synchronize()
        ids = self.sampled.ids.tolist()
        if self.sampled.logprob is None:
            return ids, [None] * len(ids)
        assert self.sampled.top_ids is not None
        assert self.sampled.top_logprobs is not None
        chosen, top_ids = self.sampled.logprob.tolist(), self.sampled.top_ids.tolist()
        top_logprobs = self.sampled.top_logprobs.tolist()
        logprobs: list[TokenLogprobs | None] = []
        for i, chunk in enumerate(chunks):
            count = chunk.request.params.logprobs
            top = tuple(zip(top_ids[i], top_logprobs[i], strict=True))[: count or 0]
            logprobs.append(None if count is None else TokenLogprobs(ids[i], chosen[i], top))
        return ids, logprobs


class Executor:
    """Owns the buffers, the programs and the per-slot tables of one device.

    ``buckets``: batch sizes decode steps are padded to; larger ones run at their own size, without a graph.
    ``graphs``: on a GPU, record decode steps as CUDA graphs. ``fast_prompts``: steps with prompts in them use what is
    faster than the library path where it is there.
    """

    def __init__(
        self,
        decoder: Decoder,
        selection: Selection,
        swap: SwapSpace,
        sizes: Sizes,
        buckets: Sequence[int],
        *,
        graphs: bool = True,
        fast_prompts: bool = True,
    ) -> None:
        device = decoder.weights.embed.device
        self.decoder = decoder
        self.selection = selection
        self.buckets = tuple(sorted(buckets))
        self.sizes = sizes
        metadata = allocate_metadata(sizes, device)
        self.buffers = allocate_buffers(decoder.spec, sizes, metadata, decoder.weights.embed.dtype)
        self._swap = swap
        # Two, because a copy to a GPU may still be reading one while the next step is written.
        self._staging = [Staging(sizes, metadata, decoder.pool.block_size) for _ in range(2)]
        self._steps = 0
        self._programs: dict[tuple[int, Needs | None], Program | RecordedProgram] = {}
        self._recorder = Recorder(metadata, sizes.sequences) if device.type == "cuda" and graphs else None
        self._library = Library()
        self._fast_prompts = fast_prompts
        self._prompts = prompt_operations(device) if fast_prompts else self._library
        self._decode_attention: dict[int, tuple[Bound, ...]] = {}
        self._logits: torch.Tensor | None = None
        self._sampling = SamplingTable(sizes.sequences, decoder.spec.vocab_size, device)
        self._logprobs = LogprobBuffers.allocate(sizes.sequences, min(MAX_LOGPROBS, decoder.spec.vocab_size), device)
        self._penalties: PenaltyTable | None = None
        self._penalised_lives: dict[int, tuple[int, int]] = {}

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> InFlight:
        """Start ``plan``. On a CPU it has also finished."""
        self._swap.copy_out(plan.swap_out)
        self._swap.copy_in(plan.swap_in)
        if not plan.num_tokens:
            return InFlight(plan, None)
        staging = self._staging[self._steps % len(self._staging)]
        self._steps += 1
        if plan.prefill:
            return _in_flight(plan, self._run_mixed(plan, staging))
        return _in_flight(plan, self._run_decode(plan, staging))

    def program(self, bucket: int, greedy: bool = True, needs: Needs | None = None) -> Program | RecordedProgram:
        """The decode program of ``bucket``, bound, and on a GPU recorded, on first use; one that samples for what is
        in ``needs``, unless ``greedy``."""
        key = (bucket, None if greedy else needs or Needs())
        if key not in self._programs:
            self._programs[key] = self._recorded(self.build(bucket, greedy, needs=needs))
        return self._programs[key]

    def build(
        self, bucket: int, greedy: bool, selection: Selection | None = None, needs: Needs | None = None
    ) -> Program:
        """A program of its own, not kept: what kernel selection times."""
        end = None if greedy else self._sampled_end(needs or Needs())
        return build_program(self.decoder, selection or self.selection, self.buffers, bucket, end)

    def _recorded(self, program: Program) -> Program | RecordedProgram:
        """``program`` as a graph where graphs are recorded. Sampling that cannot be captured runs without one."""
        if self._recorder is None or program.bucket not in self.buckets:
            return program
        try:
            return self.record(program)
        except RuntimeError as error:
            if program.greedy:
                raise
            reason = " ".join(str(error).split())[:200]
            warnings.warn(f"steps of {program.bucket} that sample run without a graph ({reason})", stacklevel=3)
            return program

    def _sampled_end(self, needs: Needs) -> SampledEnd:
        penalties = self._penalty_table() if needs.penalises else None
        return SampledEnd(self._logits_buffer(), self._sampling, needs, penalties, self._logprobs)

    def record(self, program: Program) -> RecordedProgram:
        """``program`` as a graph in the engine's pool. Raises RuntimeError without a GPU."""
        if self._recorder is None:
            raise RuntimeError("graphs are recorded on a GPU, with graphs=True")
        return self._recorder.record(program)

    def warm_up(self) -> None:
        """Bind and record the greedy programs of all buckets, the largest first, so that the pool fits them all and
        a lack of memory shows before the first request."""
        for bucket in reversed(self.buckets):
            self.program(bucket, greedy=True)

    def forget_programs(self) -> None:
        """Bind anew from now on: the selection has changed."""
        self._programs.clear()
        self._decode_attention.clear()

    def _run_decode(self, plan: StepPlan, staging: Staging) -> Sampled:
        count = len(plan.decode)
        bucket = next((b for b in self.buckets if b >= count), count)
        staging.write_decode(plan, bucket)
        if all(chunk.request.params.greedy for chunk in plan.decode):
            program = self.program(bucket)
        else:
            program = self.program(bucket, greedy=False, needs=self._prepare_sampling(plan.decode, bucket))
        program.run()
        return program.sampled.first(count)

    def _run_mixed(self, plan: StepPlan, staging: Staging) -> Sampled | None:
        bucket, attention = self._chosen_attention(len(plan.decode))
        segments = staging.write_mixed(plan, bucket)
        chunks = plan.emitting
        buffers = self.buffers.sliced(plan.num_tokens, len(plan.decode) + len(segments))
        packed = staging.pack(segments) if self._fast_prompts and buffers.x.is_cuda else None
        step = Step(buffers, len(plan.decode), segments, len(chunks), packed)
        for call in self.decoder.calls(step):
            if attention and call.site.operation == "paged_decode_attention":
                assert call.layer is not None  # attention is always a layer's
                attention[call.layer]()
            else:
                self._prompts.bind(call)()
        if not chunks:
            return None
        count = len(chunks)
        ends = buffers.sliced(count, count)
        if all(chunk.request.params.greedy for chunk in chunks):
            self._library.bind(self.decoder.argmax(ends))()
            sampled = Sampled(ends.out_ids)
        else:
            end = self._sampled_end(self._prepare_sampling(chunks, count))
            self._library.bind(self.decoder.logits(ends, end.logits[:count]))()
            end.bind(ends)()
            sampled = end.logprobs.beside(ends.out_ids, end.needs)
        self._library.bind(self.decoder.publish(ends))()
        return sampled

    def _chosen_attention(self, count: int) -> tuple[int, tuple[Bound, ...]]:
        """The bucket that ``count`` decoding rows of a step with prompts are attended as, and its bound calls by layer:
        none where the library would run them anyway. Rows past ``count`` belong to prompts, whose attention follows."""
        bucket = next((b for b in self.buckets if b >= count), 0)
        if not self._fast_prompts or not count or not bucket:
            return 0, ()
        if bucket not in self._decode_attention:
            cut = self.buffers.sliced(bucket, bucket)
            calls = self.decoder.calls(Step(cut, num_decode=bucket))
            wanted = [c for c in calls if c.site.operation == "paged_decode_attention"]
            library = all(self.selection.implementation(c.site) is self.selection.library for c in wanted)
            self._decode_attention[bucket] = () if library else tuple(self.selection.bind(c) for c in wanted)
        bound = self._decode_attention[bucket]
        return (bucket, bound) if bound else (0, ())

    def _prepare_sampling(self, chunks: Sequence[Chunk], padded: int) -> Needs:
        """Write what sampling for ``chunks`` reads; what they need, rounded up to what few graphs serve."""
        self._start_penalties(chunks)
        rows: SamplingRows = self._sampling.write(
            [chunk.request.params for chunk in chunks],
            [chunk.request.seed for chunk in chunks],
            [chunk.start + chunk.length for chunk in chunks],
            padded,
        )
        return replace(rows.needs, num_logprobs=MAX_LOGPROBS if rows.needs.num_logprobs >= 0 else -1)

    def _start_penalties(self, chunks: Sequence[Chunk]) -> None:
        """Give the slots of penalised requests that are new to them the tokens there are."""
        for chunk in chunks:
            if not chunk.request.params.penalised or self._penalised_lives.get(chunk.slot) == chunk.life:
                continue
            tokens, prompt = chunk.request.tokens, chunk.request.num_prompt
            self._penalty_table().start(chunk.slot, tokens[:prompt], tokens[prompt:])
            self._penalised_lives[chunk.slot] = chunk.life

    def _penalty_table(self) -> PenaltyTable:
        """Allocated when the first penalised request arrives."""
        if self._penalties is None:
            vocab, device = self.decoder.spec.vocab_size, self.buffers.out_ids.device
            self._penalties = PenaltyTable(self.sizes.sequences, vocab, device)
        return self._penalties

    def _logits_buffer(self) -> torch.Tensor:
        """``[sequences, vocab_size]`` float32, allocated when a request first needs logits."""
        if self._logits is None:
            shape = (self.sizes.sequences, self.decoder.spec.vocab_size)
            self._logits = torch.empty(shape, dtype=torch.float32, device=self.buffers.out_ids.device)
        return self._logits


def _in_flight(plan: StepPlan, sampled: Sampled | None) -> InFlight:
    """Start the copy of the results to the host, so that waiting for them does not wait for the step after, which
    writes its own in their place."""
    if sampled is None:
        return InFlight(plan, None)
    tensors = (sampled.ids, sampled.logprob, sampled.top_ids, sampled.top_logprobs)
    if sampled.ids.device.type != "cuda":
        ids, *logprobs = [None if t is None else t.clone() for t in tensors]
        assert ids is not None
        return InFlight(plan, Sampled(ids, *logprobs))
    host = [None if t is None else torch.empty(t.shape, dtype=t.dtype, pin_memory=True) for t in tensors]
    for there, here in zip(tensors, host, strict=True):
        if there is not None and here is not None:
            here.copy_(there, non_blocking=True)
    arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
    arrived.record()
    ids = host[0]
    assert ids is not None  # every step that samples has tokens
    return InFlight(plan, Sampled(ids, host[1], host[2], host[3]), arrived)
