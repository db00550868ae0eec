"""Sampling follows transformers' definitions, and depends on seed, position and logits alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from runtime.engine.request import RequestError, SamplingParams
from runtime.engine.sampling import PenaltyTable, Sampled, penalised, sample
from runtime.engine.sampling_table import sampling_rows
from tests.runtime.engine.conftest import Checkpoint

VOCAB = 40
CPU = torch.device("cpu")
SLOTS = torch.zeros(1, dtype=torch.int32)


def draw(logits: torch.Tensor, params: SamplingParams, seeds: Sequence[int], position: int = 5) -> Sampled:
    """One token per seed from the same logits."""
    rows = sampling_rows([params] * len(seeds), seeds, [position] * len(seeds), logits.numel(), CPU)
    return sample(logits.expand(len(seeds), -1), rows, None, SLOTS.expand(len(seeds)))


def reference(logits: torch.Tensor, *steps: Any) -> torch.Tensor:
    """Probabilities after transformers' processors."""
    processed = LogitsProcessorList(steps)(torch.zeros(1, 1, dtype=torch.long), logits[None].clone())
    return processed.softmax(-1)[0]


@pytest.mark.parametrize(
    ("params", "steps"),
    [
        ({"temperature": 1.0}, []),
        ({"temperature": 0.5}, [TemperatureLogitsWarper(0.5)]),
        ({"temperature": 1.0, "top_k": 5}, [TopKLogitsWarper(5)]),
        ({"temperature": 1.0, "top_p": 0.7}, [TopPLogitsWarper(0.7)]),
        ({"temperature": 1.0, "min_p": 0.2}, [MinPLogitsWarper(0.2)]),
        (
            {"temperature": 1.3, "top_k": 12, "top_p": 0.8, "min_p": 0.1},
            [TemperatureLogitsWarper(1.3), TopKLogitsWarper(12), TopPLogitsWarper(0.8), MinPLogitsWarper(0.1)],
        ),
    ],
    ids=["plain", "temperature", "top_k", "top_p", "min_p", "all"],
)
def test_tokens_are_drawn_from_the_distribution_transformers_defines(params: dict[str, Any], steps: list[Any]) -> None:
    logits = torch.randn(VOCAB, generator=torch.Generator().manual_seed(1)) * 2
    probabilities = reference(logits, *steps)
    count = 6000
    drawn = draw(logits, SamplingParams(**params), range(count)).ids
    observed = torch.bincount(drawn, minlength=VOCAB)
    assert not observed[probabilities == 0].any(), "drew a token that was filtered out"
    deviation = (probabilities * (1 - probabilities) / count).sqrt()
    assert ((observed / count - probabilities).abs() <= 5 * deviation + 1e-9).all()


def test_temperature_zero_is_argmax_and_ties_take_the_lowest_id() -> None:
    logits = torch.zeros(VOCAB)
    logits[[7, 20]] = 3.0
    assert draw(logits, SamplingParams(temperature=0, top_k=3), [1, 2]).ids.tolist() == [7, 7]


def test_one_seed_gives_one_token_whatever_else_is_in_the_batch() -> None:
    logits = torch.randn(6, VOCAB)
    params = [
        SamplingParams(temperature=1.0, top_p=0.9) if i % 2 else SamplingParams(temperature=1.0) for i in range(6)
    ]
    together = sample(logits, sampling_rows(params, range(6), range(6), VOCAB, CPU), None, SLOTS.expand(6)).ids
    for i in range(6):
        alone = sampling_rows([params[i]], [i], [i], VOCAB, CPU)
        assert sample(logits[i : i + 1], alone, None, SLOTS).ids.item() == together[i].item()


def test_positions_and_seeds_draw_independently() -> None:
    logits = torch.zeros(VOCAB)
    params = SamplingParams(temperature=1.0)
    by_seed = draw(logits, params, range(2000)).ids
    rows = sampling_rows([params] * 2000, [3] * 2000, range(2000), VOCAB, CPU)
    by_position = sample(logits.expand(2000, -1), rows, None, SLOTS.expand(2000)).ids
    for ids in (by_seed, by_position):
        counts = torch.bincount(ids, minlength=VOCAB).float()
        assert counts.min() > 50 * 0.3
        assert counts.max() < 50 * 2
        agree = (ids[1:] == ids[:-1]).float().mean()
        assert agree < 3 / VOCAB


def test_padding_rows_do_not_disturb_the_others() -> None:
    params = SamplingParams(temperature=1.0)
    logits = torch.randn(4, VOCAB)
    rows = sampling_rows([params], [9], [2], VOCAB, CPU, padded_to=4)
    alone = sampling_rows([params], [9], [2], VOCAB, CPU)
    padded = sample(logits, rows, None, SLOTS.expand(4)).ids
    assert padded[0] == sample(logits[:1], alone, None, SLOTS).ids[0]
    assert padded[1:].tolist() == logits[1:].argmax(-1).tolist()


