"""The program that states a contract, operator by operator: what the captured model runs without any compiler."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch

from runtime.baselines.registry import Prepare
from runtime.programs import Program, find_program
from runtime.programs.interpret import prepare


class _Programs(Mapping[str, Prepare]):
    """Implementations by contract id: every contract that has a program. They are found, not listed."""

    def __getitem__(self, contract_id: str) -> Prepare:
        program = find_program(contract_id)
        if program is None:
            raise KeyError(contract_id)
        return _prepared(program)

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


def _prepared(program: Program) -> Prepare:
    def prepared(
        dims: Mapping[str, int], tensors: Mapping[str, torch.Tensor | None], _scalars: Mapping[str, float]
    ) -> Callable[[], None]:
        return prepare(program, dims, tensors)

    return prepared


IMPLEMENTATIONS: Mapping[str, Prepare] = _Programs()
