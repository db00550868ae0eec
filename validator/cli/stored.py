"""``agentcompile validate DIGEST``: a kernel of the store, judged at the dims of a model or at given ones."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kb.cli.failure import Failure

if TYPE_CHECKING:
    from kb.contract import Contract
    from kb.store import Entry, KernelStore
    from validator.extending import Trial
    from validator.gates.context import Options

_DIGEST = re.compile(r"[0-9a-f]{4,64}")


def is_digest(text: str) -> bool:
    """Whether ``text`` names a stored kernel: hexadecimal digits, and no folder of that name."""
    return _DIGEST.fullmatch(text) is not None and not Path(text).is_dir()


def find(digest: str, store: Path | None, root: Path | None) -> tuple[Entry, Contract, KernelStore]:
    """The stored kernel, its contract and its store. Raises Failure."""
    from kb.library import library_root, load_library
    from kb.store import StoreError
    from validator.extending import ExtensionError, place_of, require_current

    library = load_library(library_root(root))
    try:
        kernels = place_of(store if store is not None else library.root / "kernels")
        entry = kernels.get(digest)
        if entry.manifest.contract not in library.contracts:
            raise Failure(f"no contract '{entry.manifest.contract}' in {library.root / 'contracts'}")
        contract = library.contracts[entry.manifest.contract]
        require_current(entry, contract)
    except (StoreError, ExtensionError) as error:
        raise Failure(str(error)) from None
    return entry, contract, kernels


def trials_of(
    contract: Contract, dims: dict[str, int] | None, model: Path | None, buckets: Sequence[int], options: Options
) -> list[Trial]:
    """What to judge at: given dims, those of a model's sites, or everything. Raises Failure."""
    from dataclasses import replace

    from validator.extending import Trial
    from validator.judge import require_held

    if dims is not None and model is not None:
        raise Failure("--dims and --model both say where to judge; give one of them")
    if dims is not None:
        found = [Trial(dims)]
    elif model is not None:
        found = _of_model(contract, model, buckets)
    else:
        return [Trial()]
    for trial in found:
        try:
            require_held(contract, replace(options, at=trial.at))
        except ValueError as error:
            raise Failure(f"--{'dims' if dims is not None else 'model'}: {error}") from None
    return found


def _of_model(contract: Contract, model: Path, buckets: Sequence[int]) -> list[Trial]:
    from kb.coverage import compile_dims
    from runtime.engine.step_sites import sites_of_buckets
    from runtime.models.spec import ModelError, read_spec
    from validator.extending import Trial

    try:
        spec = read_spec(model)
    except ModelError as error:
        raise Failure(str(error)) from None
    places = sites_of_buckets(spec, sorted(set(buckets)) or [1], spec.dtype)
    found = [
        Trial(compile_dims(contract, dict(place.site.dims)), place.site.storage)
        for place in places
        if place.site.operation == contract.id
    ]
    if not found:
        raise Failure(f"{model}: its decode steps have no site for {contract.id}", 1)
    return [trial for i, trial in enumerate(found) if trial not in found[:i]]
