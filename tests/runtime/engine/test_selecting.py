"""Kernels are offered where they were judged, and a choice that was measured is not measured again until it must be."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from kb.dtype import DType, Target
from kb.store import KernelStore
from runtime.engine.choosing import BucketChoice
from runtime.engine.engine import Engine
from runtime.engine.request import SamplingParams
from runtime.engine.selecting import CandidateList, as_table, judged_at, select
from runtime.sites import CONTRACT_OPERATIONS, Selection, Site
from tests.runtime.engine.admitted import admit, contracts, few_contracts, manifest, right_kernel
from tests.runtime.engine.checkpoints import greedy
from tests.runtime.engine.conftest import Checkpoint
from tests.runtime.engine.virtual_time import Clock, VirtualStopwatch, slow_library

PROMPT = [5, 9, 30, 7]
NORM = "residual_rmsnorm"


@dataclass
class Model:
    """A checkpoint with a store and a folder of records; its library is slow on a virtual clock, kernels take none."""

    checkpoint: Checkpoint
    store: KernelStore
    library: Path
    records: Path

    def engine(self) -> Engine:
        return self.checkpoint.engine(max_batch=2)

    def sites(self, bucket: int = 1) -> dict[str, Site]:
        calls = self.engine().executor.build(bucket, greedy=True).calls
        return {c.site.operation: c.site for c in calls if c.site.operation in CONTRACT_OPERATIONS}

    def admit(self, operation: str, number: int = 0) -> str:
        """A right kernel, as judged at this model's dims; its digest."""
        site = self.sites()[operation]
        return admit(self.store, right_kernel(operation, number), dict(site.dims), site.storage).digest

    def select(self, engine: Engine | None = None, *, context: int = 9) -> tuple[BucketChoice, Engine, bool]:
        """The choice for one sequence, the engine that has it, and whether something was measured."""
        engine = engine or self.engine()
        clock = Clock()
        engine.selection = engine.executor.selection = Selection(slow_library(clock), allow_fallback=False)
        watch = VirtualStopwatch(clock)
        told: list[bool] = []
        [choice] = select(
            engine.executor,
            self.library,
            store=self.store,
            buckets=[1],
            context=context,
            cache=self.records,
            stopwatch=watch,
            on_bucket=lambda _, known: told.append(known),
        )
        assert told == [watch.prepared == 0]
        return choice, engine, watch.prepared > 0


@pytest.fixture
def model(checkpoint: Callable[[str], Checkpoint], tmp_path: Path, image_cache: None) -> Model:
    library = few_contracts(tmp_path / "library", NORM, "attention_prelude", "rope", "kv_append")
    return Model(checkpoint("qwen3"), KernelStore(tmp_path / "kernels"), library, tmp_path / "records")


def chosen(engine: Engine) -> dict[str, str | None]:
    """Digests of what runs, by operation."""
    return {site.operation: i.digest for site, i in engine.selection.chosen.items()}


def test_a_choice_is_read_back_without_measuring_and_gives_the_same_tokens(model: Model) -> None:
    digest = model.admit(NORM)
    first, _, measured = model.select()
    assert measured
    again, engine, measured = model.select()
    assert not measured
    assert again == first
    assert chosen(engine) == {NORM: digest}
    [result] = engine.generate([PROMPT], SamplingParams(max_tokens=16, ignore_eos=True))
    assert list(result.token_ids) == greedy(model.checkpoint.model, PROMPT, 16)


def test_another_kernel_another_context_or_a_revoked_kernel_is_measured_anew(model: Model) -> None:
    first = model.admit(NORM)
    model.select()
    assert model.select(context=5)[2]
    second = model.admit(NORM, number=1)
    choice, _, measured = model.select()
    assert measured
    [site] = [s for s in choice.sites if s.site.operation == NORM]
    assert {t.digest for t in site.trials} == {None, first, second}
    model.store.revoke(second, "for this test")
    assert not model.select()[2]  # as it was before
    model.store.revoke(first, "for this test")
    choice, engine, measured = model.select()
    assert measured
    assert chosen(engine) == {}
    assert choice.step_us == choice.library_us


