"""Rounds: ask, parse, judge, tell; keep the best; stop in time. Everything is journalled before it is relied on."""

from __future__ import annotations

import concurrent.futures
import hashlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from generator.history import Attempt, best_of, history_section
from generator.journal import Event, Journal, JournalError
from generator.lanes import unprofitable
from generator.limits import Limits, Spent, exceeded, spent_in
from generator.prompt import Prompt, count_tokens, digest_of
from generator.providers.protocol import Ask, BatchProvider, Completion, PendingError, Provider, ProviderError
from generator.render import Request, render
from generator.reply import ReplyError, parse_reply
from kb.candidate import Candidate
from kb.contract import Contract
from kb.digest import meaning_digest
from kb.manifest import Finding, Outcome, Verdict
from kb.principle import Kind, Principle

Judge = Callable[[Candidate, int], Verdict]


@dataclass(frozen=True, slots=True)
class Plan:
    """What a search does. ``lanes`` authors answer every round; ``rounds`` is its most, at least the contract's N.

    With ``improve`` all rounds are used; else the search ends with the first round that has an accepted candidate.
    With ``batch`` a round's questions go out as one batch that is waited for ``wait`` seconds.
    """

    contract: Contract
    principles: Mapping[str, Principle]
    request: Request
    rounds: int
    lanes: int = 1
    improve: bool = False
    limits: Limits = field(default_factory=Limits)
    seed: Candidate | None = None
    batch: bool = False
    wait: float = 0.0


@dataclass(frozen=True, slots=True)
class Result:
    """How a search ended."""

    attempts: tuple[Attempt, ...]
    best: Attempt | None
    reason: str
    spent: Spent
    stopped_lanes: Mapping[int, str]


class UndecidedError(Exception):
    """A gate could not run, so a reply is neither right nor wrong. It is not recorded and can be judged elsewhere."""


