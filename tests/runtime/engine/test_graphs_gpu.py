"""A recorded step says what the step itself says, and recording is invisible to requests in progress."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from runtime.engine.config import EngineConfig
from runtime.engine.engine import Engine
from runtime.engine.graphs import RecordedProgram, Recorder
from runtime.engine.packed_attention import flash_is_right
from runtime.engine.rehearsal import rehearsal
from runtime.engine.request import MAX_LOGPROBS, Output, SamplingParams
from runtime.engine.sampling import Needs
from runtime.models.weights import load_weights
from tests.runtime.engine.checkpoints import greedy
from tests.runtime.engine.conftest import Checkpoint

pytestmark = pytest.mark.gpu
PROMPTS = [[5, 9, 30, 7], [5, 9], [40, 3, 8]]
PARAMS = SamplingParams(max_tokens=24, ignore_eos=True)


def engine(c: Checkpoint, *, graphs: bool) -> Engine:
    """An engine on the GPU."""
    weights = load_weights(c.folder, c.spec, torch.device("cuda"), torch.float32)
    settings = EngineConfig(kv_blocks=257, block_size=4, max_batch=4, max_step_tokens=64, graphs=graphs)
    return Engine(c.spec, weights, settings)


def test_graphs_give_the_tokens_of_the_steps_they_record(checkpoint: Callable[[str], Checkpoint]) -> None:
    c = checkpoint("qwen3")
    recorded, eager = engine(c, graphs=True), engine(c, graphs=False)
    recorded.executor.warm_up()
    assert isinstance(recorded.executor.program(4, greedy=True), RecordedProgram)
    assert not isinstance(eager.executor.program(4, greedy=True), RecordedProgram)
    tokens = [list(r.token_ids) for r in recorded.generate(PROMPTS, PARAMS)]
    assert tokens == [list(r.token_ids) for r in eager.generate(PROMPTS, PARAMS)]
    assert tokens == [greedy(c.model, p, 24) for p in PROMPTS]


def test_graphs_recorded_while_requests_run_change_no_token(checkpoint: Callable[[str], Checkpoint]) -> None:
    c = checkpoint("qwen3")
    live = engine(c, graphs=True)
    done: dict[str, list[int]] = {}
    names = []

    def keep(output: Output) -> None:
        done.setdefault(output.request_id, []).extend(output.token_ids)

    for number, prompt in enumerate(PROMPTS):  # every arrival is a larger bucket, recorded beside the others' tokens
        names.append(live.add_request(prompt, PARAMS, on_output=keep))
        for _ in range(3 + number):
            live.step()
    live.executor.forget_programs()  # in the middle of all three
    for _ in live.run():
        pass
    assert [done[name] for name in names] == [greedy(c.model, p, 24) for p in PROMPTS]


def test_recording_puts_the_metadata_back_and_writes_to_the_dummy_block_alone(
    checkpoint: Callable[[str], Checkpoint],
) -> None:
    executor = engine(checkpoint("qwen3"), graphs=True).executor
    recorder = executor._recorder
    assert isinstance(recorder, Recorder)
    metadata = recorder._metadata
    metadata.flat.copy_(torch.arange(metadata.flat.numel(), device="cuda") % 7)
    before, cache = metadata.flat.clone(), executor.decoder.pool.storage[:, :, 1:].clone()
    tokens = executor.buffers.last_tokens[:-1].clone()
    executor.program(2, greedy=True)
    assert torch.equal(metadata.flat, before)
    assert torch.equal(executor.decoder.pool.storage[:, :, 1:], cache)
    assert torch.equal(executor.buffers.last_tokens[:-1], tokens)


def test_a_replay_computes_what_the_program_computes(checkpoint: Callable[[str], Checkpoint]) -> None:
    executor = engine(checkpoint("qwen3"), graphs=True).executor
    program = executor.build(2, greedy=True)
    recorded = executor.record(program)
    with torch.inference_mode(), rehearsal(program.buffers, executor.decoder.pool, 9):
        tokens = program.buffers.last_tokens.clone()
        program.run()
        ids, best = program.buffers.out_ids.clone(), program.buffers.out_max.clone()
        program.buffers.out_ids.zero_()
        program.buffers.last_tokens.copy_(tokens)
        recorded.run()
        assert torch.equal(recorded.buffers.out_ids, ids)
        assert torch.equal(recorded.buffers.out_max, best)


SAMPLED = [
    SamplingParams(max_tokens=16, ignore_eos=True, temperature=0.9, top_k=20, top_p=0.8, min_p=0.02, seed=1),
    SamplingParams(max_tokens=16, ignore_eos=True, repetition_penalty=1.3, presence_penalty=0.2, logprobs=2),
    SamplingParams(max_tokens=16, ignore_eos=True, temperature=1.2, frequency_penalty=0.3, seed=3),
]


def test_sampled_steps_are_recorded_whole_and_give_the_same_tokens(checkpoint: Callable[[str], Checkpoint]) -> None:
    c = checkpoint("qwen3")
    recorded, eager = engine(c, graphs=True), engine(c, graphs=False)
    results = [e.generate(PROMPTS, SAMPLED) for e in (recorded, eager)]
    assert [r.token_ids for r in results[0]] == [r.token_ids for r in results[1]]
    assert results[0][1].logprobs == results[1][1].logprobs
    needs = Needs(draws=True, filters=True, penalises=True, num_logprobs=MAX_LOGPROBS)
    assert isinstance(recorded.executor.program(4, greedy=False, needs=needs), RecordedProgram)


@pytest.mark.parametrize("window", [0, 7])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(32, 8, 128), (12, 4, 256), (32, 2, 128), (6, 2, 64)])
def test_prompts_are_attended_to_in_one_call(heads: int, kv_heads: int, head_dim: int, window: int) -> None:
    device = torch.device("cuda")
    assert flash_is_right(torch.bfloat16, heads, kv_heads, head_dim, window, device)


def test_prompts_on_fused_kernels_give_the_tokens_of_the_library_path(checkpoint: Callable[[str], Checkpoint]) -> None:
    c = checkpoint("qwen3")
    weights = load_weights(c.folder, c.spec, torch.device("cuda"), torch.float32)
    settings = {"kv_blocks": 257, "block_size": 4, "max_batch": 4, "max_step_tokens": 9}
    for fast in (False, True):
        live = Engine(c.spec, weights, EngineConfig(**settings, fast_prompts=fast))
        tokens = [list(r.token_ids) for r in live.generate(PROMPTS, PARAMS)]
        assert tokens == [greedy(c.model, p, 24) for p in PROMPTS], fast
