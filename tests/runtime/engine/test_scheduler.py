"""Nothing is lost, doubled, starved or leaked, for any arrivals, lengths, cancellations and pool sizes."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.engine.request import FinishReason, RequestError, Status
from runtime.engine.scheduler import Limits
from tests.runtime.engine.simulated import VOCAB, Simulation, continuation


@dataclass(frozen=True)
class Arrival:
    """A request to come: when, with what, how many tokens until it stops, and when it is cancelled."""

    step: int
    prompt: tuple[int, ...]
    max_tokens: int
    ends_at: int
    aborted_at: int | None


arrivals = st.builds(
    Arrival,
    step=st.integers(0, 12),
    prompt=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=14).map(tuple),
    max_tokens=st.integers(1, 10),
    ends_at=st.integers(1, 12),
    aborted_at=st.one_of(st.none(), st.none(), st.integers(0, 25)),
)


@st.composite
def simulations(draw: st.DrawFn) -> Simulation:
    batch = draw(st.integers(1, 5))
    block_size = draw(st.integers(1, 4))
    return Simulation(
        num_blocks=draw(st.integers(2, 30)),
        block_size=block_size,
        host_blocks=draw(st.integers(0, 20)),
        lookahead=draw(st.integers(0, 1)),
        limits=Limits(
            max_batch=batch,
            max_step_tokens=batch + draw(st.integers(1, 12)),
            watermark_blocks=draw(st.integers(0, 2)),
            prefix_cache=draw(st.booleans()),
            preemption=draw(st.sampled_from(["recompute", "swap"])),
        ),
    )


@settings(max_examples=250, deadline=None)
@given(simulations(), st.lists(arrivals, max_size=9))
def test_every_request_gets_exactly_its_tokens(simulation: Simulation, coming: list[Arrival]) -> None:
    ends_at: dict[str, int] = {}
    wanted: dict[str, Arrival] = {}
    for step in range(26):
        for arrival in (a for a in coming if a.step == step):
            fits = -(-(len(arrival.prompt) + arrival.max_tokens) // simulation.block_size) < simulation.num_blocks
            if not fits:
                with pytest.raises(RequestError, match="never fit"):
                    simulation.submit(arrival.prompt, arrival.max_tokens)
                continue
            request = simulation.submit(arrival.prompt, arrival.max_tokens)
            ends_at[request.id], wanted[request.id] = arrival.ends_at, arrival
        for request in simulation.requests:
            if wanted[request.id].aborted_at == step:
                simulation.scheduler.finish(request, FinishReason.ABORT)
        simulation.step(ends_at)
    simulation.drain(ends_at)
    for request in simulation.requests:
        arrival = wanted[request.id]
        count = min(arrival.max_tokens, arrival.ends_at)
        truth = continuation(arrival.prompt, count)
        got = list(request.output_tokens)
        if request.finish_reason is FinishReason.ABORT:
            assert got == truth[: len(got)]
        else:
            assert got == truth


def small(**changes: object) -> Simulation:
    """A roomy simulation, changed as named."""
    limits = {"max_batch": 4, "max_step_tokens": 16}
    rest = {"num_blocks": 40, "block_size": 4}
    for name, value in changes.items():
        (rest if name in ("num_blocks", "block_size", "host_blocks", "lookahead") else limits)[name] = value
    return Simulation(limits=Limits(**limits), **rest)  # type: ignore[arg-type]


def test_a_request_that_can_never_fit_is_refused_at_submission() -> None:
    s = small(num_blocks=5)
    with pytest.raises(RequestError, match="10 prompt tokens with up to 7 more never fit the KV cache of 16 tokens"):
        s.submit((1,) * 10, 7)
    s.submit((1,) * 10, 6)
    s.drain()


def test_a_prompt_cached_whole_still_computes_its_last_token() -> None:
    s = small()
    prompt = (0, 1, 2, 0, 1, 2, 0, 1)  # two full blocks
    s.submit(prompt, 1)
    s.drain()
    again = s.submit(prompt, 3)
    plan = s.step()
    assert [(c.start, c.length, c.emits) for c in plan.prefill] == [(4, 4, True)]
    s.drain()
    assert list(again.output_tokens) == continuation(prompt, 3)


def test_a_partial_prefill_chunk_emits_nothing() -> None:
    s = small(max_step_tokens=6)
    request = s.submit((1,) * 14, 2)
    emitted = [s.step().emitting for _ in range(2)]
    assert emitted == [(), ()]
    assert request.tokens == [1] * 14
    assert len(s.step().emitting) == 1


def test_decoding_requests_and_prompts_share_a_step() -> None:
    s = small(max_step_tokens=8)
    s.submit((1, 2), 8)
    s.step()
    s.submit((2,) * 20, 2)
    plan = s.step()
    assert len(plan.decode) == 1
    assert [c.length for c in plan.prefill] == [7]


def test_a_long_prompt_leaves_room_for_the_one_behind_it() -> None:
    s = small(max_batch=2, max_step_tokens=100, num_blocks=200)
    s.submit((1,) * 400, 1)
    s.submit((2,) * 10, 1)
    assert [c.length for c in sorted(s.step().prefill, key=lambda c: c.request.arrival)] == [50, 10]


def test_prompts_that_fit_a_step_are_not_cut_for_those_behind_them() -> None:
    s = small(max_batch=8, max_step_tokens=64, num_blocks=200)
    for i in range(5):
        s.submit((i % 3, i // 3) * 10, 1)  # no two share a block
    first = [c.length for c in sorted(s.step().prefill, key=lambda c: c.request.arrival)]
    assert first == [20, 20, 20, 4]  # one is cut, by the end of the step
    assert [c.length for c in sorted(s.step().prefill, key=lambda c: c.request.arrival)] == [16, 20]


def test_nobody_overtakes_the_head_of_the_queue() -> None:
    s = small(num_blocks=9, max_step_tokens=40)
    s.submit((1,) * 14, 2)
    s.step()
    s.submit((2,) * 24, 2)  # does not fit beside the first
    short = s.submit((0,), 1)  # would
    s.step()
    assert short.status is Status.WAITING
    s.drain()


def test_waiting_requests_are_not_admitted_in_a_step_that_preempts() -> None:
    s = small(num_blocks=5, max_step_tokens=20)
    s.submit((1, 1, 1), 10)
    s.submit((2, 2, 2), 10)
    late = None
    for _ in range(12):
        preempted = sum(r.num_preemptions for r in s.requests)
        waiting = [r for r in s.requests if r.status is Status.WAITING]
        s.step()
        if sum(r.num_preemptions for r in s.requests) > preempted:
            assert all(r.status is Status.WAITING for r in waiting)
            late = late or s.submit((0,), 1)
    assert late is not None, "the pool was meant to run out"
    s.drain()


@pytest.mark.parametrize("lookahead", [0, 1])
def test_preempted_requests_resume_with_the_tokens_they_had_produced(lookahead: int) -> None:
    s = small(num_blocks=6, lookahead=lookahead)
    prompts = [(1, 2, 0), (2, 0, 0)]
    for prompt in prompts:
        s.submit(prompt, 14)
    s.drain()
    assert sum(r.num_preemptions for r in s.requests) > 0
    assert [list(r.output_tokens) for r in s.requests] == [continuation(p, 14) for p in prompts]


def test_a_swapped_request_resumes_only_when_all_of_it_fits() -> None:
    s = small(num_blocks=8, preemption="swap", host_blocks=8)
    s.submit((1,) * 8, 18)
    s.submit((2,) * 8, 10)
    for _ in range(40):
        swapped = [r for r in s.requests if r.status is Status.SWAPPED]
        plan = s.step()
        for request in swapped:
            if request.status is Status.RUNNING:
                assert len(request.blocks) == s.scheduler.allocator.blocks_for(request.total - 1)
                assert len(plan.swap_in) >= 2
    assert any(plan.swap_out for plan in s.plans)
    s.drain()


def test_a_full_host_pool_means_recompute_and_not_an_abort() -> None:
    s = small(num_blocks=6, preemption="swap", host_blocks=1)
    prompts = [(1, 2, 0, 1, 1), (2, 0, 0, 1, 2)]
    for prompt in prompts:
        s.submit(prompt, 12)
    s.drain()
    assert sum(r.num_preemptions for r in s.requests) > 0
    assert not any(plan.swap_out for plan in s.plans)
    assert [list(r.output_tokens) for r in s.requests] == [continuation(p, 12) for p in prompts]


def test_copies_out_come_before_copies_in_and_before_the_step_that_reuses_the_blocks() -> None:
    s = small(num_blocks=7, preemption="swap", host_blocks=16, max_batch=3, max_step_tokens=12)
    for i in range(3):
        s.submit((i, 1, 2, 0), 12)
    s.drain()  # the simulated device fails on any read of the wrong block
    assert any(plan.swap_in for plan in s.plans)


def test_admission_leaves_the_watermark_free_for_running_requests() -> None:
    s = small(num_blocks=9, watermark_blocks=3, max_step_tokens=40)
    s.submit((1,) * 8, 3)
    s.submit((2,) * 14, 1)
    s.step()
    assert [r.status for r in s.requests] == [Status.RUNNING, Status.WAITING]  # 2 + 4 of 8 would leave 2
    s.drain()


@pytest.mark.parametrize("when", range(8))
def test_a_cancelled_request_gives_everything_back_wherever_it_is(when: int) -> None:
    s = small(num_blocks=7, preemption="swap", host_blocks=16, max_batch=3, max_step_tokens=8, lookahead=1)
    requests = [s.submit((i, 1, 2, 0), 12) for i in range(4)]
    for _ in range(when):
        s.step()
    for request in requests:
        s.scheduler.finish(request, FinishReason.ABORT)
    s.drain()


def test_a_budget_that_decoding_alone_would_use_up_is_refused() -> None:
    with pytest.raises(ValueError, match="leaves no room for prompts"):
        Limits(max_batch=4, max_step_tokens=4)


def test_preemption_storms_end() -> None:
    s = small(num_blocks=10, block_size=1, max_batch=5, max_step_tokens=9)
    for i in range(5):
        s.submit((i % VOCAB, 1), 7)
    s.drain()
    assert sum(r.num_preemptions for r in s.requests) > 5
