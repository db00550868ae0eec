"""A stored kernel judged once more: as a whole, or at the compile-time dims of a model it was not judged at yet.

The trial at held dims leaves nothing out but other dims: every gate, every storage type, every input distribution and
edge case, the run-time dims of the whole sweep and hidden ones, and the clock at the performance shapes' run-time dims.
What it says is recorded, whatever it says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from kb.contract import Contract
from kb.digest import meanings
from kb.dtype import DType
from kb.manifest import Verdict
from kb.store import Entry, KernelStore
from validator.gates import Event, Options
from validator.judge import judge


class ExtensionError(ValueError):
    """A kernel that cannot be extended; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What to judge at. ``at``: the compile-time dims to hold, None for a whole judgement. ``storage``: the type that
    is timed; the contract's others are tried as well, as always."""

    at: Mapping[str, int] | None = None
    storage: DType | None = None

    def options(self, contract: Contract, base: Options) -> Options:
        """``base`` for this trial."""
        from dataclasses import replace

        storages = base.storages
        if storages is None and self.storage is not None:
            storages = (self.storage, *(d for d in contract.dtypes.storage if d is not self.storage))
        return replace(base, at=self.at, storages=storages)


def require_current(entry: Entry, contract: Contract) -> None:
    """Raises ExtensionError when the kernel is revoked or was accepted by another version of the contract."""
    m = entry.manifest
    if m.status != "admitted":
        raise ExtensionError(f"kernel {entry.digest[:12]} is revoked: {m.reason}")
    if m.contract_digest not in meanings(contract):
        raise ExtensionError(
            f"kernel {entry.digest[:12]} was accepted by version {m.contract_version} of {contract.id}, which has "
            "changed since; what it asks for now, only a whole judgement can say (validate its folder)"
        )


def extend(
    entry: Entry,
    contract: Contract,
    trial: Trial,
    *,
    store: KernelStore | None,
    options: Options | None = None,
    seed: int | None = None,
    on_event: Callable[[Event], None] | None = None,
) -> Verdict:
    """Judge ``entry`` at ``trial`` and add the verdict to it in ``store`` (None: do not record).

    A verdict that is not whole (quick, some types, some gates, no device here) says too little to be recorded. Raises
    ExtensionError, ValueError for dims the contract does not allow, kb.store.StoreError and OSError.
    """
    require_current(entry, contract)
    chosen = trial.options(contract, options or Options())
    verdict = judge(entry.candidate, contract, options=chosen, seed=seed, on_event=on_event)
    if store is not None and worth_recording(verdict):
        store.record(entry.digest, verdict)
    return verdict


def worth_recording(verdict: Verdict) -> bool:
    """Whether it decides anything: it accepts, or a gate failed."""
    return verdict.accepted or verdict.failed_gate is not None


def place_of(folder: Path) -> KernelStore:
    """The store at ``folder``. Raises ExtensionError when there is none."""
    if not folder.is_dir():
        raise ExtensionError(f"{folder}: no such folder; name the store's folder with --store")
    return KernelStore(folder)
