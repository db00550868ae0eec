"""The shipped checkpoint loads everywhere and says the same in the engine as in transformers."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from runtime.engine import Engine, EngineConfig, SamplingParams
from runtime.engine.tie_rule import disagreements
from runtime.engine.tokenizer import CheckpointTokenizer
from runtime.models.spec import ModelError

TINY = Path(__file__).resolve().parents[3] / "models" / "tiny-qwen3"
PROMPTS = ["The assert statement", "A class definition", "é🎈", "If an exception is raised,"]


@lru_cache(maxsize=2)
def engine(dtype: str) -> Engine:
    """The engine over the shipped checkpoint."""
    config = EngineConfig(max_batch=4, kv_blocks=200, max_step_tokens=64)
    return Engine.from_pretrained(TINY, config, device="cpu", dtype=dtype)


def test_it_is_small() -> None:
    assert sum(path.stat().st_size for path in TINY.iterdir()) < 8 * 10**6


def test_its_tokenizer_gives_back_any_text() -> None:
    tokenizer = CheckpointTokenizer(TINY)
    for text in ("", "plain", "  two  spaces\n\ttab", "é🎈 中文", "\x00\x7f"):
        ids = tokenizer.encode(text)
        assert len(ids) == len(text.encode())
        assert tokenizer.decode(ids) == text


def test_float32_text_is_that_of_transformers() -> None:
    model = AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32, attn_implementation="eager")
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    for result, prompt in zip(engine("float32").generate(PROMPTS, SamplingParams(max_tokens=60)), PROMPTS, strict=True):
        inputs = tokenizer(prompt, return_tensors="pt")
        with torch.no_grad():
            tokens = model.generate(**inputs, max_new_tokens=60, do_sample=False, pad_token_id=256)
        expected = tokens[0, inputs["input_ids"].shape[1] :].tolist()
        assert list(result.token_ids) == expected
        assert result.text == tokenizer.decode(expected, skip_special_tokens=True)


def test_bfloat16_tokens_are_within_the_tie_rule_of_float32() -> None:
    model = AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32, attn_implementation="eager")
    for result in engine("auto").generate(PROMPTS, SamplingParams(max_tokens=60, ignore_eos=True)):
        tokens = [*result.prompt_token_ids, *result.token_ids]
        with torch.no_grad():
            logits = model(torch.tensor([tokens])).logits[0, len(result.prompt_token_ids) - 1 : -1]
        assert disagreements(logits, result.token_ids, torch.bfloat16) == []


def test_streamed_text_is_whole_characters() -> None:
    pieces: list[str] = []
    params = SamplingParams(max_tokens=200, temperature=3.0, seed=1, ignore_eos=True)  # hot enough to break bytes
    engine("auto").add_request("é", params, on_output=lambda o: pieces.append(o.text))
    outputs = list(engine("auto").run())
    whole = CheckpointTokenizer(TINY).decode([t for o in outputs for t in o.token_ids])
    assert "\ufffd" in whole
    assert "".join(pieces) == whole


def test_its_chat_template_is_used_and_a_missing_one_is_said() -> None:
    tokenizer = CheckpointTokenizer(TINY)
    assert tokenizer.decode(tokenizer.chat([{"role": "user", "content": "Hi."}])) == "Hi.\n"
    tokenizer._tokenizer.chat_template = None
    with pytest.raises(ModelError, match="no chat template"):
        tokenizer.chat([{"role": "user", "content": "Hi."}])
