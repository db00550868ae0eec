"""A rehearsal gives every row a sequence of its own over noise, and leaves nothing behind."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from runtime.engine.executor import Executor
from runtime.engine.rehearsal import rehearsal
from runtime.kv.blocks import DUMMY_BLOCK
from tests.runtime.engine.conftest import Checkpoint


@pytest.fixture
def executor(checkpoint: Callable[[str], Checkpoint]) -> Executor:
    return checkpoint("qwen3").engine(max_batch=4, kv_blocks=33).executor


def is_untouched(executor: Executor) -> bool:
    b, pool = executor.buffers, executor.decoder.pool
    zero = ("residual", "x", "q", "attention", "projected", "activated", "input_ids", "positions", "slot_mapping")
    zero += ("seq_lens", "request_slots", "out_ids", "out_max", "last_tokens")
    clear = not any(getattr(b, name).any() for name in zero)
    return clear and not pool.storage.any() and bool((b.block_table == DUMMY_BLOCK).all())


@pytest.mark.parametrize(("context", "length"), [(1, 1), (4, 4), (9, 9), (1000, 32)])
def test_every_row_is_a_sequence_with_blocks_of_its_own(executor: Executor, context: int, length: int) -> None:
    pool = executor.decoder.pool
    buffers = executor.buffers.sliced(4, 4)
    with rehearsal(buffers, pool, context) as found:
        assert found == length
        blocks = -(-length // pool.block_size)
        used = buffers.block_table[:, :blocks].flatten().tolist()
        assert sorted(used) == list(range(1, 1 + 4 * blocks))
        assert buffers.seq_lens.tolist() == [length] * 4
        assert buffers.positions.tolist() == [length - 1] * 4
        last = buffers.block_table[:, blocks - 1]
        assert buffers.slot_mapping.tolist() == (last * pool.block_size + (length - 1) % pool.block_size).tolist()
        assert pool.storage[:, :, used].ne(0).float().mean() > 0.99
        assert not pool.storage[:, :, DUMMY_BLOCK].any()
        assert buffers.x.std() > 0.5


def test_nothing_is_left_after_a_step_and_the_dummy_block_is_never_written(executor: Executor) -> None:
    program = executor.build(4, greedy=True)
    with torch.inference_mode(), rehearsal(program.buffers, executor.decoder.pool, 9):
        program.run()
        assert not executor.decoder.pool.storage[:, :, DUMMY_BLOCK].any()
        assert not is_untouched(executor)
    assert is_untouched(executor)


def test_nothing_is_left_after_an_error(executor: Executor) -> None:
    buffers = executor.buffers.sliced(2, 2)
    with pytest.raises(RuntimeError, match="a kernel's"), rehearsal(buffers, executor.decoder.pool, 9):
        raise RuntimeError("a kernel's")
    assert is_untouched(executor)


def test_a_seed_repeats_the_noise(executor: Executor) -> None:
    buffers, pool = executor.buffers.sliced(2, 2), executor.decoder.pool
    seen = []
    for seed in (3, 3, 4):
        with rehearsal(buffers, pool, 9, seed):
            seen.append((buffers.x.clone(), pool.storage.clone()))
    assert all(torch.equal(a, b) for a, b in zip(seen[0], seen[1], strict=True))
    assert not torch.equal(seen[0][0], seen[2][0])
