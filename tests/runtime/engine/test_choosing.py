"""What runs at a site is what makes the whole step fastest, is right there, and can be bound; else the library."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
import torch

from runtime.engine.choosing import BucketChoice, SiteChoice, _neighbours, choose_bucket
from runtime.engine.engine import Engine
from runtime.engine.implementations import KernelImplementation
from runtime.engine.request import SamplingParams
from runtime.engine.splitting import SPLITTINGS
from runtime.kv.blocks import DUMMY_BLOCK, BlocksHeldError
from runtime.sites import Implementation, Selection, Site
from tests.runtime.engine.admitted import contracts, right_kernel
from tests.runtime.engine.checkpoints import greedy
from tests.runtime.engine.conftest import Checkpoint
from tests.runtime.engine.virtual_time import (
    QUICK,
    Chained,
    Clock,
    Growing,
    Souring,
    Spoiling,
    Taking,
    Unbindable,
    VirtualStopwatch,
    slow_library,
)

PROMPT = [5, 9, 30, 7]
# Of three layers: embed, fetch, publish and the first norm once, five sites and the next norm a layer, the argmax.
STEP_US = 10.0 * (3 + 1 + 3 * 6 + 1)


@dataclass
class Bench:
    """An engine whose library takes 10 µs a call on a virtual clock."""

    engine: Engine
    clock: Clock
    stopwatch: VirtualStopwatch
    candidates: dict[str, Sequence[Implementation]] = field(default_factory=dict)

    def offer(self, operation: str, *candidates: Implementation) -> None:
        self.candidates[operation] = candidates

    def taking(self, us: float, name: str, digest: str | None = None) -> Taking:
        return Taking(self.clock, us, name, digest)

    def choose(self, bucket: int = 2, context: int = 9) -> BucketChoice:
        def offered(site: Site) -> Sequence[Implementation]:
            return self.candidates.get(site.operation, ())

        executor = self.engine.executor
        return choose_bucket(
            executor, offered, bucket, context=context, effort=QUICK, stopwatch=self.stopwatch, pairs=True
        )

    @property
    def chosen(self) -> dict[str, str]:
        """Names of what the engine will run, by operation."""
        return {site.operation: i.name for site, i in self.engine.selection.chosen.items()}


@pytest.fixture
def bench(checkpoint: Callable[[str], Checkpoint]) -> Bench:
    engine = checkpoint("qwen3").engine(max_batch=2)
    clock = Clock()
    engine.selection = engine.executor.selection = Selection(slow_library(clock), allow_fallback=False)
    return Bench(engine, clock, VirtualStopwatch(clock))


def at(choice: BucketChoice, operation: str) -> SiteChoice:
    """The only site of ``operation``."""
    [found] = [s for s in choice.sites if s.site.operation == operation]
    return found


def test_without_candidates_the_library_runs_every_site_and_only_the_step_is_timed(bench: Bench) -> None:
    choice = bench.choose()
    assert [s.site.operation for s in choice.sites] == [
        "residual_rmsnorm",
        "attention_prelude",
        "paged_decode_attention",
        "o_proj_residual_rmsnorm",
        "gated_mlp_up",
        "gated_mlp_down",
        "lm_head_argmax",
    ]
    assert all(s.chosen == "library" and s.trials == () for s in choice.sites)
    assert choice.library_us == choice.step_us == pytest.approx(STEP_US)
    assert bench.stopwatch.prepared == 2
    assert bench.engine.selection.chosen == {}


def test_the_fastest_right_candidate_is_chosen_and_every_step_time_is_kept(bench: Bench) -> None:
    slow, fast, faster = (bench.taking(us, name) for us, name in ((14, "slow"), (6, "fast"), (4, "faster")))
    bench.offer("gated_mlp_up", slow, fast, faster)
    choice = bench.choose()
    site = at(choice, "gated_mlp_up")
    assert (site.chosen, bench.chosen) == ("faster", {"gated_mlp_up": "faster"})
    saved = {t.name: STEP_US - t.step_us for t in site.trials if t.step_us is not None}
    assert saved == pytest.approx({"library": 0, "slow": -12, "fast": 12, "faster": 18})
    assert choice.library_us - choice.step_us == pytest.approx(18)
    gains = {t.name: t.gain for t in site.trials}
    assert gains["faster"] == pytest.approx(STEP_US / (STEP_US - 18))
    assert gains["library"] == 1.0


@pytest.mark.parametrize(("us", "chosen"), [(9.9, "rival"), (10.1, "library"), (13.0, "library"), (200.0, "library")])
def test_nothing_that_makes_the_step_slower_is_chosen_within_the_allowance_or_beyond(
    bench: Bench, us: float, chosen: str
) -> None:
    bench.offer("gated_mlp_down", bench.taking(us, "rival"))
    site = at(bench.choose(), "gated_mlp_down")
    assert site.chosen == chosen
    assert bench.chosen == ({"gated_mlp_down": "rival"} if chosen == "rival" else {})
    assert [t.name for t in site.trials] == ["library", "rival"]


def test_later_sites_are_timed_in_a_step_with_the_earlier_choices(bench: Bench) -> None:
    bench.offer("gated_mlp_up", bench.taking(4, "up"))
    bench.offer("gated_mlp_down", bench.taking(4, "down"))
    [library, down] = at(bench.choose(), "gated_mlp_down").trials
    assert library.step_us == pytest.approx(STEP_US - 18)
    assert down.step_us == pytest.approx(STEP_US - 36)


def chain(bench: Bench, *operations: str, us: float = 11.0, after: float = 4.0) -> None:
    """Offer kernels that take ``us`` beside anything else, and ``after`` behind each other."""
    ends: list[int] = []
    for operation in operations:
        bench.offer(operation, Chained(bench.clock, f"kernel of {operation}", us, after, ends))


def test_kernels_that_pay_only_beside_each_other_are_found(bench: Bench) -> None:
    chain(bench, "gated_mlp_up", "gated_mlp_down")  # each alone makes the step 1.5 % longer
    choice = bench.choose()
    assert bench.chosen == {op: f"kernel of {op}" for op in ("gated_mlp_up", "gated_mlp_down")}
    assert choice.library_us - choice.step_us == pytest.approx(3 * (20 - 11 - 4))
    down = at(choice, "gated_mlp_down")
    assert down.digest == "c" * 64
    gains = {t.name: t.gain for t in down.trials}  # each against the fastest other one
    assert gains[down.chosen] is not None
    assert gains["library"] is not None
    assert gains[down.chosen] > 1 > gains["library"]


def test_neighbours_that_pay_only_together_are_found_behind_rivals_that_are_faster_each(bench: Bench) -> None:
    ends: list[int] = []
    for operation in ("gated_mlp_up", "gated_mlp_down"):
        paired = Chained(bench.clock, "paired", 5.5, 3.0, ends)  # beside anything else slower than its rival
        bench.offer(operation, bench.taking(5, "single", "a" * 64), paired)
    choice = bench.choose()
    assert bench.chosen == {"gated_mlp_up": "paired", "gated_mlp_down": "paired"}
    assert choice.library_us - choice.step_us == pytest.approx(3 * (20 - 5.5 - 3))
    times = {t.name: t.step_us for t in at(choice, "gated_mlp_down").trials}
    assert times["paired"] == pytest.approx(choice.step_us)
    assert times["single"] == pytest.approx(choice.library_us - 3 * (20 - 5 - 5))


def test_attention_is_chosen_by_a_longer_context_as_well(bench: Bench) -> None:
    short = Growing(bench.clock, "short", us=4.0, each=0.1)  # of 9 tokens 4.9 µs, of 72 11.2
    ring = Growing(bench.clock, "ring", us=5.0, each=0.01)  # 5.1 and 5.7
    bench.offer("paged_decode_attention", short, ring)
    choice = bench.choose()
    assert (choice.context, choice.longer) == (9, 72)
    assert bench.chosen == {"paged_decode_attention": "ring"}
    trials = {t.name: t for t in at(choice, "paged_decode_attention").trials}
    assert trials["short"].step_us == pytest.approx(STEP_US - 3 * (10 - 4.9), abs=0.1)
    assert trials["ring"].longer_us == pytest.approx(STEP_US - 3 * (10 - 5.72), abs=0.1)
    assert choice.step_us == pytest.approx(trials["ring"].step_us)


def test_where_the_cache_has_no_room_for_a_longer_context_the_usual_one_decides(bench: Bench) -> None:
    short = Growing(bench.clock, "short", us=4.0, each=0.1)
    bench.offer("paged_decode_attention", short, Growing(bench.clock, "ring", us=4.1, each=0.1))
    choice = bench.choose(context=100_000)
    assert choice.longer is None
    assert all(t.longer_us is None for t in at(choice, "paged_decode_attention").trials)


@pytest.mark.parametrize(("looks", "found"), [(1, {"gated_mlp_up", "gated_mlp_down"}), (3, None)])
def test_what_pays_only_beside_a_later_choice_is_found_by_looking_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, looks: int, found: set[str] | None
) -> None:
    ends: list[int] = []
    costs = {"o_proj_residual_rmsnorm": (10.5, 10.5), "gated_mlp_up": (11.0, 10.0), "gated_mlp_down": (11.0, 4.0)}
    for operation, (us, after) in costs.items():
        bench.offer(operation, Chained(bench.clock, "chained", us, after, ends, digest=None))
    monkeypatch.setattr("runtime.engine.choosing._LOOKS", looks)
    choice = bench.choose()
    assert set(bench.chosen) == (found or set(costs))
    assert choice.library_us - choice.step_us == pytest.approx(3 * (30 - (25 if found else 24.5)))


def test_pairs_of_neighbours_in_a_step_do_not_repeat(bench: Bench) -> None:
    names = [(a.operation, b.operation) for a, b in _neighbours(bench.engine.executor.build(2, greedy=True))]
    assert names[1:4] == [
        ("attention_prelude", "paged_decode_attention"),
        ("paged_decode_attention", "o_proj_residual_rmsnorm"),
        ("o_proj_residual_rmsnorm", "gated_mlp_up"),
    ]
    assert ("gated_mlp_down", "residual_rmsnorm") in names
    assert len(names) == len(set(names))


def test_a_kernel_that_loses_by_more_than_the_allowance_is_not_looked_at_again(bench: Bench) -> None:
    chain(bench, "gated_mlp_up", "gated_mlp_down", us=14.0, after=1.0)  # 3 * 4 µs of 230 are more than 4 %
    assert at(bench.choose(), "gated_mlp_up").chosen == "library"
    assert bench.chosen == {}


def test_a_chain_that_does_not_pay_leaves_the_library(bench: Bench) -> None:
    chain(bench, "gated_mlp_up", "gated_mlp_down", us=11.0, after=9.5)
    choice = bench.choose()
    assert bench.chosen == {}
    assert choice.step_us == choice.library_us


def test_choices_that_lose_together_are_all_taken_back(bench: Bench) -> None:
    souring = Souring(bench.clock, us=5.0, later=15.0, after=20)  # fast as long as its site is being looked at
    bench.offer("gated_mlp_up", souring)
    choice = bench.choose()
    assert souring.calls >= 20
    assert bench.chosen == {}
    assert at(choice, "gated_mlp_up").chosen == "library"
    assert choice.step_us == choice.library_us == pytest.approx(STEP_US)


def test_a_second_choice_replaces_the_first(bench: Bench) -> None:
    bench.offer("gated_mlp_up", bench.taking(4, "fast"))
    bench.choose()
    bench.offer("gated_mlp_up", bench.taking(14, "slow"))
    bench.choose()
    assert bench.chosen == {}


def test_a_wrong_candidate_is_never_timed_and_its_tensor_is_named(bench: Bench) -> None:
    bench.offer("gated_mlp_down", Spoiling("residual"), bench.taking(12, "right"))
    site = at(bench.choose(), "gated_mlp_down")
    assert site.chosen == "library"
    [_, wrong, right] = site.trials
    assert wrong.failure is not None
    assert wrong.failure.startswith("gated_mlp_down: residual: differs from the library by")
    assert (wrong.step_us, wrong.gain) == (None, None)
    assert right.failure is None


def test_a_candidate_that_cannot_be_bound_is_reported_and_the_others_are_tried(bench: Bench) -> None:
    bench.offer("residual_rmsnorm", Unbindable(), bench.taking(1, "fast"))
    bench.offer("gated_mlp_up", Unbindable())
    choice = bench.choose()
    assert at(choice, "residual_rmsnorm").chosen == "fast"
    only = at(choice, "gated_mlp_up")
    assert only.chosen == "library"
    [trial] = only.trials
    assert trial.failure is not None
    assert trial.failure.endswith("cannot run unbindable: no such instruction on this device")
    assert bench.engine.selection.fallbacks == {}


def test_a_candidate_that_raises_when_it_runs_is_reported(bench: Bench) -> None:
    bench.offer("gated_mlp_up", Spoiling("out", error="out of range"))
    assert at(bench.choose(), "gated_mlp_up").trials[0].failure == "out of range"
    assert bench.chosen == {}


def test_a_site_taken_apart_is_chosen_together_with_the_kernels_of_its_parts(bench: Bench) -> None:
    for operation in ("rope", "kv_append"):
        bench.offer(operation, bench.taking(2, "a baseline"), bench.taking(1, f"kernel of {operation}", "a" * 64))
    bench.offer("attention_prelude", SPLITTINGS["attention_prelude"]())
    choice = bench.choose()
    assert bench.chosen == {
        "attention_prelude": "split",
        "rope": "kernel of rope",
        "kv_append": "kernel of kv_append",
    }
    assert at(choice, "rope").digest == "a" * 64
    assert choice.library_us - choice.step_us == pytest.approx(3 * (10 - 1 - 1 - 1))


def test_a_site_whose_parts_are_slower_stays_whole(bench: Bench) -> None:
    bench.offer("attention_prelude", SPLITTINGS["attention_prelude"]())
    bench.offer("o_proj_residual_rmsnorm", SPLITTINGS["o_proj_residual_rmsnorm"]())
    choice = bench.choose()
    assert at(choice, "attention_prelude").chosen == "library"  # 1 + 10 + 10 against 10
    assert at(choice, "o_proj_residual_rmsnorm").chosen == "library"  # 1 + 10 against 10
    assert bench.chosen == {}


def test_a_wrong_part_refuses_the_site_taken_apart(bench: Bench) -> None:
    bench.offer("rope", Spoiling("k", digest="b" * 64))
    bench.offer("kv_append", bench.taking(0, "fast"))
    bench.offer("attention_prelude", SPLITTINGS["attention_prelude"]())
    [trial] = at(bench.choose(), "attention_prelude").trials
    assert trial.failure is not None
    assert trial.failure.startswith("rope: k: differs")
    assert bench.chosen == {}


def test_a_compiled_kernel_that_is_faster_is_chosen_and_the_tokens_stay(
    bench: Bench, checkpoint: Callable[[str], Checkpoint], image_cache: None
) -> None:
    kernel = KernelImplementation(right_kernel("residual_rmsnorm"), contracts()["residual_rmsnorm"])
    bench.offer("residual_rmsnorm", kernel)  # takes no time on the virtual clock
    bench.offer("gated_mlp_up", bench.taking(5, "fast"), Spoiling("out"))
    bench.offer("gated_mlp_down", bench.taking(15, "slow"))
    before = bench.engine.generate([PROMPT], SamplingParams(max_tokens=8, ignore_eos=True))
    choice = bench.choose()
    assert at(choice, "residual_rmsnorm").digest == kernel.digest
    assert bench.chosen == {"residual_rmsnorm": kernel.name, "gated_mlp_up": "fast"}
    params = SamplingParams(max_tokens=24, ignore_eos=True)
    results = bench.engine.generate([PROMPT, PROMPT[:2]], params)
    model = checkpoint("qwen3").model
    assert [list(r.token_ids) for r in results] == [greedy(model, p, 24) for p in (PROMPT, PROMPT[:2])]
    assert list(before[0].token_ids) == list(results[0].token_ids)[:8]


def test_choosing_leaves_no_trace_in_the_cache_or_the_buffers(bench: Bench) -> None:
    bench.offer("gated_mlp_up", bench.taking(5, "fast"), Spoiling("out"))
    bench.choose()
    executor = bench.engine.executor
    assert not executor.decoder.pool.storage.any()
    buffers = executor.buffers.sliced(2, 2)
    for name in ("residual", "x", "q", "attention", "input_ids", "positions", "seq_lens", "out_ids", "last_tokens"):
        assert not getattr(buffers, name).any(), name
    assert torch.equal(buffers.block_table, torch.full_like(buffers.block_table, DUMMY_BLOCK))


def test_prefixes_cached_where_kernels_were_tried_are_forgotten_and_others_stay(bench: Bench) -> None:
    engine, allocator = bench.engine, bench.engine.scheduler.allocator
    params = SamplingParams(max_tokens=6, ignore_eos=True)
    prompts = [[3, 1, 4, 1, 5, 9, 2, 6, 5], list(range(20, 60))]
    first = engine.generate(prompts, params)
    held = [allocator.match(prompt, most=99) for prompt in prompts]
    assert all(held)
    choice = bench.choose(context=9)
    assert choice.context == 9
    overwritten = range(1, 1 + 2 * 3)  # two sequences of nine tokens, in blocks of four
    for prompt, before in zip(prompts, held, strict=True):
        kept = next((i for i, found in enumerate(before) if found.block in overwritten), len(before))
        assert allocator.match(prompt, most=99) == before[:kept]
    assert any(found.block in overwritten for chain in held for found in chain)
    again = engine.generate(prompts, params)
    assert [r.token_ids for r in again] == [r.token_ids for r in first]
    engine.scheduler.sanity_checks()


def test_kernels_are_not_tried_while_requests_run(bench: Bench) -> None:
    bench.engine.add_request(PROMPT, SamplingParams(max_tokens=8, ignore_eos=True))
    bench.engine.step()
    with pytest.raises(BlocksHeldError, match="choose kernels before the first request or when none is running"):
        bench.choose()
    [output] = [o for o in bench.engine.run() if o.finished]
    assert output.finished


def test_the_context_is_cut_to_what_the_cache_holds_and_the_result_says_so(
    checkpoint: Callable[[str], Checkpoint],
) -> None:
    engine = checkpoint("qwen3").engine(max_batch=2, kv_blocks=7)  # three blocks of four tokens for each of two
    clock = Clock()
    engine.executor.selection = Selection(slow_library(clock))
    watch = VirtualStopwatch(clock)
    choice = choose_bucket(engine.executor, lambda _: (), 2, context=1000, effort=QUICK, stopwatch=watch)
    assert choice.context == 12


def test_a_bucket_the_cache_cannot_hold_is_refused(checkpoint: Callable[[str], Checkpoint]) -> None:
    engine = checkpoint("qwen3").engine(max_batch=4, kv_blocks=4)
    with pytest.raises(ValueError, match="4 sequences cannot be rehearsed with 3 blocks"):
        choose_bucket(engine.executor, lambda _: (), 4, context=8, effort=QUICK, stopwatch=VirtualStopwatch(Clock()))
