"""Index tensors and tables: positions, slots, block tables, sequence lengths, the rotary table. All on the CPU."""

from __future__ import annotations

import torch

ROPE_THETA = 10_000.0

# Block table entries that must not be followed: just past the cache, far past it, and negative.
_UNDEFINED = (0, 12_345_678)


def cos_sin_table(max_positions: int, rotary_dim: int, theta: float = ROPE_THETA) -> torch.Tensor:
    """float32 [max_positions, rotary_dim]: cos in the first half of a row, sin in the second."""
    frequency = theta ** (-torch.arange(0, rotary_dim, 2, dtype=torch.float64) / rotary_dim)
    angle = torch.arange(max_positions, dtype=torch.float64)[:, None] * frequency
    return torch.cat((angle.cos(), angle.sin()), dim=1).float()


def positions(num_tokens: int, max_positions: int, gen: torch.Generator) -> torch.Tensor:
    """int32 [num_tokens], anywhere in the table."""
    return torch.randint(max_positions, (num_tokens,), generator=gen, dtype=torch.int32)


def slots(num_tokens: int, num_slots: int, gen: torch.Generator) -> torch.Tensor:
    """int32 [num_tokens], distinct and in no order."""
    return torch.randperm(num_slots, generator=gen)[:num_tokens].to(torch.int32)


def ragged_lengths(count: int, longest: int, block_size: int, gen: torch.Generator) -> torch.Tensor:
    """int32 [count] in 1..longest, shuffled: the longest, one token, page boundaries and their neighbours."""
    boundary = longest // block_size * block_size
    wanted = [longest, 1, boundary, boundary + 1, boundary - 1, block_size, block_size + 1]
    chosen = [n for n in wanted if 1 <= n <= longest][:count]
    drawn = torch.randint(1, longest + 1, (count - len(chosen),), generator=gen)
    lengths = torch.cat((torch.tensor(chosen), drawn))
    return lengths[torch.randperm(count, generator=gen)].to(torch.int32)


def block_table(
    lengths: torch.Tensor, columns: int, block_size: int, num_blocks: int, gen: torch.Generator
) -> torch.Tensor:
    """int32 [rows, columns]: distinct blocks in no order for every row's tokens; the rest lies outside the cache.

    Raises ValueError when the rows need more blocks than there are.
    """
    needed = [-(-int(n) // block_size) for n in lengths]
    if sum(needed) > num_blocks:
        raise ValueError(f"the sequences need {sum(needed)} blocks; the cache has {num_blocks}")
    return fill_table(needed, columns, num_blocks, torch.randperm(num_blocks, generator=gen))


def fill_table(needed: list[int], columns: int, num_blocks: int, order: torch.Tensor) -> torch.Tensor:
    """A block table whose rows take ``needed`` blocks each from ``order``, first to last."""
    table = torch.full((len(needed), columns), -1, dtype=torch.int32)
    for i, past in enumerate(_UNDEFINED):
        table[:, i :: len(_UNDEFINED) + 1] = num_blocks + past
    start = 0
    for row, count in enumerate(needed):
        table[row, :count] = order[start : start + count].to(torch.int32)
        start += count
    return table


def live_slots(table: torch.Tensor, lengths: torch.Tensor, block_size: int, num_blocks: int) -> torch.Tensor:
    """bool [num_blocks * block_size]: the cache slots that hold a token of a sequence."""
    live = torch.zeros(num_blocks * block_size, dtype=torch.bool)
    for row, length in enumerate(lengths.tolist()):
        token = torch.arange(length)
        live[table[row].long()[token // block_size] * block_size + token % block_size] = True
    return live