class Search:
    """One search over a journal; ``run`` may be called again after any interruption."""

    def __init__(
        self,
        plan: Plan,
        provider: Provider,
        judge: Judge,
        journal: Journal,
        *,
        on_event: Callable[[Event], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.plan = plan
        self._provider = provider
        self._judge = judge
        self._journal = journal
        self._on_event = on_event
        self._clock = clock
        self._lock = threading.Lock()
        self._started = clock()
        self._before = spent_in(journal.events).seconds
        self._begin()

    def run(self) -> Result:
        """Play the rounds that are left. Raises PendingError or ProviderError with all state kept."""
        attempts: list[Attempt] = []
        stopped: dict[int, str] = {}
        reason = f"all {self.plan.rounds} rounds were played"
        for number in range(1, self.plan.rounds + 1):
            lanes = [lane for lane in range(self.plan.lanes) if lane not in stopped]
            if not lanes:
                reason = "every lane was stopped: " + "; ".join(stopped.values())
                break
            limit = self._limit(number, lanes)
            if limit is not None:
                reason = limit
                break
            played = self._round(number, lanes, attempts)
            attempts += played
            for lane in lanes:
                why = unprofitable([a for a in attempts if a.lane == lane], self.plan.contract.performance_floor)
                if why is not None:
                    stopped[lane] = why
                    self._once({"event": "lane-stopped", "key": f"lane-{lane + 1}", "lane": lane, "reason": why})
            if not self.plan.improve and any(a.verdict and a.verdict.accepted for a in played):
                reason = f"accepted in round {number}"
                break
        self._once({"event": "ended", "key": "search", "reason": reason})
        return Result(tuple(attempts), best_of(attempts), reason, self._spent(), stopped)

    def recorded(self) -> tuple[Attempt, ...]:
        """Every attempt judged so far, whether or not the search has ended."""
        keys = [(e["round"], e["lane"]) for e in self._journal.events if e["event"] == "attempt"]
        return tuple(attempt for key in sorted(keys) if (attempt := self._recorded(*key)) is not None)

    def transcript(self, attempt: Attempt) -> list[Event]:
        """Every event that led to ``attempt``: the search's opening, its prefix, and its lane's rounds up to it."""
        chosen = []
        for event in self._journal.events:
            if event["event"] in ("search", "prefix") or event.get("lane") == attempt.lane:
                chosen.append({k: v for k, v in event.items() if k != "elapsed"})
            if event["event"] == "attempt" and event["key"] == _key(attempt.round, attempt.lane):
                break
        return chosen

    def _begin(self) -> None:
        identity = _identity(self.plan, self._provider.name)
        known = self._journal.find("search", "search")
        if known is None:
            prompt = render(self.plan.contract, self.plan.principles, self.plan.request)
            self._append({"event": "search", "key": "search", **identity})
            self._append_prefix(prompt)
            return
        if not any(e["event"] == "prefix" for e in self._journal.events):
            self._append_prefix(render(self.plan.contract, self.plan.principles, self.plan.request))
        different = [k for k, v in identity.items() if known.get(k) != v]
        if different:
            raise JournalError(
                f"{self._journal.path}: holds another search ({', '.join(different)} differ); use another folder"
            )

    def _append_prefix(self, prompt: Prompt) -> None:
        """Pin the stable part: all rounds are asked with the principles as they stood when the search began."""
        manifest = prompt.manifest.model_dump(mode="json", exclude={"decisions"})
        self._append({"event": "prefix", "key": digest_of(prompt.prefix), "text": prompt.prefix, "manifest": manifest})

    @property
    def _prefix(self) -> Event:
        return next(e for e in self._journal.events if e["event"] == "prefix")

    def _round(self, number: int, lanes: Sequence[int], before: Sequence[Attempt]) -> list[Attempt]:
        done = {lane: self._recorded(number, lane) for lane in lanes}
        open_lanes = [lane for lane in lanes if done[lane] is None]
        questions = {lane: self._question(number, lane, before) for lane in open_lanes}
        replies = self._ask_all(questions)
        for lane in open_lanes:
            done[lane] = self._judge_reply(number, lane, replies[lane])
        return [attempt for lane in lanes if (attempt := done[lane]) is not None]

    def _question(self, number: int, lane: int, before: Sequence[Attempt]) -> Ask:
        floor = self.plan.contract.performance_floor
        history = history_section(before, lane, self.plan.lanes, floor=floor, seed=self.plan.seed)
        key = _key(number, lane)
        digest = digest_of(self._prefix["text"] + history)
        known = self._journal.find("prompt", key)
        if known is not None and known["prompt_digest"] != digest:
            raise JournalError(f"{self._journal.path}: {key} was asked with another prompt; use another folder")
        manifest = {
            **self._prefix["manifest"],
            "history_tokens": count_tokens(history),
            "prompt_digest": digest,
        }
        self._once(
            {
                "event": "prompt",
                "key": key,
                "lane": lane,
                "round": number,
                "prefix": self._prefix["key"],
                "history": history,
                "prompt_digest": digest,
                "manifest": manifest,
            }
        )
        return Ask(key, self._prefix["text"], history, digest)

    def _ask_all(self, questions: Mapping[int, Ask]) -> dict[int, Completion]:
        """All lanes at once. An error of one waits for the others, so that no reply that arrives is lost."""
        if self.plan.batch:
            self._ask_batch(questions)
        replies: dict[int, Completion] = {}
        errors: list[ProviderError] = []
        pool = concurrent.futures.ThreadPoolExecutor(max_workers=max(1, len(questions)))
        try:
            futures = {pool.submit(self._ask, lane, q): lane for lane, q in questions.items()}
            for future in concurrent.futures.as_completed(futures):
                try:
                    replies[futures[future]] = future.result()
                except ProviderError as error:
                    errors.append(error)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
        if errors:
            raise min(errors, key=lambda e: isinstance(e, PendingError))
        return replies

    def _ask_batch(self, questions: Mapping[int, Ask]) -> None:
        """Fetch what is unanswered as one batch; its id is journalled, so that it is collected, not sent again."""
        if not isinstance(self._provider, BatchProvider):
            raise ProviderError(f"provider {self._provider.name} has no batches; leave --batch out")
        lanes = {q.key: lane for lane, q in questions.items()}
        wanted = {q.key: q for q in questions.values() if self._journal.find("reply", q.key) is None}
        if not wanted:
            return
        name = "batch-" + "+".join(sorted(wanted))
        known = self._journal.find("batch", name)
        batch = known["batch"] if known else self._provider.submit(wanted)
        if known is None:
            self._append({"event": "batch", "key": name, "batch": batch})
        for key, completion in sorted(self._provider.collect(batch, wait=self.plan.wait).items()):
            self._journal_reply(lanes[key], wanted[key], completion)

    def _ask(self, lane: int, question: Ask) -> Completion:
        known = self._journal.find("reply", question.key)
        if known is not None:
            return Completion.model_validate(known["completion"])
        completion = self._provider.ask(
            question, lambda text: self._on_event({"event": "text", "key": question.key, "lane": lane, "text": text})
        )
        self._journal_reply(lane, question, completion)
        return completion

    def _journal_reply(self, lane: int, question: Ask, completion: Completion) -> None:
        self._append(
            {
                "event": "reply",
                "key": question.key,
                "lane": lane,
                "prompt_digest": question.prompt_digest,
                "completion": completion.model_dump(mode="json"),
            }
        )

    def _judge_reply(self, number: int, lane: int, completion: Completion) -> Attempt:
        key = _key(number, lane)
        candidate: Candidate | None = None
        verdict: Verdict | None = None
        findings: list[Finding] = []
        try:
            candidate = _candidate(completion, self.plan)
        except ReplyError as error:
            findings = error.findings
        if candidate is not None:
            self._on_event({"event": "judging", "key": key, "lane": lane, "digest": candidate.digest})
            seed = int.from_bytes(hashlib.sha256(f"{key}:{candidate.digest}".encode()).digest()[:4], "big")
            verdict = self._judge(candidate, seed)
            _require_decided(verdict, key)
        self._append(
            {
                "event": "attempt",
                "key": key,
                "lane": lane,
                "round": number,
                "candidate": candidate.model_dump(mode="json") if candidate else None,
                "verdict": verdict.model_dump(mode="json") if verdict else None,
                "findings": [f.model_dump(mode="json") for f in findings],
            }
        )
        return Attempt(number, lane, candidate, verdict, tuple(findings))

    def _recorded(self, number: int, lane: int) -> Attempt | None:
        event = self._journal.find("attempt", _key(number, lane))
        if event is None:
            return None
        return Attempt(
            round=number,
            lane=lane,
            candidate=Candidate.model_validate(event["candidate"]) if event["candidate"] else None,
            verdict=Verdict.model_validate(event["verdict"]) if event["verdict"] else None,
            findings=tuple(Finding.model_validate(f) for f in event["findings"]),
        )

    def _limit(self, number: int, lanes: Sequence[int]) -> str | None:
        """Limits stop new questions; what was asked and answered before is still judged."""
        unanswered = [lane for lane in lanes if self._journal.find("reply", _key(number, lane)) is None]
        return exceeded(self.plan.limits, self._spent()) if unanswered else None

    def _spent(self) -> Spent:
        return spent_in(self._journal.events).model_copy(update={"seconds": self._elapsed()})

    def _elapsed(self) -> float:
        return self._before + self._clock() - self._started

    def _once(self, event: Event) -> None:
        if self._journal.find(event["event"], event["key"]) is None:
            self._append(event)

    def _append(self, event: Event) -> None:
        with self._lock:
            self._journal.append({**event, "elapsed": round(self._elapsed(), 3)})
        self._on_event(event)


def _candidate(completion: Completion, plan: Plan) -> Candidate:
    if completion.stop == "refused":
        raise ReplyError([Finding(code="refused", message="the author declined to answer")])
    if completion.stop == "truncated":
        raise ReplyError(
            [Finding(code="truncated", message="the reply was cut off at its length limit; write a shorter kernel")]
        )
    return parse_reply(completion.text, plan.contract.id, plan.request.target)


def _key(number: int, lane: int) -> str:
    return f"round-{number}-lane-{lane + 1}"


def _identity(plan: Plan, provider: str) -> dict[str, Any]:
    request = plan.request
    return {
        "contract": plan.contract.id,
        "contract_digest": meaning_digest(plan.contract),
        "target": request.target.value,
        "arch": request.arch,
        "dtype": request.dtype.value if request.dtype else None,
        "dims": [dict(d) for d in request.dims],
        "lanes": plan.lanes,
        "provider": provider,
        "seed": plan.seed.digest if plan.seed else None,
        # None for all of them, as in journals from before there was a choice.
        **({"also": list(request.also)} if request.also else {}),
        "kinds": None if request.kinds == frozenset(Kind) else sorted(k.value for k in request.kinds),
    }


def _require_decided(verdict: Verdict, key: str) -> None:
    """Raises UndecidedError for a verdict that rejects nothing and accepts nothing."""
    if verdict.accepted or verdict.failed_gate is not None:
        return
    left = [g for g in verdict.gates if g.outcome is not Outcome.PASSED]
    names = ", ".join(g.gate.value for g in left) or "none"
    why = f" ({reason})" if (reason := next((g.reason for g in left if g.reason), "")) else ""
    raise UndecidedError(
        f"{key}: the reply could not be judged here, gates that did not run: {names}{why}; it is kept, run the same "
        "command again where they can"
    )
