"""The allocator hands out every block once, and finds a prefix only where all of its tokens are equal."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.kv.blocks import DUMMY_BLOCK, ROOT, BlockAllocator, BlocksHeldError, HostBlocks, OutOfBlocksError


def filled(allocator: BlockAllocator, tokens: list[int]) -> tuple[list[int], list[int]]:
    """Blocks and content ids of a sequence that computed ``tokens``."""
    size = allocator.block_size
    blocks = allocator.allocate(len(tokens) // size)
    contents: list[int] = []
    for i, block in enumerate(blocks):
        parent = contents[-1] if contents else ROOT
        contents.append(allocator.register(block, parent, tokens[i * size : (i + 1) * size]))
    return blocks, contents


def test_the_dummy_block_is_never_handed_out() -> None:
    allocator = BlockAllocator(5, 2)
    assert DUMMY_BLOCK not in allocator.allocate(4)
    with pytest.raises(OutOfBlocksError):
        allocator.allocate(1)


def test_freed_blocks_keep_their_tokens_until_they_are_reused() -> None:
    allocator = BlockAllocator(5, 2)
    blocks, _ = filled(allocator, [1, 2, 3, 4])
    allocator.free(blocks)
    assert [c.block for c in allocator.match([1, 2, 3, 4, 5], 9)] == blocks
    allocator.allocate(3)  # two never used, then the end of the chain
    assert [c.block for c in allocator.match([1, 2, 3, 4, 5], 9)] == blocks[:1]
    allocator.allocate(1)
    assert allocator.match([1, 2, 3, 4, 5], 9) == []


def test_blocks_without_content_are_reused_before_cached_ones() -> None:
    allocator = BlockAllocator(4, 2)
    cached, _ = filled(allocator, [1, 2])
    plain = allocator.allocate(1)
    allocator.free(cached)
    allocator.free(plain)
    assert not set(allocator.allocate(2)) & set(cached)


def test_the_same_tokens_after_another_prefix_do_not_match() -> None:
    allocator = BlockAllocator(9, 2)
    filled(allocator, [1, 2, 7, 8])
    other, _ = filled(allocator, [3, 4])
    found = allocator.match([3, 4, 7, 8], 9)
    assert [c.block for c in found] == other


def test_equal_hashes_of_different_tokens_do_not_match() -> None:
    allocator = BlockAllocator(9, 1)
    filled(allocator, [-1])
    assert hash((ROOT, (-1,))) == hash((ROOT, (-2,)))  # CPython hashes -1 and -2 alike
    assert allocator.match([-2], 9) == []


def test_a_chain_computed_twice_is_cached_once_and_goes_on_from_either_copy() -> None:
    allocator = BlockAllocator(9, 2)
    first, ids = filled(allocator, [1, 2])
    second = allocator.allocate(2)
    assert allocator.register(second[0], ROOT, [1, 2]) == ids[0]
    allocator.register(second[1], ids[0], [3, 4])
    assert [c.block for c in allocator.match([1, 2, 3, 4], 9)] == [first[0], second[1]]
    allocator.sanity_checks([first, second])


def test_a_shared_block_is_free_only_when_everyone_has_given_it_back() -> None:
    allocator = BlockAllocator(4, 1)
    blocks, _ = filled(allocator, [5])
    again = allocator.share(allocator.match([5], 1))
    assert again == blocks
    assert allocator.is_shared(blocks[0])
    allocator.free(blocks)
    assert allocator.num_free == 2
    allocator.free(again)
    assert allocator.num_free == 3


def test_given_up_blocks_are_found_no_longer_and_are_handed_out_first() -> None:
    allocator = BlockAllocator(6, 2)
    blocks = allocator.allocate(3)
    parent = ROOT
    for i, block in enumerate(blocks):
        parent = allocator.register(block, parent, [i, i])
    with pytest.raises(BlocksHeldError, match="hold 3 blocks"):
        allocator.give_up([5])
    allocator.free(blocks)
    allocator.give_up(blocks[1:])
    assert [c.block for c in allocator.match([0, 0, 1, 1, 2, 2], 3)] == blocks[:1]
    allocator.sanity_checks([])
    assert allocator.allocate(2) == blocks[1:]


def test_giving_a_block_back_twice_is_an_error() -> None:
    allocator = BlockAllocator(3, 1)
    blocks = allocator.allocate(1)
    allocator.free(blocks)
    with pytest.raises(OutOfBlocksError, match="twice"):
        allocator.free(blocks)


def test_a_block_that_is_not_full_cannot_be_registered() -> None:
    allocator = BlockAllocator(3, 4)
    [block] = allocator.allocate(1)
    with pytest.raises(ValueError, match="do not fill"):
        allocator.register(block, ROOT, [1, 2])


@pytest.mark.parametrize(
    "tables",
    [[[1], [1]], [[]], [[1, 2]], [[DUMMY_BLOCK, 1]]],
    ids=["held twice", "lost", "held but free", "dummy held"],
)
def test_sanity_checks_catch_tables_that_do_not_add_up(tables: list[list[int]]) -> None:
    allocator = BlockAllocator(4, 1)
    assert allocator.allocate(1) == [1]
    with pytest.raises(AssertionError):
        allocator.sanity_checks(tables)


def test_host_blocks_are_handed_out_once() -> None:
    host = HostBlocks(3)
    taken = host.allocate(2)
    with pytest.raises(OutOfBlocksError):
        host.allocate(2)
    host.sanity_checks([taken])
    with pytest.raises(AssertionError):
        host.sanity_checks([[]])
    host.free(taken)
    assert host.num_free == 3


sequences = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=8), min_size=1, max_size=20)


@settings(max_examples=200, deadline=None)
@given(st.integers(2, 12), st.integers(1, 3), sequences, st.data())
def test_a_match_holds_exactly_the_tokens_asked_for(
    num_blocks: int, block_size: int, prompts: list[list[int]], data: st.DataObject
) -> None:
    allocator = BlockAllocator(num_blocks, block_size)
    memory: dict[int, tuple[int, ...]] = {}  # block: the whole chain it was computed from
    held: list[list[int]] = []
    for prompt in prompts:
        while held and data.draw(st.booleans()):
            allocator.free(held.pop(data.draw(st.integers(0, len(held) - 1))))
        cached = allocator.match(prompt, len(prompt))
        for i, found in enumerate(cached):
            assert memory[found.block] == tuple(prompt[: (i + 1) * block_size])
        total = len(prompt) // block_size
        if allocator.num_free - allocator.free_among(cached) < total - len(cached):
            continue
        blocks = allocator.share(cached) + allocator.allocate(total - len(cached))
        contents = [c.content for c in cached]
        for i in range(len(cached), total):
            memory[blocks[i]] = tuple(prompt[: (i + 1) * block_size])
            parent = contents[-1] if contents else ROOT
            contents.append(allocator.register(blocks[i], parent, prompt[i * block_size : (i + 1) * block_size]))
        held.append(blocks)
        allocator.sanity_checks(held)
