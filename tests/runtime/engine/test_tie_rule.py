"""bfloat16 runs agree with transformers wherever the model is decided, and their log-probabilities are as close."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from runtime.engine.config import EngineConfig
from runtime.engine.engine import Engine
from runtime.engine.request import SamplingParams
from runtime.engine.tie_rule import disagreements
from runtime.models.weights import load_weights
from tests.runtime.engine.conftest import Checkpoint
from tests.runtime.engine.test_equality import NAMES, prompts


def test_a_token_within_the_margin_is_a_tie_and_one_beyond_it_is_not() -> None:
    logits = torch.tensor([[4.0, 3.9, 1.0]] * 3)  # margin in bfloat16: 8 * 2**-7 * 4 = 0.25
    assert disagreements(logits, [0, 1, 0], torch.bfloat16) == []
    [found] = disagreements(logits, [0, 2, 1], torch.bfloat16)
    assert (found.position, found.token, found.expected, found.gap) == (1, 2, 0, 3.0)
    assert [d.position for d in disagreements(logits, [0, 1, 1], torch.float32)] == [1, 2]


@pytest.mark.parametrize("name", NAMES)
def test_bfloat16_tokens_and_log_probabilities_are_within_the_tie_rule(
    name: str, checkpoint: Callable[[str], Checkpoint]
) -> None:
    c = checkpoint(name)
    narrow = load_weights(c.folder, c.spec, torch.device("cpu"), torch.bfloat16)
    engine = Engine(c.spec, narrow, EngineConfig(kv_blocks=200, block_size=4, max_batch=4, max_step_tokens=32))
    results = engine.generate(prompts()[1:4], SamplingParams(max_tokens=16, ignore_eos=True, logprobs=4))
    greedy = engine.generate(prompts()[1:4], SamplingParams(max_tokens=16, ignore_eos=True))
    model = type(c.model)(c.model.config).eval()
    model.load_state_dict({k: v.bfloat16().float() for k, v in c.model.state_dict().items()})
    ours, theirs = [], []
    for result, plain in zip(results, greedy, strict=True):
        for tokens in (result.token_ids, plain.token_ids):
            reference = _logits(model, result.prompt_token_ids, tokens)
            assert disagreements(reference, tokens, torch.bfloat16) == []
        truth = _logits(model, result.prompt_token_ids, result.token_ids).log_softmax(-1)
        half = _logits(model.bfloat16(), result.prompt_token_ids, result.token_ids).log_softmax(-1)
        model.float()
        for i, reported in enumerate(result.logprobs):
            assert reported.token_id == result.token_ids[i]
            assert reported.top[0][1] >= reported.logprob
            for token, logprob in ((reported.token_id, reported.logprob), *reported.top):
                ours.append(logprob - truth[i, token].item())
                theirs.append(half[i, token].item() - truth[i, token].item())
    # Ours keeps float32 logits and rotation tables, so it must not be further from the truth than eager bfloat16.
    assert _rms(ours) <= 1.25 * _rms(theirs) + 1e-3


def _logits(model: torch.nn.Module, prompt: tuple[int, ...], tokens: tuple[int, ...]) -> torch.Tensor:
    """Float32 logits at every position of ``tokens``, teacher-forced."""
    with torch.no_grad():
        logits: torch.Tensor = model(torch.tensor([[*prompt, *tokens]])).logits[0].float()
    return logits[len(prompt) - 1 : -1]


def _rms(errors: list[float]) -> float:
    return float(torch.tensor(errors).square().mean().sqrt())
