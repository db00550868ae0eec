"""The API provider against a loopback server: what is sent, what comes back, and every fault in between."""

from __future__ import annotations

import anthropic as client
import pytest

from generator.providers.anthropic import Anthropic, Price, Settings
from generator.providers.protocol import Ask, PendingError, ProviderError
from tests.generator.loopback import Script, serve

ASK = Ask("round-1-lane-1", "a stable prefix", "", "0" * 64)
KEY = "sk-ant-secret-0123456789"


def provider(url: str, **settings: object) -> Anthropic:
    chosen = Settings(**({"retries": 2, "backoff": 0.0} | settings))  # type: ignore[arg-type]
    return Anthropic(client.Anthropic(api_key=KEY, base_url=url, max_retries=0), chosen, sleep=lambda _: None)


def test_the_prefix_is_marked_for_caching_and_the_history_is_not() -> None:
    script = Script([{"text": "x"}])
    with serve(script) as url:
        provider(url, model="claude-test-1", thinking=4000, effort="high").ask(
            Ask("k", "a stable prefix", "what changed", "0" * 64)
        )
    body = script.seen[0]
    first, second = body["messages"][0]["content"]
    assert (first["text"], first["cache_control"]) == ("a stable prefix", {"type": "ephemeral"})
    assert second == {"type": "text", "text": "what changed"}
    assert body["thinking"] == {"type": "enabled", "budget_tokens": 4000}
    assert body["output_config"] == {"effort": "high"}
    assert body["stream"] is True
    assert any(KEY in value for value in script.headers[0].values())


def test_the_reply_streams_in_and_usage_and_cost_are_counted() -> None:
    usage = {"input_tokens": 10, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 900, "output_tokens": 50}
    heard: list[str] = []
    with serve(Script([{"text": "a longer reply", "usage": usage}])) as url:
        completion = provider(url, price=Price(5.0, 0.5, 25.0)).ask(ASK, heard.append)
    assert completion.text == "".join(heard) == "a longer reply"
    assert len(heard) > 1
    assert completion.model == "claude-test-1"
    assert (completion.usage.input_tokens, completion.usage.cached_input_tokens) == (910, 900)
    assert completion.usage.cost_usd == pytest.approx((10 * 5 + 900 * 0.5 + 50 * 25) / 1e6)


@pytest.mark.parametrize(
    ("stop", "expected"),
    [
        ("end_turn", "end"),
        ("max_tokens", "truncated"),
        ("model_context_window_exceeded", "truncated"),
        ("refusal", "refused"),
    ],
)
def test_every_way_a_reply_can_end_is_told_apart(stop: str, expected: str) -> None:
    with serve(Script([{"stop": stop}])) as url:
        assert provider(url).ask(ASK).stop == expected


@pytest.mark.parametrize(
    "fault",
    [
        {"status": 429, "error": "rate_limit_error"},
        {"status": 500},
        {"status": 529, "error": "overloaded_error"},
        {"text": "a reply that breaks", "break_after": 5},
        {"text": "a reply that is cut", "cut_after": 5},
    ],
)
def test_a_passing_fault_is_retried(fault: dict[str, object]) -> None:
    script = Script([fault, {"text": "at last"}])
    with serve(script) as url:
        assert provider(url).ask(ASK).text == "at last"
    assert len(script.seen) == 2


def test_a_lasting_fault_ends_in_one_clear_error() -> None:
    script = Script([{"status": 529, "error": "overloaded_error", "message": "Overloaded"}])
    with serve(script) as url, pytest.raises(ProviderError, match=r"after 3 attempts.*Overloaded"):
        provider(url).ask(ASK)
    assert len(script.seen) == 3


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ({"status": 401, "error": "authentication_error", "message": f"invalid {KEY}"}, "key in ANTHROPIC_API_KEY"),
        ({"status": 404, "error": "not_found_error"}, "unknown model 'claude-nobody'; choose another with --model"),
        ({"status": 400, "error": "invalid_request_error", "message": "prompt is too long"}, "prompt is too long"),
    ],
)
def test_a_request_that_cannot_succeed_is_not_repeated_and_the_key_never_shows(
    fault: dict[str, object], message: str
) -> None:
    script = Script([fault])
    with serve(script) as url, pytest.raises(ProviderError, match=message) as caught:
        provider(url, model="claude-nobody").ask(ASK)
    assert len(script.seen) == 1
    assert "secret" not in str(caught.value)


def test_without_a_key_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    with pytest.raises(ProviderError, match="ANTHROPIC_API_KEY is not set; export a key, or use --provider exchange"):
        Anthropic.from_environment()


def test_a_batch_is_pending_then_answers_every_question_by_its_key() -> None:
    script = Script([{"text": "one"}, {"text": "two"}])
    questions = {k: Ask(k, "prefix", "", "0" * 64) for k in ("round-1-lane-1", "round-1-lane-2")}
    with serve(script) as url:
        source = provider(url)
        batch = source.submit(questions)
        with pytest.raises(PendingError, match="still running"):
            source.collect(batch)
        replies = source.collect(batch)
    assert {k: c.text for k, c in replies.items()} == {"round-1-lane-1": "one", "round-1-lane-2": "two"}
    sent = script.seen[0]["requests"]
    assert [r["custom_id"] for r in sent] == sorted(questions)
    assert sent[0]["params"]["messages"][0]["content"][0]["cache_control"] == {"type": "ephemeral"}


def test_a_failed_answer_of_a_batch_names_its_question() -> None:
    script = Script([{"text": "one", "batch": "errored"}], batch_polls=1)
    with serve(script) as url:
        source = provider(url)
        batch = source.submit({"round-1-lane-1": ASK})
        with pytest.raises(ProviderError, match="round-1-lane-1 errored"):
            source.collect(batch)
