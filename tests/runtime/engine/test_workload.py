"""The same workload for every arm, and medians of what each did."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from runtime.engine.workload import Measured, Workload, engine_arm, measure, peer_arm
from tests.runtime.engine.checkpoints import VOCAB, greedy
from tests.runtime.engine.conftest import Checkpoint

WORK = Workload(prompt=5, output=6, requests=2, vocab_size=VOCAB, seed=3)


def test_prompts_are_the_same_every_time_and_differ_by_seed() -> None:
    prompts = WORK.prompts()
    assert prompts == WORK.prompts()
    assert [len(p) for p in prompts] == [5, 5]
    assert all(1 <= token < VOCAB for p in prompts for token in p)
    assert prompts != Workload(5, 6, 2, VOCAB, seed=4).prompts()


def test_arms_take_turns_the_first_round_is_not_counted_and_medians_are_kept() -> None:
    order: list[str] = []

    def arm(name: str, times: list[float]) -> Callable[[], Measured]:
        left = iter(times)

        def once() -> Measured:
            order.append(name)
            ms = next(left)
            return Measured(ms, 1e3 / ms, ((int(ms),),))

        return once

    result = measure({"a": arm("a", [999, 1, 5, 2]), "b": arm("b", [999, 4, 4, 40])}, rounds=3)
    assert order == ["a", "b"] * 4
    assert result["a"] == Measured(2, 500, ((2,),))
    assert result["b"] == Measured(4, 250, ((40,),))


def test_an_engines_arm_gives_greedy_tokens_in_the_order_of_the_prompts(
    checkpoint: Callable[[str], Checkpoint],
) -> None:
    c = checkpoint("qwen3")
    once = engine_arm(c.engine(max_batch=2), WORK)
    first, second = once(), once()
    assert first.tokens == second.tokens == tuple(tuple(greedy(c.model, p, 6)) for p in WORK.prompts())
    assert first.ms_per_token > 0
    assert first.tokens_per_s > 0


@pytest.mark.parametrize("peer", ["hf-eager"])
def test_a_peer_decodes_the_same_prompts_to_the_same_tokens(peer: str, checkpoint: Callable[[str], Checkpoint]) -> None:
    c = checkpoint("qwen3")
    work = Workload(prompt=5, output=6, requests=1, vocab_size=VOCAB)
    engine = c.engine(max_batch=1)
    result = peer_arm(peer, c.folder, engine, work)()
    assert result.tokens == engine_arm(engine, work)().tokens
    assert result.ms_per_token > 0
