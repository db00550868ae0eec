"""Which contracts are stated by a program. Filled by whoever derives contracts, for this process.

A contract's id is made from its program's digest, so an id never comes to mean another program.
"""

from __future__ import annotations

from runtime.programs.program import Program

_PROGRAMS: dict[str, Program] = {}


def register_program(contract_id: str, program: Program) -> None:
    """State ``contract_id`` by ``program``; the same again is fine. Raises ValueError for another one."""
    known = _PROGRAMS.setdefault(contract_id, program)
    if known != program:
        raise ValueError(f"{contract_id} is stated by another program already")


def find_program(contract_id: str) -> Program | None:
    """The program that states a contract; None for one that is not stated by a program."""
    return _PROGRAMS.get(contract_id)
