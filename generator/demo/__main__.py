"""``python -m generator.demo``: recorded rounds judged on this machine, then a model run with what was accepted."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kb.cli.failure import Failure
from kb.library import library_root
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
    store = _replay_all(console, root, folder)
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


def _replay_all(console: Console, root: Path, folder: Path) -> KernelStore:
    from generator.demo.recording import outcome
    from generator.demo.replaying import STORAGE, demonstration

    made = demonstration(root, root / MODEL, folder, MOST_CONTRACTS)
    found = [p.contract.id for p in made.patterns if p.wanted]
    console.print(f"[bold]1. Kernels for {MODEL.name}, from recorded replies, judged on this machine[/]")
    console.print(
        f"Its decode step has {len(found)} patterns: {', '.join(found)}.\n"
        f"A model wrote kernels for them earlier; nothing of their records is believed but the text of the replies. "
        f"The {len(made.tasks)}\npatterns with most weights are played: compiled, checked and timed anew, for "
        f"{STORAGE.value} only, at the shape they\nwere written for and at this model's. The others stay with the "
        "library, to save time.",
        markup=False,
    )
    started = time.monotonic()
    for number, task in enumerate(made.tasks):
        if time.monotonic() - started > BEGIN_WITHIN_SECONDS:
            console.print(f"{len(made.tasks) - number} more left out: this machine is busy or slow.")
            break
        name = task.pattern.contract.id
        began = time.monotonic()
        with console.status(name) as status:
            played = made.play(task, lambda event, place: status.update(f"{place}: {told(event)}"))
        if played.failed is not None:
            raise Failure(f"{name}: {played.failed}")
        console.print(f"{name}, by {made.recordings[name].model} ({time.monotonic() - began:.0f} s)", markup=False)
        for attempt in played.attempts:
            console.print(f"  round {attempt.round}: {outcome(attempt)}", markup=False)
    return made.setup.store


def told(event: Mapping[str, Any]) -> str:
    """What a search's event says of its progress."""
    return f"gate {event['gate']} {event['outcome']}" if event["event"] == "gate" else str(event["event"])


def _decode(console: Console, root: Path, folder: Path, store: KernelStore) -> None:
    from generator.demo.decoding import OUTPUT_TOKENS, PROMPT, ROUNDS, decode, kernel_rows, speed_rows

    console.print(f"\n[bold]2. {MODEL.name} decodes {OUTPUT_TOKENS} tokens, with and without the kernels[/]")
    with console.status("choosing kernels by measurement inside the step, then decoding"):
        result = decode(root / MODEL, root, store, folder / "selection")
    tried = Table("site", "kernel", "step against the library's", "runs", box=None, pad_edge=False)
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
