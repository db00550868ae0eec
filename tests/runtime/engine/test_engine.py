"""What someone who calls the engine sees."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from runtime.engine.config import ConfigError, EngineConfig
from runtime.engine.engine import Engine
from runtime.engine.request import FinishReason, Output, RequestError, SamplingParams
from runtime.models.spec import ModelError
from tests.runtime.engine.checkpoints import VOCAB, greedy
from tests.runtime.engine.conftest import Checkpoint
from tests.runtime.engine.test_text import Bytes

Make = Callable[[str], Checkpoint]
PROMPT = [5, 9, 30, 7]
FOREVER = SamplingParams(max_tokens=30, ignore_eos=True)


def with_text(c: Checkpoint, **settings: int) -> Engine:
    """An engine whose tokens are bytes."""
    config = EngineConfig(**{"kv_blocks": 100, "block_size": 4, "max_batch": 4, "max_step_tokens": 32, **settings})
    return Engine(c.spec, c.weights, config, tokenizer=Bytes())


def test_a_prompt_as_long_as_the_context_is_refused(checkpoint: Make) -> None:
    engine = checkpoint("qwen3").engine(max_model_len=16)
    with pytest.raises(RequestError, match="a prompt of 16 tokens leaves no room in a context of 16; shorten it"):
        engine.add_request([3] * 16)
    assert not engine.has_work


def test_a_request_stops_cleanly_where_the_context_ends(checkpoint: Make) -> None:
    c = checkpoint("qwen3")
    engine = c.engine(max_model_len=16)
    for limit in (None, 100):
        [result] = engine.generate([[3] * 12], SamplingParams(max_tokens=limit, ignore_eos=True))
        assert result.finish_reason is FinishReason.LENGTH
        assert list(result.token_ids) == greedy(c.model, [3] * 12, 4)


def test_a_request_that_can_never_fit_is_refused_and_nothing_of_it_stays(checkpoint: Make) -> None:
    engine = checkpoint("qwen3").engine(kv_blocks=5, max_model_len=200)
    with pytest.raises(RequestError, match="never fit the KV cache of 16 tokens; lower max_tokens"):
        engine.add_request([3] * 8, SamplingParams(max_tokens=9))
    assert not engine.has_work
    assert len(engine.generate([[3] * 8], SamplingParams(max_tokens=8, ignore_eos=True))[0].token_ids) == 8


@pytest.mark.parametrize("prompt", [[], [VOCAB], [-1]], ids=["empty", "above", "negative"])
def test_prompts_that_are_no_prompts_are_refused(prompt: list[int], checkpoint: Make) -> None:
    with pytest.raises(RequestError, match=r"empty prompt|outside the vocabulary"):
        checkpoint("qwen3").engine().add_request(prompt)


def test_a_prompt_cached_whole_still_computes_its_last_token(checkpoint: Make) -> None:
    c = checkpoint("qwen3")
    engine = c.engine()
    prompt = [7] * 16  # four full blocks
    first, second = (engine.generate([prompt], FOREVER)[0] for _ in range(2))
    assert (first.num_cached_tokens, second.num_cached_tokens) == (0, 12)
    assert first.token_ids == second.token_ids == tuple(greedy(c.model, prompt, 30))


def test_a_conversation_reuses_what_the_last_turn_computed(checkpoint: Make) -> None:
    c = checkpoint("qwen3")
    engine = c.engine()
    [turn] = engine.generate([PROMPT], FOREVER)
    longer = [*turn.prompt_token_ids, *turn.token_ids, 11, 12]
    [result] = engine.generate([longer], FOREVER)
    assert result.num_cached_tokens == 32
    assert list(result.token_ids) == greedy(c.model, longer, 30)


def test_end_of_sequence_ids_stop_a_request_and_are_the_last_token(checkpoint: Make) -> None:
    c = checkpoint("qwen3")
    tokens = greedy(c.model, PROMPT, 30)
    for stop_at in (tokens[4], tokens[9]):
        params = SamplingParams(max_tokens=30, stop_token_ids=(stop_at,), ignore_eos=True)
        [result] = c.engine().generate([PROMPT], params)
        assert list(result.token_ids) == tokens[: tokens.index(stop_at) + 1]
        assert result.finish_reason is FinishReason.STOP


@pytest.mark.parametrize("lookahead", [0, 1])
def test_a_stop_string_ends_the_text_before_it(lookahead: int, checkpoint: Make) -> None:
    c = checkpoint("qwen3")
    whole = with_text(c).generate([PROMPT], FOREVER)[0]
    stop = whole.text[5:7]
    pieces: list[str] = []
    engine = with_text(c, lookahead=lookahead)
    params = SamplingParams(max_tokens=30, ignore_eos=True, stop=(stop, "never seen"))
    engine.add_request(PROMPT, params, on_output=lambda o: pieces.append(o.text))
    outputs = list(engine.run())
    assert outputs[-1].finish_reason is FinishReason.STOP
    assert "".join(pieces) == whole.text[: whole.text.index(stop)]


def test_streamed_pieces_add_up_to_the_result(checkpoint: Make) -> None:
    engine = with_text(checkpoint("qwen3"))
    seen: list[Output] = []
    engine.add_request(PROMPT, FOREVER, on_output=seen.append)
    assert list(engine.run()) == seen
    assert sum(len(o.token_ids) for o in seen) == 30
    assert [o.finished for o in seen] == [False] * 29 + [True]
    assert "".join(o.text for o in seen) == with_text(checkpoint("qwen3")).generate([PROMPT], FOREVER)[0].text


@pytest.mark.parametrize("lookahead", [0, 1])
def test_cancelling_in_the_middle_leaves_the_others_alone(lookahead: int, checkpoint: Make) -> None:
    c = checkpoint("qwen3")
    engine = c.engine(lookahead=lookahead)
    ended: dict[str, Output] = {}
    kept: list[int] = []

    def cancel_other(output: Output) -> None:
        kept.extend(output.token_ids)
        if len(kept) == 5:
            engine.abort("other")

    engine.add_request(PROMPT, FOREVER, request_id="mine", on_output=cancel_other)
    engine.add_request(PROMPT[:2], FOREVER, request_id="other", on_output=lambda o: ended.update({o.request_id: o}))
    while engine.has_work:
        engine.step()
        engine.scheduler.sanity_checks()
    assert ended["other"].finish_reason is FinishReason.ABORT
    assert kept == greedy(c.model, PROMPT, 30)
    assert engine.scheduler.allocator.num_used == 0


def test_a_request_may_cancel_itself_from_its_callback(checkpoint: Make) -> None:
    engine = checkpoint("qwen3").engine(lookahead=1)
    engine.add_request(PROMPT, FOREVER, request_id="me", on_output=lambda o: engine.abort("me"))
    outputs = list(engine.run())
    assert [o.finish_reason for o in outputs] == [None]
    assert engine.scheduler.allocator.num_used == 0


def test_a_callback_that_raises_costs_its_own_request_alone(checkpoint: Make) -> None:
    c = checkpoint("qwen3")
    engine = c.engine()
    got: list[int] = []

    def fail(output: Output) -> None:
        raise RuntimeError("mine")

    engine.add_request(PROMPT, FOREVER, request_id="bad", on_output=fail)
    engine.add_request(PROMPT, FOREVER, on_output=lambda o: got.extend(o.token_ids))
    with pytest.raises(RuntimeError, match="mine"):
        list(engine.run())
    list(engine.run())
    assert got == greedy(c.model, PROMPT, 30)
    assert engine.scheduler.allocator.num_used == 0


def test_closing_cancels_everything_even_where_a_callback_raises(checkpoint: Make) -> None:
    engine = checkpoint("qwen3").engine(lookahead=1)
    reasons: list[FinishReason | None] = []

    def fail(output: Output) -> None:
        reasons.append(output.finish_reason)
        raise RuntimeError("mine")

    for _ in range(3):
        engine.add_request(PROMPT, on_output=fail)
    engine.step()
    engine.close()
    assert reasons == [FinishReason.ABORT] * 3
    assert engine.scheduler.allocator.num_used == 0
    assert not engine.has_work


def test_requests_may_arrive_while_others_run(checkpoint: Make) -> None:
    c = checkpoint("qwen3")
    engine = c.engine(max_step_tokens=12)
    tokens: dict[str, list[int]] = {}
    late = [8] * 20
    first = engine.add_request(PROMPT, FOREVER)
    for step in range(200):
        if step == 6:
            second = engine.add_request(late, FOREVER)
        for output in engine.step():
            tokens.setdefault(output.request_id, []).extend(output.token_ids)
        if not engine.has_work:
            break
    assert tokens == {first: greedy(c.model, PROMPT, 30), second: greedy(c.model, late, 30)}


def test_an_id_in_use_is_refused_and_free_again_afterwards(checkpoint: Make) -> None:
    engine = checkpoint("qwen3").engine()
    engine.add_request(PROMPT, SamplingParams(max_tokens=2), request_id="a")
    with pytest.raises(RequestError, match="'a' is in use"):
        engine.add_request(PROMPT, request_id="a")
    list(engine.run())
    engine.add_request(PROMPT, SamplingParams(max_tokens=2), request_id="a")


def test_log_probabilities_are_those_of_the_reference(checkpoint: Make) -> None:
    c = checkpoint("llama")
    [result] = c.engine().generate([PROMPT], SamplingParams(max_tokens=8, ignore_eos=True, logprobs=3))
    with torch.no_grad():
        logits = c.model(torch.tensor([PROMPT + list(result.token_ids)])).logits[0, len(PROMPT) - 1 : -1]
    truth = logits.log_softmax(-1)
    for i, reported in enumerate(result.logprobs):
        best = truth[i].topk(3)
        assert [t for t, _ in reported.top] == best.indices.tolist()
        assert [p for _, p in reported.top] == pytest.approx(best.values.tolist(), abs=1e-4)
        assert reported.logprob == pytest.approx(truth[i, result.token_ids[i]].item(), abs=1e-4)


def test_padding_rows_write_the_dummy_block_alone(checkpoint: Make) -> None:
    engine = checkpoint("qwen3-bias-yarn").engine(max_batch=8, buckets=(8,))  # the bias makes every row's keys show
    engine.generate([PROMPT], FOREVER)
    used = {b for b in range(engine.decoder.pool.num_blocks) if engine.decoder.pool.storage[:, :, b].any()}
    assert used == set(range(1 + -(-(len(PROMPT) + 29) // 4)))


@pytest.mark.parametrize("name", ["llama", "glm4", "qwen3-vl"])
def test_the_rotation_table_is_shared_by_all_layers_and_changed_by_none(name: str, checkpoint: Make) -> None:
    engine = checkpoint(name).engine()
    before = engine.decoder.cos_sin.clone()
    engine.generate([PROMPT, PROMPT * 5], FOREVER)
    assert torch.equal(engine.decoder.cos_sin, before)
    assert before.dtype == torch.float32


def test_a_program_bound_at_length_one_is_right_at_the_longest(checkpoint: Make) -> None:
    c = checkpoint("qwen3")
    engine = c.engine(max_step_tokens=300)
    engine.executor.program(1, greedy=True)
    [result] = engine.generate([[9] * 250], FOREVER)
    assert list(result.token_ids) == greedy(c.model, [9] * 250, 30)


def test_settings_that_contradict_each_other_are_refused_by_name(checkpoint: Make) -> None:
    c = checkpoint("qwen3")
    with pytest.raises(ConfigError, match="max_step_tokens 8 must be above max_batch 8"):
        c.engine(max_step_tokens=8)
    with pytest.raises(ConfigError, match="max_model_len 513 is beyond the model's 512"):
        c.engine(max_model_len=513)
    with pytest.raises(ConfigError, match=r"^watermark is 2"):
        EngineConfig(watermark=2)


def test_the_cache_takes_what_the_batch_could_use_and_no_more(checkpoint: Make) -> None:
    engine = checkpoint("qwen3").engine(kv_blocks=None, max_batch=2)
    assert engine.decoder.pool.num_blocks == 1 + 2 * 512 // 4


def test_a_folder_that_is_no_checkpoint_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"config\.json: cannot be read"):
        Engine.from_pretrained(tmp_path)


def test_a_checkpoint_without_a_tokenizer_is_one_line(checkpoint: Make) -> None:
    with pytest.raises(ModelError, match="the tokenizer cannot be loaded") as caught:
        Engine.from_pretrained(checkpoint("qwen3").folder, device="cpu")
    assert "\n" not in str(caught.value)


def test_text_without_a_tokenizer_is_refused(checkpoint: Make) -> None:
    engine = checkpoint("qwen3").engine()
    with pytest.raises(RequestError, match="needs a tokenizer"):
        engine.add_request("hello")
    with pytest.raises(RequestError, match="stop strings need a tokenizer"):
        engine.add_request(PROMPT, SamplingParams(stop=("x",)))


def test_interrupting_generate_cancels_its_requests(checkpoint: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = checkpoint("qwen3").engine()
    steps = 0

    def interrupted() -> list[Output]:
        nonlocal steps
        steps += 1
        if steps == 4:
            raise KeyboardInterrupt
        return Engine.step(engine)

    monkeypatch.setattr(engine, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        engine.generate([PROMPT] * 3, FOREVER)
    assert engine.scheduler.allocator.num_used == 0