@settings(max_examples=60, deadline=None)
@given(
    st.floats(0.5, 2),
    st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=20),
    st.lists(st.integers(0, VOCAB - 1), max_size=20),
)
def test_the_repetition_penalty_is_that_of_transformers(penalty: float, prompt: list[int], output: list[int]) -> None:
    logits = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(len(prompt)))
    truth = RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([prompt + output]), logits.clone())
    table = PenaltyTable(2, VOCAB, CPU)
    table.start(1, prompt, output)
    rows = sampling_rows([SamplingParams(repetition_penalty=penalty)], [0], [0], VOCAB, CPU)
    torch.testing.assert_close(penalised(logits, rows, table.prompt[1:2], table.output[1:2]), truth)


def test_presence_and_frequency_penalties_count_the_output_alone() -> None:
    table = PenaltyTable(1, VOCAB, CPU)
    table.start(0, [1, 2], [2, 2])
    table.count(torch.tensor([0]), torch.tensor([3]))
    params = SamplingParams(presence_penalty=1.0, frequency_penalty=0.25)
    rows = sampling_rows([params], [0], [0], VOCAB, CPU)
    changed = penalised(torch.zeros(1, VOCAB), rows, table.prompt[:1], table.output[:1])[0]
    assert changed[[1, 2, 3, 4]].tolist() == [0.0, -1.5, -1.25, 0.0]


def test_a_slot_forgets_the_request_that_had_it_before() -> None:
    table = PenaltyTable(1, VOCAB, CPU)
    table.start(0, [1], [2, 2])
    table.start(0, [3], [])
    assert table.prompt[0].nonzero()[:, 0].tolist() == [3]
    assert not table.output[0].any()


@pytest.mark.parametrize(
    "bad",
    [
        {"max_tokens": 0},
        {"temperature": -1.0},
        {"temperature": float("nan")},
        {"top_k": -1},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"min_p": 1.0},
        {"repetition_penalty": 0.0},
        {"presence_penalty": float("nan")},
        {"seed": -1},
        {"stop": ("",)},
        {"logprobs": 21},
    ],
)
def test_values_that_make_no_sense_are_refused_by_name(bad: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match=f"^{next(iter(bad))} is "):
        SamplingParams(**bad)


PROMPT = [5, 9, 30, 7]


@pytest.mark.parametrize(
    "settings_",
    [{}, {"max_step_tokens": 9, "max_batch": 2}, {"kv_blocks": 14}, {"lookahead": 1}],
    ids=["roomy", "chunked", "preempted", "lookahead"],
)
def test_a_seeded_request_gets_the_same_tokens_however_the_engine_runs(
    settings_: dict[str, Any], checkpoint: Callable[[str], Checkpoint]
) -> None:
    c = checkpoint("llama")
    params = [
        SamplingParams(
            max_tokens=16, ignore_eos=True, temperature=0.8, seed=i, top_p=0.9, repetition_penalty=1.2,
            presence_penalty=0.3,
        )
        for i in range(3)
    ]  # fmt: skip
    alone = [c.engine().generate([PROMPT * (i + 1)], p)[0].token_ids for i, p in enumerate(params)]
    together = c.engine(**settings_).generate([PROMPT * (i + 1) for i in range(3)], params)
    assert [r.token_ids for r in together] == alone
    assert len(set(alone)) == 3


def test_greedy_penalised_and_sampled_requests_share_a_batch(checkpoint: Callable[[str], Checkpoint]) -> None:
    c = checkpoint("qwen3")
    params = [
        SamplingParams(max_tokens=12, ignore_eos=True),
        SamplingParams(max_tokens=12, ignore_eos=True, repetition_penalty=1.5),
        SamplingParams(max_tokens=12, ignore_eos=True, temperature=1.0, seed=4),
        SamplingParams(max_tokens=12, ignore_eos=True, logprobs=2),
    ]
    alone = [c.engine().generate([PROMPT], p)[0].token_ids for p in params]
    together = [r.token_ids for r in c.engine().generate([PROMPT] * 4, params)]
    assert together == alone
    assert together[0] == together[3]
    assert len(set(together[1])) > len(set(together[0])) or together[1] != together[0]


def test_penalised_tokens_are_those_of_transformers(checkpoint: Callable[[str], Checkpoint]) -> None:
    c = checkpoint("qwen3")
    with torch.no_grad():
        tokens = c.model.generate(
            torch.tensor([PROMPT]), max_new_tokens=20, min_new_tokens=20, do_sample=False, repetition_penalty=1.3,
            eos_token_id=None, pad_token_id=0,
        )  # fmt: skip
    params = SamplingParams(max_tokens=20, ignore_eos=True, repetition_penalty=1.3)
    for settings_ in ({}, {"lookahead": 1}):
        [result] = c.engine(**settings_).generate([PROMPT], params)
        assert list(result.token_ids) == tokens[0, len(PROMPT) :].tolist()


def test_requests_without_a_seed_differ_from_each_other_and_repeat_with_the_engine(
    checkpoint: Callable[[str], Checkpoint],
) -> None:
    c = checkpoint("qwen3")
    params = SamplingParams(max_tokens=12, ignore_eos=True, temperature=2.0)
    runs = [[r.token_ids for r in c.engine(seed=5).generate([PROMPT] * 3, params)] for _ in range(2)]
    assert runs[0] == runs[1]
    assert len(set(runs[0])) == 3
