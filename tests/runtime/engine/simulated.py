"""A device of plain Python that checks every read: what the scheduler plans must find the right keys and values.

A cache slot holds the chain of tokens it was computed from, so reading a block that was reused, swapped to the wrong
place, or matched by anything but its tokens shows at once.
"""

from __future__ import annotations

import hashlib
from collections import deque
from dataclasses import dataclass, field

from runtime.engine.plan import Chunk, StepPlan
from runtime.engine.request import FinishReason, Request, SamplingParams
from runtime.engine.scheduler import Limits, Scheduler
from runtime.kv.blocks import DUMMY_BLOCK, BlockAllocator, HostBlocks

VOCAB = 3  # small, so that prompts share prefixes by chance


def next_token(tokens: tuple[int, ...]) -> int:
    """The simulated model: a function of the whole chain."""
    return hashlib.blake2b(bytes(tokens), digest_size=1).digest()[0] % VOCAB


def continuation(prompt: tuple[int, ...], count: int) -> list[int]:
    """What the simulated model says after ``prompt``."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(tuple(tokens)))
    return tokens[len(prompt) :]


@dataclass
class Device:
    """Cache slots, swap space and the table of newest tokens."""

    block_size: int
    slots: dict[int, tuple[int, ...]] = field(default_factory=dict)
    host: dict[int, dict[int, tuple[int, ...]]] = field(default_factory=dict)
    newest: dict[int, int] = field(default_factory=dict)

    def run(self, plan: StepPlan) -> list[int]:
        """Tokens of ``plan.emitting``."""
        for device, host in plan.swap_out:
            self.host[host] = {
                o: self.slots[device * self.block_size + o]
                for o in range(self.block_size)
                if device * self.block_size + o in self.slots
            }
        for device, host in plan.swap_in:
            for offset, chain in self.host[host].items():
                self.slots[device * self.block_size + offset] = chain
        chains = {id(chunk): self._chain(chunk, decodes=True) for chunk in plan.decode}
        chains |= {id(chunk): self._chain(chunk, decodes=False) for chunk in plan.prefill}
        tokens = []
        for chunk in plan.emitting:
            token = next_token(chains[id(chunk)])
            self.newest[chunk.slot] = token
            tokens.append(token)
        return tokens

    def _chain(self, chunk: Chunk, decodes: bool) -> tuple[int, ...]:
        """Read everything before the chunk, write the chunk, and return all of it."""
        own = [self.newest[chunk.slot]] if decodes else chunk.request.tokens[chunk.start : chunk.start + chunk.length]
        assert len(own) == chunk.length
        chain = self.slots[self._slot(chunk, chunk.start - 1)] if chunk.start else ()
        assert len(chain) == chunk.start
        for position in range(chunk.start):
            assert self.slots[self._slot(chunk, position)] == chain[: position + 1], "read something else's cache"
        for i, token in enumerate(own):
            chain = (*chain, token)
            self.slots[self._slot(chunk, chunk.start + i)] = chain
        return chain

    def _slot(self, chunk: Chunk, position: int) -> int:
        block = chunk.blocks[position // self.block_size]
        assert block != DUMMY_BLOCK
        return block * self.block_size + position % self.block_size


@dataclass
class Simulation:
    """The engine's loop around a scheduler and a simulated device, with an integrity check after every step."""

    num_blocks: int
    block_size: int
    limits: Limits
    host_blocks: int = 0
    lookahead: int = 0

    def __post_init__(self) -> None:
        allocator = BlockAllocator(self.num_blocks, self.block_size)
        self.scheduler = Scheduler(allocator, HostBlocks(self.host_blocks), self.limits)
        self.device = Device(self.block_size)
        self.requests: list[Request] = []
        self.plans: list[StepPlan] = []
        self._flying: deque[tuple[StepPlan, list[int]]] = deque()

    def submit(self, prompt: tuple[int, ...], max_tokens: int) -> Request:
        """Queue a request. Raises RequestError."""
        number = len(self.requests)
        params = SamplingParams(max_tokens=max_tokens)
        request = Request(f"r{number}", list(prompt), len(prompt), params, len(prompt) + max_tokens, 0, number)
        self.scheduler.submit(request)
        self.requests.append(request)
        return request

    def step(self, ends_at: dict[str, int] | None = None) -> StepPlan:
        """One turn. A request in ``ends_at`` stops by itself after that many tokens."""
        oldest = min((r for r in self.requests if not r.finished), key=lambda r: r.arrival, default=None)
        before = oldest.num_preemptions if oldest is not None else 0
        plan = self.scheduler.schedule()
        if oldest is not None:
            assert oldest.num_preemptions == before, "the oldest request gave way"
        assert plan.num_tokens <= self.limits.max_step_tokens
        if plan:
            self.plans.append(plan)
            self._flying.append((plan, self.device.run(plan)))
        self.scheduler.sanity_checks()
        if self._flying and (not plan or len(self._flying) > self.lookahead):
            self._collect(ends_at or {})
        self.scheduler.sanity_checks()
        return plan

    def drain(self, ends_at: dict[str, int] | None = None) -> None:
        """Step until everything has ended; fails when that takes longer than the work there is."""
        todo = sum(r.max_total for r in self.requests if not r.finished)
        for _ in range(2 * todo + 10):
            if all(r.finished for r in self.requests) and not self._flying:
                break
            self.step(ends_at)
        assert all(r.finished for r in self.requests), "a request starved"
        assert self.scheduler.allocator.num_used == 0, "device blocks leaked"
        assert self.scheduler.host.num_free == self.host_blocks, "host blocks leaked"

    def _collect(self, ends_at: dict[str, int]) -> None:
        plan, tokens = self._flying.popleft()
        taken = [c.request for c, t in zip(plan.emitting, tokens, strict=True) if self.scheduler.accept(c, t)]
        assert len(set(map(id, taken))) == len(taken), "a request got two tokens in one step"
        self.scheduler.commit(plan)
        for request in taken:
            count = len(request.output_tokens)
            if count >= ends_at.get(request.id, request.max_total):
                self.scheduler.finish(request, FinishReason.STOP)
            elif len(request.tokens) >= request.max_total:
                self.scheduler.finish(request, FinishReason.LENGTH)
