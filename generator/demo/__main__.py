"""``python -m generator.demo``: recorded rounds judged on this machine, then a model run with what was accepted."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kb.cli.failure import Failure
from kb.library import library_root, load_library
from kb.store import KernelStore, StoreError

if TYPE_CHECKING:
    from generator.demo.decoding import Parting

MOST_CONTRACTS = 2
# No further kernel is begun after this, so that a busy machine is done after the first one.
BEGIN_WITHIN_SECONDS = 90.0
MODEL = Path("models/tiny-qwen3")


def main() -> int:
    """Run the demonstration; its exit code."""
    console = Console(highlight=False, soft_wrap=True)
    try:
        with tempfile.TemporaryDirectory(prefix="agentcompile-demo-") as folder:
            os.environ["XDG_CACHE_HOME"] = folder  # compiled images and choices go when the folder goes
            _demonstrate(console, Path(folder))
    except KeyboardInterrupt:
        print("demo: stopped", file=sys.stderr)
        return 130
    except _expected() as error:
        print(f"demo: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0


def _expected() -> tuple[type[Exception], ...]:
    """What may go wrong on a machine that was not set up, or with an edited library."""
    expected: list[type[Exception]] = [Failure, StoreError, OSError, ValueError]
    try:
        from generator.journal import JournalError
        from generator.providers.protocol import ProviderError
        from generator.render import RenderError
        from runtime.errors import RuntimeFailure
    except ImportError:
        return (*expected, ImportError)
    return (*expected, JournalError, ProviderError, RenderError, RuntimeFailure)


def _demonstrate(console: Console, folder: Path) -> None:
    started = time.monotonic()
    root = library_root()
    if not (root / MODEL).is_dir():
        raise Failure(f"{root / MODEL}: no such folder; run the demonstration in a checkout")
    if busy := _busy():
        console.print(busy + "\n")
    store = KernelStore(folder / "kernels")
    _replay_all(console, root, folder, store)
    _decode(console, root, folder, store)
    console.print(f"\nDone in {time.monotonic() - started:.0f} s; everything it made was temporary.")


def _busy() -> str:
    """A warning where others use the processor: a kernel's threads wait for the last of them, so times suffer most."""
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    if load <= cores / 2:
        return ""
    return (
        f"This machine is busy (load {load:.1f} on {cores} cores): this takes longer, and a kernel may be rejected "
        "as too slow\nthat is fast on an idle one."
    )


def _replay_all(console: Console, root: Path, folder: Path, store: KernelStore) -> None:
    from generator.demo.decoding import open_tiny, shapes_for, sites_of
    from generator.demo.recording import outcome, read_recording
    from generator.demo.replaying import STORAGE, judge_for, replay, shipped, trial_of, whole_shapes

    console.print("[bold]1. Recorded replies, judged on this machine[/]")
    entries, left = shipped(KernelStore(root / "kernels"), MOST_CONTRACTS)
    console.print(
        f"A model wrote these kernels earlier; nothing of their records is believed but the text of the replies.\n"
        f"Each is compiled, checked and timed anew, for {STORAGE.value} only, at the shape it was written for and at "
        f"the tiny model's." + (f" {left} more CPU kernels are left out to save time." if left else "")
    )
    if not entries:
        console.print("The shipped store has no CPU kernel with a transcript.")
    library = load_library(root)
    with open_tiny(root / MODEL) as engine:
        sites = sites_of(engine)
    started = time.monotonic()
    for number, entry in enumerate(entries):
        if time.monotonic() - started > BEGIN_WITHIN_SECONDS:
            console.print(f"{len(entries) - number} more left out: this machine is busy or slow.")
            break
        recording = read_recording(entry.transcript())
        contract = library.contracts[recording.contract]
        shapes = shapes_for(sites, contract.id)
        trial = trial_of(contract, recording, shapes)
        timed = [*recording.request.dims, *whole_shapes(recording, shapes)]
        began = time.monotonic()
        with console.status(contract.id) as status:
            judge = judge_for(trial, timed, lambda text, name=contract.id: status.update(f"{name}: {text}"))  # type: ignore[misc]
            work = folder / entry.digest
            work.mkdir()
            attempts = replay(recording, contract, library.principles, judge, trial=trial, work=work, store=store)
        console.print(f"{contract.id}, by {recording.model} ({time.monotonic() - began:.0f} s)", markup=False)
        for attempt in attempts:
            console.print(f"  round {attempt.round}: {outcome(attempt)}", markup=False)


def _decode(console: Console, root: Path, folder: Path, store: KernelStore) -> None:
    from generator.demo.decoding import OUTPUT_TOKENS, PROMPT, ROUNDS, decode, kernel_rows, speed_rows

    console.print(f"\n[bold]2. {MODEL.name} decodes {OUTPUT_TOKENS} tokens, with and without the kernels[/]")
    with console.status("choosing kernels by measurement inside the step, then decoding"):
        result = decode(root / MODEL, root, store, folder / "selection")
    tried = Table("site", "kernel", "step against the one before", "runs", box=None, pad_edge=False)
    rows = kernel_rows(result.choices)
    for row in rows:
        gain = f"{row['gain']:.3f}x" if row["gain"] else row["why"]
        tried.add_row(row["operation"], row["digest"][:12], gain, "yes" if row["chosen"] else "no")
    console.print(
        tried
        if rows
        else "No accepted kernel fits this model: both paths are the library's, and what differs is noise."
    )
    for name, text in result.texts.items():
        console.print(f"\n[bold]{name}[/]: {escape(PROMPT + text)}")
    console.print(f"\n{_agreement(result.parting)}")
    speeds = Table(box=None, pad_edge=False)
    for name in ("path", "ms a token", "tokens/s", "speed-up"):
        speeds.add_column(name, justify="left" if name == "path" else "right")
    for cells in speed_rows(result.measured):
        speeds.add_row(*cells)
    console.print(speeds)
    console.print(
        f"\nMedians of {ROUNDS} interleaved runs. On a shared machine they vary by several percent from run to run, "
        "and a busy one by\nmuch more. The kernels were written for the larger shapes of part 1; this model is small "
        "enough to stay in the cache."
    )


def _agreement(parting: Parting | None) -> str:
    if parting is None:
        return "Both paths produced the same tokens."
    gap = "further apart than its likeliest eight" if parting.gap is None else f"{parting.gap:.3f} apart"
    return (
        f"The paths' first {parting.position} tokens are the same. At the next, the library path finds their two "
        f"choices {gap} in log-probability.\nThe kernels keep sums in float32 that the library rounds to bfloat16: "
        "where two tokens are nearly as likely, either may win."
    )


if __name__ == "__main__":
    sys.exit(main())