def test_a_damaged_record_is_ignored_and_replaced(model: Model) -> None:
    digest = model.admit(NORM)
    first, engine, _ = model.select()
    [record] = model.records.iterdir()
    whole = record.read_text()
    damaged = [
        whole[: len(whole) // 2],
        "",
        "null",
        '{"sites": [{}]}',
        whole.replace('"step_us"', '"steps"'),
        whole.replace("attention_prelude[", "another["),  # after a site that could be read
        whole.replace('"context"', '"kontext"'),
    ]
    for text in damaged:
        assert text != whole
        record.write_text(text)
        choice, engine, measured = model.select(engine)
        assert measured, text
        assert (choice, chosen(engine)) == (first, {NORM: digest})
        assert record.read_text() == whole


def test_a_record_that_breaks_off_leaves_no_choice_behind(model: Model) -> None:
    digest = model.admit(NORM)
    model.select()
    [record] = model.records.iterdir()
    data = json.loads(record.read_text())
    [prelude] = [s for s in data["sites"] if s["site"].startswith("attention_prelude[")]
    data["sites"] = [prelude | {"chosen": "split"}, {"site": "another[]"}]
    record.write_text(json.dumps(data))
    _, engine, measured = model.select()
    assert measured
    assert chosen(engine) == {NORM: digest}


def test_a_record_of_a_site_taken_apart_brings_back_its_parts(model: Model) -> None:
    dims = dict(model.sites()["attention_prelude"].dims)
    digests = {}
    for operation in ("rope", "kv_append"):
        kernel = admit(model.store, right_kernel(operation), dims, DType.FLOAT32)
        digests[operation] = kernel.digest
    first, engine, _ = model.select()
    assert chosen(engine) == {"attention_prelude": None, **digests}
    again, engine, measured = model.select()
    assert not measured
    assert again == first
    assert chosen(engine) == {"attention_prelude": None, **digests}
    [result] = engine.generate([PROMPT], SamplingParams(max_tokens=16, ignore_eos=True))
    assert list(result.token_ids) == greedy(model.checkpoint.model, PROMPT, 16)


def test_kernels_are_offered_only_where_they_were_judged(model: Model) -> None:
    site = model.sites()[NORM]
    kernel = right_kernel(NORM)
    admit(model.store, kernel, dict(site.dims), site.storage)
    offered = CandidateList(contracts(), model.store, Target.CPU)
    other = {**dict(site.dims), "hidden_size": 64}
    assert [c.digest for c in offered(site)] == [kernel.digest]
    assert offered(replace(site, dims=tuple(sorted(other.items())))) == []
    assert offered(replace(site, storage=DType.BFLOAT16)) == []
    assert offered(replace(site, dims=tuple(sorted({**dict(site.dims), "num_tokens": 8}.items())))) == []
    assert offered(Site("embed", site.dims, site.storage)) == []


def test_dims_a_kernel_learns_when_it_runs_need_no_judgement_of_their_own(model: Model) -> None:
    site = model.sites()["paged_decode_attention"]
    kernel = right_kernel("paged_decode_attention")
    elsewhere = {**dict(site.dims), "num_blocks": 9, "max_blocks_per_seq": 2, "context_len": 7}
    assert judged_at(manifest(kernel, elsewhere, site.storage), contracts()["paged_decode_attention"], site)


def test_only_an_accepting_verdict_counts(model: Model) -> None:
    site = model.sites()[NORM]
    kernel = right_kernel(NORM)
    assert judged_at(manifest(kernel, dict(site.dims), site.storage), contracts()[NORM], site)
    rejected = manifest(kernel, dict(site.dims), site.storage, accepted=False)
    assert not judged_at(rejected, contracts()[NORM], site)


def test_without_a_store_sites_can_still_be_taken_apart(model: Model) -> None:
    offered = CandidateList(contracts(), None, Target.CPU)
    names = {operation: [c.name for c in offered(site)] for operation, site in model.sites().items()}
    assert {operation for operation, found in names.items() if found} == {
        "attention_prelude",
        "o_proj_residual_rmsnorm",
    }
    assert names["attention_prelude"] == ["split"]


def test_buckets_beyond_the_cache_stay_with_the_library(model: Model) -> None:
    executor = model.checkpoint.engine(max_batch=8, kv_blocks=3).executor
    clock = Clock()
    executor.selection = Selection(slow_library(clock))
    watch = VirtualStopwatch(clock)
    choices = select(executor, model.library, store=None, cache=model.records, context=4, stopwatch=watch)
    assert [c.bucket for c in choices] == [1, 2]


def test_the_table_says_for_every_trial_why(model: Model) -> None:
    digest = model.admit(NORM)
    choice, _, _ = model.select()
    rows = as_table([choice])
    norm = [r for r in rows if r["operation"] == NORM]
    assert [(r["chosen"], r["why"]) for r in norm] == [(False, "slower step"), (True, "fastest step")]
    assert norm[1]["digest"] == digest
    assert norm[1]["gain"] > 1
    up = [r for r in rows if r["operation"] == "gated_mlp_up"]
    assert [(r["candidate"], r["why"], r["step_us"]) for r in up] == [("library", "nothing else was tried", None)]
    [library, split] = [r for r in rows if r["operation"] == "attention_prelude"]
    assert (library["why"], split["why"]) == ("fastest step", "step more than 1.04 times as long")


def test_a_longer_context_is_kept_in_the_record_and_told(model: Model) -> None:
    model.admit(NORM)
    model.select()
    [record] = model.records.glob("*.json")
    data = json.loads(record.read_text())
    data["longer"] = 8192
    trials = next(s["trials"] for s in data["sites"] if s["digest"])
    for trial in trials:
        trial["longer_us"] = 12.5
    record.write_text(json.dumps(data))
    choice, _, measured = model.select()
    assert (measured, choice.longer) == (False, 8192)
    told = [(r["longer_us"], r["why"]) for r in as_table([choice]) if r["operation"] == NORM]
    both = "both contexts together; 12.5 µs at 8,192 tokens"
    assert told == [(12.5, f"slower step, {both}"), (12.5, f"fastest step, {both}")]
