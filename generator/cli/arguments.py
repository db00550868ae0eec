"""Command-line values that several commands take."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence

from kb.cli.failure import Failure
from kb.contract import Contract, DimKind
from kb.dtype import Target
from kb.library import Library

DIMS_HELP = "A shape to tune for, as name=value,name=value; may be repeated. Dims left out come from the sweep."


ALSO_HELP = "An older architecture the same source must compile for, such as sm_80; may be repeated."
BLOCKS_HELP = "Which blocks are told besides the mandates: none, decisions, or all (decisions and dead ends)."


def resolve_contract(library: Library, contract: str) -> Contract:
    """The contract called ``contract``. Raises Failure that names what is near."""
    if contract in library.contracts:
        return library.contracts[contract]
    near = difflib.get_close_matches(contract, library.contracts, n=1)
    hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(sorted(library.contracts))}"
    raise Failure(f"no contract '{contract}' in {library.root / 'contracts'}; {hint}")


def check_arch(target: Target, arch: str | None) -> str | None:
    """``arch`` as given, or None. Raises Failure for what names no architecture of ``target``."""
    if arch is not None and target is Target.CUDA:
        _require_capability("--arch", arch)
    return arch


def check_also(target: Target, archs: Sequence[str] | None) -> tuple[str, ...]:
    """``archs`` as given. Raises Failure for what is no architecture, and on ``cpu``, which has none beside its own."""
    for arch in archs or ():
        if target is Target.CPU:
            raise Failure(f"--also {arch}: only for --target cuda")
        _require_capability("--also", arch)
    return tuple(archs or ())


def _require_capability(option: str, arch: str) -> None:
    if not re.fullmatch(r"sm_[1-9][0-9]{1,2}", arch):
        raise Failure(f"{option} {arch}: expected a compute capability such as sm_90")


def parse_dims(text: str, contract: Contract) -> Mapping[str, int]:
    """``name=value`` pairs completed from the first performance shape. Raises Failure."""
    given: dict[str, int] = {}
    for part in text.split(","):
        name, equals, value = part.strip().partition("=")
        if not equals or not value.strip().lstrip("-").isdigit():
            raise Failure(f"--dims '{part.strip()}': expected name=number")
        given[name.strip()] = int(value)
    dims = dict(contract.sweep.performance[0]) | given
    for name in contract.dims_of(DimKind.FLAG):
        dims.setdefault(name, 0)
    try:
        contract.check_dims(dims)
    except ValueError as error:
        raise Failure(f"--dims {text}: {error}") from None
    return dims
