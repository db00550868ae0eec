"""Block allocator whose free list is the prefix cache.

A block whose tokens are complete is *registered*: it gets a content id that stands for exactly one chain of tokens,
because the id is looked up by (parent's content id, this block's tokens) and ids are never reused. Freed blocks keep
their content until they are handed out again, so equal prompts find them; nothing is ever matched by hash alone.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

# Block that belongs to nobody: padding rows of a step read and write it.
DUMMY_BLOCK = 0
# Content id of the empty chain.
ROOT = 0


class OutOfBlocksError(RuntimeError):
    """More blocks were asked for than are free; callers check first, so this is a bug."""


class BlocksHeldError(RuntimeError):
    """Blocks were to be overwritten while requests hold some. Says what to do."""


@dataclass(frozen=True, slots=True)
class Content:
    """What a registered block holds: its tokens after the chain ``parent``."""

    id: int
    parent: int
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CachedBlock:
    """A block found in the cache."""

    block: int
    content: int


class BlockAllocator:
    """Reference counts, free list and prefix cache of ``num_blocks`` blocks of ``block_size`` tokens."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 2 or block_size < 1:
            raise ValueError(f"{num_blocks} blocks of {block_size} tokens; 2 blocks of 1 token is the least")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._references = [0] * num_blocks
        # Front: handed out next. Blocks without content first, then least recently freed.
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, num_blocks))
        self._content: dict[int, Content] = {}
        self._cached: dict[tuple[int, tuple[int, ...]], int] = {}
        self._next_content = ROOT + 1

    @property
    def usable_blocks(self) -> int:
        """Blocks that requests can hold at all."""
        return self.num_blocks - 1

    @property
    def num_free(self) -> int:
        """Blocks nobody holds, cached ones included."""
        return len(self._free)

    @property
    def num_used(self) -> int:
        """Blocks somebody holds."""
        return self.usable_blocks - self.num_free

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that ``num_tokens`` tokens fill."""
        return -(-num_tokens // self.block_size)

    def match(self, tokens: Sequence[int], most: int) -> list[CachedBlock]:
        """Longest cached chain of full blocks equal to the start of ``tokens``, ``most`` blocks at most. Takes none."""
        found: list[CachedBlock] = []
        parent = ROOT
        for i in range(min(most, len(tokens) // self.block_size)):
            block = self._cached.get((parent, tuple(tokens[i * self.block_size : (i + 1) * self.block_size])))
            if block is None:
                break
            parent = self._content[block].id
            found.append(CachedBlock(block, parent))
        return found

    def free_among(self, blocks: Iterable[CachedBlock]) -> int:
        """How many of ``blocks`` nobody holds: taking them uses up free ones."""
        return sum(1 for cached in blocks if self._references[cached.block] == 0)

    def share(self, blocks: Iterable[CachedBlock]) -> list[int]:
        """Take cached blocks; each must be given back with ``free``."""
        taken = []
        for cached in blocks:
            if self._references[cached.block] == 0:
                del self._free[cached.block]
            self._references[cached.block] += 1
            taken.append(cached.block)
        return taken

    def allocate(self, count: int) -> list[int]:
        """Take ``count`` blocks of undefined content. Raises OutOfBlocksError when fewer are free."""
        if count > len(self._free):
            raise OutOfBlocksError(f"{count} blocks asked for, {len(self._free)} are free")
        taken = []
        for _ in range(count):
            block, _none = self._free.popitem(last=False)
            self._forget(block)
            self._references[block] = 1
            taken.append(block)
        return taken

    def free(self, blocks: Sequence[int]) -> None:
        """Give back one reference of each of ``blocks``, in the order a sequence holds them.

        The end of a chain is reused before its start: a start without its end is still worth something.
        """
        for block in reversed(blocks):
            if self._references[block] < 1:
                raise OutOfBlocksError(f"block {block} was given back twice")
            self._references[block] -= 1
            if self._references[block] == 0:
                self._free[block] = None
                if block not in self._content:
                    self._free.move_to_end(block, last=False)

    def register(self, block: int, parent: int, tokens: Sequence[int]) -> int:
        """Say that ``block``, held by the caller, now holds ``tokens`` after the chain ``parent``; its content id.

        Where the same chain is already cached in another block, that one stays the cached one, and its id is returned.
        """
        if len(tokens) != self.block_size:
            raise ValueError(f"{len(tokens)} tokens do not fill a block of {self.block_size}")
        key = (parent, tuple(tokens))
        known = self._cached.get(key)
        if known is not None:
            return self._content[known].id
        self._forget(block)
        content = Content(self._next_content, parent, key[1])
        self._next_content += 1
        self._content[block] = content
        self._cached[key] = block
        return content.id

    def give_up(self, blocks: Sequence[int]) -> None:
        """Forget what ``blocks`` hold, because somebody is about to write over them and over a step's buffers; no
        prefix in them is found again.

        Raises BlocksHeldError while requests hold any block at all.
        """
        if self.num_used:
            raise BlocksHeldError(
                f"running requests hold {self.num_used} blocks of the KV cache; choose kernels before the first "
                "request or when none is running"
            )
        for block in reversed(blocks):
            self._forget(block)
            self._free.move_to_end(block, last=False)

    def is_shared(self, block: int) -> bool:
        """True where more than one request holds ``block``."""
        return self._references[block] > 1

    def sanity_checks(self, tables: Iterable[Sequence[int]]) -> None:
        """Check every invariant against the block tables of all requests. Raises AssertionError. O(blocks)."""
        held = Counter(block for table in tables for block in table)
        assert held[DUMMY_BLOCK] == 0, "a request holds the dummy block"
        assert DUMMY_BLOCK not in self._free, "the dummy block is free"
        for block in range(1, self.num_blocks):
            assert self._references[block] == held[block], (
                f"block {block} is in {held[block]} tables and counts {self._references[block]} references"
            )
            assert (held[block] == 0) == (block in self._free), f"block {block} is both held and free, or neither"
        assert len(self._cached) == len(self._content), "cache and contents differ"
        for block, content in self._content.items():
            assert self._cached[content.parent, content.tokens] == block, f"block {block} is not found by its tokens"
            assert len(content.tokens) == self.block_size, f"block {block} is registered before it is full"

    def _forget(self, block: int) -> None:
        content = self._content.pop(block, None)
        if content is not None:
            del self._cached[content.parent, content.tokens]


class HostBlocks:
    """Free list of the swap space's blocks."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks))

    @property
    def num_free(self) -> int:
        """Blocks of swap space nobody holds."""
        return len(self._free)

    def allocate(self, count: int) -> list[int]:
        """Take ``count`` blocks. Raises OutOfBlocksError when fewer are free."""
        if count > len(self._free):
            raise OutOfBlocksError(f"{count} host blocks asked for, {len(self._free)} are free")
        taken, self._free = self._free[:count], self._free[count:]
        return taken

    def free(self, blocks: Iterable[int]) -> None:
        """Give ``blocks`` back."""
        self._free.extend(blocks)

    def sanity_checks(self, tables: Iterable[Sequence[int]]) -> None:
        """Every block is free or held, once. Raises AssertionError."""
        held = [block for table in tables for block in table]
        assert sorted(held + self._free) == list(range(self.num_blocks)), "a host block is lost or held twice"
