"""The engine's greedy tokens are those of transformers' eager float32 model, whatever the memory and the batch do."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache

import pytest

from runtime.engine.request import SamplingParams
from tests.runtime.engine.checkpoints import SHAPES, VOCAB, greedy
from tests.runtime.engine.conftest import Checkpoint

COUNT = 20
GREEDY = SamplingParams(max_tokens=COUNT, ignore_eos=True)
NAMES = sorted(SHAPES)
# One of each way a layer can be built: the memory tests need no more.
FEW = ["qwen3", "llama-tied-mqa", "mistral-v0.1", "glm4"]


@cache
def prompts() -> tuple[list[int], ...]:
    """Lengths around block and chunk edges; the longest is past every scaled model's original context of 32."""
    numbers = random.Random(7)
    shared = [numbers.randrange(3, VOCAB) for _ in range(24)]
    own = [[numbers.randrange(3, VOCAB) for _ in range(n)] for n in (1, 4, 13, 75)]
    return (*own, shared + own[1], shared + own[2])


_expected: dict[str, list[list[int]]] = {}


def expected(name: str, c: Checkpoint) -> list[list[int]]:
    """Transformers' tokens, computed once a session."""
    if name not in _expected:
        _expected[name] = [greedy(c.model, prompt, COUNT) for prompt in prompts()]
    return _expected[name]


@pytest.mark.parametrize("name", NAMES)
def test_one_request_at_a_time_gives_the_reference_tokens(name: str, checkpoint: Callable[[str], Checkpoint]) -> None:
    c = checkpoint(name)
    engine = c.engine(max_batch=1, max_step_tokens=128, prefix_cache=False)
    for prompt, tokens in zip(prompts(), expected(name, c), strict=True):
        [result] = engine.generate([prompt], GREEDY)
        assert list(result.token_ids) == tokens


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_with_chunked_prefill_and_shared_prefixes_gives_the_reference_tokens(
    name: str, checkpoint: Callable[[str], Checkpoint]
) -> None:
    c = checkpoint(name)
    engine = c.engine(max_batch=4, max_step_tokens=17)
    for _ in range(2):  # the second time everything is in the prefix cache
        results = engine.generate(prompts(), GREEDY)
        assert [list(r.token_ids) for r in results] == expected(name, c)
    assert all(r.num_cached_tokens > 0 for r in results if len(r.prompt_token_ids) > 4)


@pytest.mark.parametrize("lookahead", [0, 1])
@pytest.mark.parametrize("preemption", ["recompute", "swap"])
@pytest.mark.parametrize("name", FEW)
def test_a_pool_too_small_for_the_batch_gives_the_reference_tokens(
    name: str, preemption: str, lookahead: int, checkpoint: Callable[[str], Checkpoint]
) -> None:
    c = checkpoint(name)
    engine = c.engine(
        max_batch=6, max_step_tokens=40, kv_blocks=26, preemption=preemption, swap_bytes=2**20, lookahead=lookahead
    )
    results = engine.generate(prompts(), GREEDY)
    assert [list(r.token_ids) for r in results] == expected(name, c)
    assert sum(r.num_preemptions for r in results) > 0, "the pool was meant to be too small"
    engine.scheduler.sanity_checks()


@pytest.mark.parametrize("name", FEW)
def test_planning_a_step_ahead_gives_the_reference_tokens(name: str, checkpoint: Callable[[str], Checkpoint]) -> None:
    c = checkpoint(name)
    engine = c.engine(max_batch=4, max_step_tokens=17, lookahead=1)
    results = engine.generate(prompts(), GREEDY)
    assert [list(r.token_ids) for r in results] == expected(name, c)


def test_buckets_smaller_than_the_batch_never_fail(checkpoint: Callable[[str], Checkpoint]) -> None:
    c = checkpoint("qwen3")
    engine = c.engine(max_batch=6, max_step_tokens=200, buckets=(1, 2))
    results = engine.generate(prompts(), GREEDY)
    assert [list(r.token_ids) for r in results] == expected("qwen3", c)
