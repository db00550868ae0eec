"""Selection from the outside: who the candidates are, and remembering what was measured.

A record is kept under the digest of everything that decides it: the sites, every candidate's identity, the device, its
driver and the libraries' versions. When any of them changes the record is not found, and the choice is measured again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from kb.contract import Contract
from kb.coverage import standing
from kb.dtype import Target
from kb.library import load_library
from kb.manifest import Manifest
from kb.store import KernelStore
from kb.store.durable import replace_file
from runtime.baselines import available_baselines
from runtime.compile_cache import default_root
from runtime.device import device_for
from runtime.engine.choosing import MU, BucketChoice, SiteChoice, Trial, choose_bucket
from runtime.engine.executor import Executor
from runtime.engine.implementations import BaselineImplementation, KernelImplementation
from runtime.engine.prompt_ops import fused_candidates
from runtime.engine.splitting import SPLITTINGS
from runtime.sites import CONTRACT_OPERATIONS, Implementation, Selection, Site
from runtime.timing import Stopwatch

FORMAT = 3
DEFAULT_CONTEXT = 1024

# The engine's own library path is torch; a baseline that only wraps it again is no rival.
_SAME_AS_LIBRARY = frozenset({"torch_eager", "torch_sdpa", "torch_compiled"})


class CandidateList:
    """Implementations for a site besides the library: the contract's other baselines, admitted kernels, and the site
    taken apart, so that kernels of the smaller contracts compete as well.

    ``unjudged``: offer kernels at dims no verdict covers too, for finding out whether they would be worth judging.
    """

    def __init__(
        self, contracts: Mapping[str, Contract], store: KernelStore | None, target: Target, *, unjudged: bool = False
    ) -> None:
        self._contracts = contracts
        self._target = target
        self._unjudged = unjudged
        self._kernels: dict[str, list[tuple[Manifest, Implementation]]] = {}
        for operation in sorted(CONTRACT_OPERATIONS & set(contracts)):
            entries = store.admitted(operation, target) if store is not None else []
            contract = contracts[operation]
            self._kernels[operation] = [(e.manifest, KernelImplementation(e.candidate, contract)) for e in entries]

    def kernels(self, operation: str) -> Sequence[Implementation]:
        """Admitted kernels of a contract, the fastest first, whatever dims they were judged at."""
        return [kernel for _, kernel in self._kernels.get(operation, ())]

    def __call__(self, site: Site) -> Sequence[Implementation]:
        contract = self._contracts.get(site.operation)
        if contract is None:
            return []
        baselines: list[Implementation] = [
            BaselineImplementation(b, contract)
            for b in available_baselines(contract, self._target)
            if b.name not in _SAME_AS_LIBRARY
        ]
        splitting: list[Implementation] = [SPLITTINGS[site.operation]()] if site.operation in SPLITTINGS else []
        kernels = [k for m, k in self._kernels[site.operation] if self._unjudged or judged_at(m, contract, site)]
        fused = fused_candidates(site) if self._target is Target.CUDA else []
        return [*baselines, *fused, *kernels, *splitting]


def judged_at(manifest: Manifest, contract: Contract, site: Site) -> bool:
    """Whether an accepting verdict covers the site's compile-time dims and storage type, and no later one denies it.

    A candidate is compiled anew for every shape, and what was shown at one shape says little about another, while one
    read outside the memory ends the device context and every request with it. So only what was judged is offered, and
    a model of other dims first has the kernel validated at them.
    """
    return standing(manifest, contract, dict(site.dims), site.storage).accepted


_PARTS = {"attention_prelude": ("rope", "kv_append"), "o_proj_residual_rmsnorm": ("residual_rmsnorm",)}


def target_of(executor: Executor) -> Target:
    """Where the executor runs."""
    return Target.CUDA if executor.buffers.out_ids.is_cuda else Target.CPU


def select(
    executor: Executor,
    library: Path,
    *,
    store: KernelStore | None,
    buckets: Sequence[int] | None = None,
    context: int = DEFAULT_CONTEXT,
    cache: Path | None = None,
    stopwatch: Stopwatch | None = None,
    candidates: CandidateList | None = None,
    on_bucket: Callable[[BucketChoice, bool], None] = lambda _choice, _known: None,
) -> list[BucketChoice]:
    """Choose for every bucket, from the record where there is one; ``on_bucket`` is told the choice and whether it was
    known. ``library``: root of contracts. ``cache``: folder of records; default: the user's cache folder.
    ``stopwatch``: default: that of the executor's device. ``candidates``: default: what library and store offer.
    Buckets of more sequences than the cache has blocks cannot be filled and stay with the library. Cached prefixes in
    the blocks it needs are forgotten. Raises RuntimeFailure when the device cannot be used, and BlocksHeldError while
    requests run.
    """
    candidates = candidates or CandidateList(load_library(library).contracts, store, target_of(executor))
    folder = cache or default_root() / "selection"
    choices = []
    for bucket in (b for b in buckets or executor.buckets if b < executor.decoder.pool.num_blocks):
        path = folder / f"{_key(executor, candidates, bucket, context)}.json"
        known = _read(path, executor, candidates, bucket)
        choice = known or choose_bucket(executor, candidates, bucket, context=context, stopwatch=stopwatch)
        if known is None:
            folder.mkdir(parents=True, exist_ok=True)
            replace_file(path, json.dumps(_plain(choice), indent=1).encode())
        choices.append(choice)
        on_bucket(choice, known is not None)
    executor.forget_programs()
    return choices


def _sites(executor: Executor, bucket: int, selection: Selection | None = None) -> list[Site]:
    program = executor.build(bucket, greedy=True, selection=selection or Selection(executor.selection.library))
    return list(dict.fromkeys(c.site for c in program.calls if c.site.operation in CONTRACT_OPERATIONS))


def _key(executor: Executor, candidates: CandidateList, bucket: int, context: int) -> str:
    device = device_for(target_of(executor))
    parts: list[Any] = [FORMAT, bucket, context, device.name, device.arch, device.driver, dict(device.versions)]
    parts += [torch.__version__, executor.decoder.spec.num_layers]
    for site in _sites(executor, bucket):
        names = [(c.name, c.digest) for c in candidates(site)]
        names += [(o, k.digest) for o in _PARTS.get(site.operation, ()) for k in candidates.kernels(o)]
        parts.append([str(site), site.storage.value, names])
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def _read(path: Path, executor: Executor, candidates: CandidateList, bucket: int) -> BucketChoice | None:
    """A kept choice, put into the selection; None, and the selection as it was, when there is none that can be read."""
    selection = Selection(executor.selection.library)
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        sites = {str(site): site for site in _sites(executor, bucket)}
        found = []
        for entry in data["sites"]:
            if entry["site"] not in sites:  # a part of a splitting that was chosen just before
                sites |= {str(site): site for site in _sites(executor, bucket, selection)}
            site = sites[entry["site"]]
            found.append(SiteChoice(site, entry["chosen"], entry["digest"], tuple(Trial(**t) for t in entry["trials"])))
            by_name = {c.name: c for c in candidates(site)}
            if entry["chosen"] in by_name:
                selection.choose(site, by_name[entry["chosen"]])
        choice = BucketChoice(
            bucket, data["context"], data["library_us"], data["step_us"], tuple(found), data["longer"]
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
    for site, implementation in selection.chosen.items():
        executor.selection.choose(site, implementation)
    return choice


def _plain(choice: BucketChoice) -> dict[str, Any]:
    sites = [
        {"site": str(s.site), "chosen": s.chosen, "digest": s.digest, "trials": [asdict(t) for t in s.trials]}
        for s in choice.sites
    ]
    return {
        "bucket": choice.bucket,
        "context": choice.context,
        "longer": choice.longer,
        "library_us": choice.library_us,
        "step_us": choice.step_us,
        "sites": sites,
    }


def as_table(choices: Sequence[BucketChoice]) -> list[dict[str, Any]]:
    """One row a trial, for printing: what runs at each site, what it was tried against, and why the rest lost."""
    rows = []
    for choice in choices:
        for site in choice.sites:
            for trial in site.trials or (Trial(site.chosen, site.digest),):
                rows.append(
                    {
                        "bucket": choice.bucket,
                        "operation": site.site.operation,
                        "candidate": trial.name,
                        "step_us": trial.step_us,
                        "longer_us": trial.longer_us,
                        "gain": trial.gain,
                        "chosen": trial.name == site.chosen,
                        "why": _why(trial, site, choice),
                        "digest": trial.digest,
                        "dims": dict(site.site.dims),
                    }
                )
    return rows


def _why(trial: Trial, site: SiteChoice, choice: BucketChoice) -> str:
    if trial.failure:
        return trial.failure
    chosen = trial.name == site.chosen
    if trial.longer_us is not None:
        at = f"{trial.longer_us:.1f} µs at {choice.longer:,} tokens"
        return f"fastest step, both contexts together; {at}" if chosen else f"slower step, both contexts together; {at}"
    if chosen:
        return "fastest step" if len(site.trials) > 1 else "nothing else was tried"
    gain = trial.gain
    return "slower step" if gain is None or gain * MU >= 1 else f"step more than {MU} times as long"
