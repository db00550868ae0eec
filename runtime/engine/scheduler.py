"""Which positions of which requests the next step computes.

There are no phases, only a token budget. Running requests come first: one position each for those that decode, then
prompts still being computed; waiting ones are admitted only when nothing had to be preempted. Order is by arrival
throughout, the newest running request gives way first, and nobody overtakes the head of the queue, so the oldest
request always makes progress and every request becomes the oldest.

``schedule`` only needs to know how many tokens there are, not which, so it can plan step n + 1 while step n runs: a
request's ``pending`` token is the one that step n will add. Memory given back while a step is in flight may be handed
out at once, because all steps and copies run in order on one stream.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field
from typing import Literal

from runtime.engine.plan import Chunk, StepPlan
from runtime.engine.request import FinishReason, Request, RequestError, Status
from runtime.kv.blocks import ROOT, BlockAllocator, HostBlocks

# A prompt longer than a step shares the budget with those that wait, in pieces no smaller than this.
_MIN_CHUNK = 32


@dataclass(frozen=True, slots=True)
class Limits:
    """``max_batch`` requests at once, ``max_step_tokens`` rows a step; at admission ``watermark_blocks`` stay free for
    the running requests to grow into."""

    max_batch: int
    max_step_tokens: int
    watermark_blocks: int = 0
    prefix_cache: bool = True
    preemption: Literal["recompute", "swap"] = "recompute"

    def __post_init__(self) -> None:
        if self.max_batch < 1 or self.watermark_blocks < 0:
            raise ValueError(f"max_batch {self.max_batch} and watermark_blocks {self.watermark_blocks} make no sense")
        if self.max_step_tokens <= self.max_batch:
            raise ValueError(
                f"max_step_tokens {self.max_step_tokens} leaves no room for prompts beside {self.max_batch} decoding "
                "requests; raise it or lower max_batch"
            )


@dataclass(slots=True)
class _Draft:
    """A plan being written."""

    budget: int
    decode: list[Chunk] = field(default_factory=list)
    prefill: list[Chunk] = field(default_factory=list)
    swap_out: list[tuple[int, int]] = field(default_factory=list)
    swap_in: list[tuple[int, int]] = field(default_factory=list)
    preempted: bool = False


class Scheduler:
    """Owns the queue, the slots and, through the allocators, every request's memory."""

    def __init__(self, allocator: BlockAllocator, host: HostBlocks, limits: Limits) -> None:
        self.allocator = allocator
        self.host = host
        self.limits = limits
        self.waiting: list[Request] = []  # by arrival; preempted requests included
        self.running: list[Request] = []  # by arrival
        self._free_slots = list(range(limits.max_batch))

    def submit(self, request: Request) -> None:
        """Queue ``request``. Raises RequestError when it could not run even alone."""
        needed, usable = self.allocator.blocks_for(request.max_total), self.allocator.usable_blocks
        if needed > usable:
            room = usable * self.allocator.block_size
            raise RequestError(
                f"request {request.id}: {request.num_prompt} prompt tokens with up to "
                f"{request.max_total - request.num_prompt} more never fit the KV cache of {room} tokens; "
                "lower max_tokens or give the cache more memory"
            )
        insort(self.waiting, request, key=_arrival)

    def schedule(self) -> StepPlan:
        """The next step, empty when there is nothing to do. Requests are advanced as if it had run."""
        draft = _Draft(budget=self.limits.max_step_tokens)
        for request in list(self.running):
            if request.status is Status.RUNNING and self._decodes(request) and self._grow(request, draft):
                self._compute(request, 1, draft)
        prefilling = [r for r in self.running if self._prefills(r)]
        for i, request in enumerate(prefilling):
            others = len(prefilling) - i - 1 + (0 if draft.preempted else len(self.waiting))
            self._compute(request, self._share(request, draft.budget, others), draft)
        if not draft.preempted:
            self._admit(draft)
        prefill = sorted(draft.prefill, key=lambda chunk: not chunk.emits)
        return StepPlan(tuple(draft.decode), tuple(prefill), tuple(draft.swap_out), tuple(draft.swap_in))

    def accept(self, chunk: Chunk, token: int) -> bool:
        """Take the token that ``chunk`` produced; False when the request has ended meanwhile and does not want it."""
        request = chunk.request
        request.pending -= 1
        if request.finished:
            return False
        request.tokens.append(token)
        return True

    def commit(self, plan: StepPlan) -> None:
        """Cache the blocks that ``plan``, whose tokens have been accepted, has filled."""
        for chunk in (*plan.decode, *plan.prefill):
            if chunk.request.status is Status.RUNNING:
                self._register(chunk.request)

    def finish(self, request: Request, reason: FinishReason) -> None:
        """End ``request`` wherever it is and take its memory back."""
        if request.finished:
            return
        if request.status is Status.RUNNING:
            self._release(request)
        else:
            self.waiting.remove(request)
            self.host.free(request.host_blocks)
            request.host_blocks = []
        request.status, request.finish_reason = Status.FINISHED, reason

    def sanity_checks(self) -> None:
        """Check every invariant. Raises AssertionError."""
        everyone = [*self.running, *self.waiting]
        self.allocator.sanity_checks(r.blocks for r in everyone)
        self.host.sanity_checks(r.host_blocks for r in everyone)
        slots = [-1 if r.slot is None else r.slot for r in self.running]
        assert sorted([*slots, *self._free_slots]) == list(range(self.limits.max_batch)), "a slot is lost or shared"
        for queue in (self.running, self.waiting):
            arrivals = [r.arrival for r in queue]
            assert arrivals == sorted(set(arrivals)), "a queue is out of order or holds a request twice"
        for r in self.running:
            assert r.status is Status.RUNNING, f"{r.id} runs as {r.status}"
            assert not r.host_blocks, f"{r.id} runs with host blocks"
            assert 0 <= r.num_computed <= r.total <= r.max_total, f"{r.id} has computed tokens it does not have"
            assert len(r.blocks) >= self.allocator.blocks_for(r.num_computed), f"{r.id} wrote past its blocks"
            assert not any(map(self.allocator.is_shared, r.blocks[len(r.contents) :])), f"{r.id} writes a shared block"
        for r in self.waiting:
            assert r.slot is None, f"{r.id} waits holding a slot"
            assert not r.blocks, f"{r.id} waits holding device blocks"
            swapped = r.status is Status.SWAPPED
            held = self.allocator.blocks_for(r.num_computed) if swapped else 0
            assert len(r.host_blocks) == held, f"{r.id} holds {len(r.host_blocks)} host blocks, not {held}"

    # Running requests.

    def _decodes(self, request: Request) -> bool:
        """True where the next position's token is the newest one and already on the device."""
        return request.token_on_device and request.num_computed == request.total - 1 and request.wants_more

    def _prefills(self, request: Request) -> bool:
        """True where positions are left whose tokens come from the host."""
        return request.wants_more and request.num_computed < request.total and not self._decodes(request)

    def _grow(self, request: Request, draft: _Draft) -> bool:
        """Make sure ``request`` has a block for its next position; False when it had to give way itself."""
        if self.allocator.blocks_for(request.num_computed + 1) <= len(request.blocks):
            return True
        while not self.allocator.num_free:
            newest = self.running[-1]
            self._preempt(newest, draft)
            if newest is request:
                return False
        request.blocks.extend(self.allocator.allocate(1))
        return True

    def _compute(self, request: Request, length: int, draft: _Draft) -> None:
        if length < 1:
            return
        assert request.slot is not None
        decodes = self._decodes(request)
        emits = request.num_computed + length == request.total
        life = (request.arrival, request.admissions)
        chunk = Chunk(request, request.num_computed, length, emits, request.slot, request.blocks, life)
        (draft.decode if decodes else draft.prefill).append(chunk)
        draft.budget -= length
        request.num_computed += length
        if emits:
            request.pending += 1
            request.token_on_device = True

    def _share(self, request: Request, budget: int, others: int) -> int:
        """Tokens of a prompt to compute now: all the budget allows, so that prompts stay in few pieces. One that no
        step could hold whole leaves half of it to the ``others`` that wait."""
        rest = request.total - request.num_computed
        long = rest > self.limits.max_step_tokens
        return min(rest, budget if not (long and others) else min(budget, max(_MIN_CHUNK, -(-budget // 2))))

    def _preempt(self, request: Request, draft: _Draft) -> None:
        """Take a running request's memory; it keeps every token it has and waits at its old place in line."""
        used = self.allocator.blocks_for(request.num_computed)
        if self.limits.preemption == "swap" and self.host.num_free >= used:
            request.host_blocks = self.host.allocate(used)
            draft.swap_out.extend(zip(request.blocks, request.host_blocks, strict=False))
            status = Status.SWAPPED
        else:
            request.num_computed = 0
            status = Status.WAITING
        self._release(request)
        request.status = status
        request.num_preemptions += 1
        insort(self.waiting, request, key=_arrival)
        draft.preempted = True

    def _release(self, request: Request) -> None:
        """Take slot and blocks of a running request."""
        assert request.slot is not None
        self.running.remove(request)
        self._free_slots.append(request.slot)
        self.allocator.free(request.blocks)
        request.slot, request.token_on_device = None, False
        request.blocks, request.contents = [], []  # new lists: a step in flight still reads the old ones

    # Waiting requests.

    def _admit(self, draft: _Draft) -> None:
        """Admit from the head of the queue while slots, budget and memory last."""
        while self.waiting and self._free_slots and draft.budget > 0:
            request = self.waiting[0]
            if request.pending or not self._give_memory(request, draft):
                return  # nobody overtakes; a token still in flight is known in the next step
            del self.waiting[0]
            insort(self.running, request, key=_arrival)
            request.status, request.slot = Status.RUNNING, self._free_slots.pop()
            request.admissions += 1
            self._compute(request, self._share(request, draft.budget, len(self.waiting)), draft)

    def _give_memory(self, request: Request, draft: _Draft) -> bool:
        """Blocks for all tokens ``request`` has, from the cache where they are there; False when too few are free."""
        allocator = self.allocator
        reserve = self.limits.watermark_blocks if self.running else 0
        needed = allocator.blocks_for(request.total)
        if request.status is Status.SWAPPED:
            if allocator.num_free - needed < reserve:
                return False
            request.blocks = allocator.allocate(needed)
            draft.swap_in.extend(zip(request.blocks, request.host_blocks, strict=False))
            self.host.free(request.host_blocks)
            request.host_blocks = []
            return True
        # The last token is always computed, whatever the cache holds: its logits are what is wanted.
        most = (request.total - 1) // allocator.block_size if self.limits.prefix_cache else 0
        cached = allocator.match(request.tokens, most)
        if allocator.num_free - allocator.free_among(cached) - (needed - len(cached)) < reserve:
            return False
        request.blocks = allocator.share(cached) + allocator.allocate(needed - len(cached))
        request.contents = [c.content for c in cached]
        request.num_computed = len(cached) * allocator.block_size
        if not request.admissions:
            request.num_cached = request.num_computed
        return True

    def _register(self, request: Request) -> None:
        """Cache the full blocks of ``request`` whose tokens are known and computed."""
        if not self.limits.prefix_cache:
            return
        size = self.allocator.block_size
        full = min(request.num_computed, len(request.tokens)) // size
        for i in range(len(request.contents), full):
            parent = request.contents[-1] if request.contents else ROOT
            tokens = request.tokens[i * size : (i + 1) * size]
            request.contents.append(self.allocator.register(request.blocks[i], parent, tokens))


def _arrival(request: Request) -> int:
    return request.arrival
