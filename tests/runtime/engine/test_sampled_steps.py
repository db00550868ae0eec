"""Sampling is part of the step: the same functions on static memory, whatever the requests of a step ask for."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from runtime.engine.program import LogprobBuffers, Program, SampledEnd
from runtime.engine.request import MAX_LOGPROBS, SamplingParams
from runtime.engine.sampling import Needs, PenaltyTable, Sampled, sample
from runtime.engine.sampling_table import SamplingTable, sampling_rows
from tests.runtime.engine.conftest import Checkpoint

CPU = torch.device("cpu")
PROMPT = [5, 9, 30, 7]
PARAMS = [
    SamplingParams(temperature=0.7, top_k=5),
    SamplingParams(temperature=1.3, top_p=0.6, repetition_penalty=1.4),
    SamplingParams(),
    SamplingParams(temperature=1.0, min_p=0.1, presence_penalty=0.5, frequency_penalty=0.2, logprobs=3),
]


def test_the_end_of_a_program_gives_what_the_sampler_gives_step_after_step(
    checkpoint: Callable[[str], Checkpoint],
) -> None:
    executor = checkpoint("qwen3").engine(max_batch=4).executor
    vocab, count = executor.decoder.spec.vocab_size, len(PARAMS)
    buffers = executor.buffers.sliced(count, count)
    buffers.request_slots.copy_(torch.tensor([3, 0, 2, 1]))
    tables = [PenaltyTable(4, vocab, CPU) for _ in range(2)]
    for table in tables:
        table.start(0, [1, 2], [3, 3])
        table.start(1, [4], [5])
    static = SamplingTable(8, vocab, CPU)
    logits = torch.empty(8, vocab)
    logprobs = LogprobBuffers.allocate(8, 3, CPU)
    end = SampledEnd(logits, static, Needs.of(PARAMS), tables[0], logprobs)
    run = end.bind(buffers)
    for step in range(6):
        logits.normal_(std=3, generator=torch.Generator().manual_seed(step))
        seeds, positions = [step + 1, 7, 8, 9], [step, step + 4, 2, 50]
        static.write(PARAMS, seeds, positions, count)
        run()
        rows = sampling_rows(PARAMS, seeds, positions, vocab, CPU)
        expected = sample(logits[:count], rows, tables[1], buffers.request_slots)
        tables[1].count(buffers.request_slots, expected.ids)
        found = end.logprobs.beside(buffers.out_ids, end.needs)
        assert found.ids.tolist() == expected.ids.tolist()
        for name in ("logprob", "top_ids", "top_logprobs"):
            assert torch.equal(getattr(found, name), getattr(expected, name)), name
        assert torch.equal(tables[0].output, tables[1].output)


def test_rows_written_again_serve_a_program_that_was_bound_before() -> None:
    table = SamplingTable(3, 10, CPU)
    rows = table.rows(2, Needs())
    table.write([SamplingParams(temperature=0.5, top_k=99), SamplingParams()], [1 << 40, 2], [3, 4], 2)
    assert rows.temperature.tolist() == [0.5, 0.0]
    assert rows.top_k.tolist() == [10, 10]
    assert rows.position.tolist() == [3, 4]
    table.write([SamplingParams(temperature=2.0, top_k=3, top_p=0.5)], [5], [6], 2)
    assert rows.temperature.tolist() == [2.0, 0.0]
    assert rows.top_k.tolist() == [3, 10]
    assert rows.top_p.tolist() == [0.5, 1.0]
    assert rows.seed.tolist() == [5, 0]


def test_steps_with_the_same_needs_share_a_program(checkpoint: Callable[[str], Checkpoint]) -> None:
    engine = checkpoint("qwen3").engine(max_batch=2)
    for number, temperature in enumerate((0.5, 1.5)):
        params = SamplingParams(max_tokens=4, ignore_eos=True, temperature=temperature, seed=number)
        engine.generate([PROMPT], params)
    plain = engine.executor.program(1, greedy=False, needs=Needs(draws=True))
    assert isinstance(plain, Program)
    assert plain is engine.executor.program(1, greedy=False, needs=Needs(draws=True))
    assert plain is not engine.executor.program(1, greedy=False, needs=Needs(draws=True, filters=True))
    assert [c.site.operation for c in plain.calls[-3:]] == ["lm_head_logits", "sample_tokens", "publish_tokens"]
    assert len(plain.calls) == len(plain.bound)


@pytest.mark.parametrize("count", [0, 1, MAX_LOGPROBS])
def test_log_probabilities_of_sampled_steps_add_up(count: int, checkpoint: Callable[[str], Checkpoint]) -> None:
    engine = checkpoint("qwen3").engine(max_batch=2)
    params = SamplingParams(max_tokens=6, ignore_eos=True, temperature=1.0, seed=3, logprobs=count)
    [result] = engine.generate([PROMPT], params)
    assert len(result.logprobs) == 6
    for token, entry in zip(result.token_ids, result.logprobs, strict=True):
        assert entry.token_id == token
        assert len(entry.top) == count
        assert entry.logprob <= 0
        assert all(token != other or logprob == entry.logprob for other, logprob in entry.top)
        assert sum(2.718281828**logprob for _, logprob in entry.top) <= 1 + 1e-5


def test_without_log_probabilities_nothing_is_kept() -> None:
    buffers = LogprobBuffers.allocate(2, 4, CPU)
    ids = torch.tensor([1, 2])
    buffers.keep(Sampled(ids))
    assert buffers.beside(ids, Needs()) == Sampled(ids)
    assert not buffers.chosen.any()
