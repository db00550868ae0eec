"""How long ``agentcompile check`` and ``--help`` take, and how much memory a check needs.

    python bench/kb.py --sizes 1000,10000 --repeats 5 --out bench/results/kb-2026-11-30.md

Libraries of generated blocks are written to a temporary folder: sound entries of the length of the shipped ones, in
ten families, each block linked to the one before it, with the shipped contracts beside them. Every number is the wall
time of a whole process, start of the interpreter included, as a person at a shell waits for it:

- cold: no cache, every file is read, parsed, validated and checked;
- one changed: a file got another sentence, the rest comes from the cache;
- unchanged: nothing was touched since the last run.
"""

from __future__ import annotations

import argparse
import itertools
import os
import platform
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FAMILIES = 10
TARGETS_S = {"cold": 5.0, "one changed": 0.5, "--help": 0.3}
_SYLLABLES = (
    "ba",
    "cor",
    "del",
    "fin",
    "gra",
    "hos",
    "lim",
    "mor",
    "nat",
    "pel",
    "qua",
    "ris",
    "sol",
    "tan",
    "ver",
    "zon",
)
_ACTIONS = (
    "load",
    "stage",
    "reduce",
    "split",
    "pack",
    "round",
    "reorder",
    "prefetch",
    "merge",
    "store",
    "convert",
    "pad",
)
_REASONS = (
    "Each byte is used once, so what is in flight decides how fast the row is read.",
    "The port saturates while device memory idles, and registers do not sit behind it.",
    "The order in which partial sums land depends on scheduling, so low bits differ from run to run.",
    "A separate launch costs about a microsecond at each boundary, which a graph does not hide.",
    "Padding wastes most of the instruction, and wide tiles leave half of the device idle.",
)


@dataclass(frozen=True, slots=True)
class Sample:
    """Wall and processor times in seconds of repeated runs, and the largest peak memory of any of them in MiB."""

    name: str
    seconds: tuple[float, ...]
    processor: tuple[float, ...]
    peak_mib: float

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


def vocabulary(size: int) -> list[str]:
    """Made-up nouns, so that blocks are about as different from each other as real ones are."""
    return ["".join(parts) for parts in itertools.islice(itertools.product(_SYLLABLES, repeat=3), size)]


_NOUNS = vocabulary(2000)


def block(index: int, words: random.Random) -> tuple[str, str]:
    """Path and text of one generated block."""
    family = f"family-{index % FAMILIES}"
    action = words.choice(_ACTIONS)
    subject = " ".join(words.sample(_NOUNS, 2))
    place = " ".join(words.sample(_NOUNS, 2))
    claim = " ".join(
        f"In case n{index}, {words.choice(_ACTIONS)} the {' '.join(words.sample(_NOUNS, 3))} in "
        f"{words.choice(_NOUNS)} and {words.choice(_ACTIONS)} the {words.choice(_NOUNS)} before {words.choice(_NOUNS)}."
        for _ in range(3)
    )
    why = " ".join(words.sample(_REASONS, 3))
    before = f"family-{(index - 1) % FAMILIES}/block-{index - 1}"
    related = f"related:\n  - {{id: {before}, relation: alternative, note: The other way}}\n" if index else ""
    dead_end = index % 3 == 2
    retry = "retry_when: The port no longer limits, or rows become much shorter.\n" if dead_end else ""
    text = f"""# yaml-language-server: $schema=../../site/schema/principle.json
id: {family}/block-{index}
title: {"Do not " + action if dead_end else action.capitalize()} the {subject} in {place}, variation n{index}
kind: {"dead_end" if dead_end else "decision"}
status: accepted
version: 1
patterns: [gated_mlp_up, gated_mlp_down]
when: {{target: [cuda], batch: {{max: {words.choice([1, 2, 4, 8])}}}, bound: memory}}
claim: >-
{_folded(claim)}
why: >-
{_folded(why)}
effect: {{low: {0.5 if dead_end else 1.05}, high: {0.95 if dead_end else 1.4}, of: time of one projection}}
evidence:
  - kind: published
    what: Both ways on one long weight, variation n{index}.
    hardware: NVIDIA H200
    baseline: the other way
    value: {{number: {words.randint(10, 99) / 10}, unit: TB/s}}
    baseline_value: {{number: {words.randint(10, 99) / 10}, unit: TB/s}}
    reference: someone/kernels#{index}
  - kind: published
    what: The same in a whole step.
    hardware: NVIDIA H100
    baseline: the other way
    value: {{number: {words.randint(10, 99)}, unit: ms/step}}
    reference: someone/kernels#{index + 1}
{related}{retry}authors: [Generated]
created: "2026-11-30"
modified: "2026-11-30"
"""
    return f"principles/{family}/block-{index}.yaml", text


def _folded(prose: str) -> str:
    return textwrap.fill(prose, 118, initial_indent="  ", subsequent_indent="  ")


def make_library(folder: Path, size: int) -> None:
    """``size`` generated blocks and the shipped contracts."""
    shutil.copytree(ROOT / "contracts", folder / "contracts")
    words = random.Random(size)
    for index in range(size):
        path, text = block(index, words)
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")


def run(arguments: list[str], environment: dict[str, str]) -> tuple[float, float, float, str]:
    """Wall seconds, processor seconds, peak memory in MiB and the last line of one process."""
    with tempfile.TemporaryFile() as output:
        start = time.perf_counter()
        process = subprocess.Popen([sys.executable, "-m", "kb", *arguments], stdout=output, cwd=ROOT, env=environment)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        last = output.read().decode().rstrip().rsplit("\n", 1)[-1]
    if process.returncode != 0:
        raise SystemExit(f"{' '.join(arguments)} ended with {process.returncode}: {last}")
    return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, last


Run = Callable[[], tuple[float, float, float, str]]


def repeat(name: str, times: int, once: Run, before: Callable[[], None]) -> Sample:
    """``times`` runs, each after ``before``."""
    taken = []
    for _ in range(times):
        before()
        taken.append(once())
    return Sample(name, tuple(t[0] for t in taken), tuple(t[1] for t in taken), max(t[2] for t in taken))


def measure(size: int, repeats: int) -> tuple[list[Sample], str]:
    """Cold, one changed and unchanged checks of ``size`` blocks, and what the check said."""
    with tempfile.TemporaryDirectory(prefix="agentcompile-bench-") as name:
        folder = Path(name)
        make_library(folder / "library", size)
        environment = {**os.environ, "AGENTCOMPILE_CACHE": str(folder / "cache")}
        arguments = ["check", "--library", str(folder / "library")]

        def once() -> tuple[float, float, float, str]:
            return run(arguments, environment)

        changes = iter(range(10_000))

        def change_one() -> None:
            path = folder / "library" / block(size // 2, random.Random(0))[0]
            text = path.read_text(encoding="utf-8")
            path.write_text(text.replace("why: >-\n", f"why: >-\n  Change {next(changes)}.\n"), encoding="utf-8")

        def forget() -> None:
            shutil.rmtree(folder / "cache", ignore_errors=True)

        said = once()[3]
        samples = [
            repeat("cold", repeats, once, forget),
            repeat("one changed", repeats, once, change_one),
            repeat("unchanged", repeats, once, lambda: None),
        ]
    return samples, said


@dataclass(frozen=True, slots=True)
class Setting:
    """Under what circumstances it was measured."""

    day: date
    hardware: str
    note: str
    load: float
    repeats: int

    def __str__(self) -> str:
        text = (
            f"{self.hardware}; Python {platform.python_version()}, {platform.system()}. Wall time of whole processes, "
            f"median (fastest to slowest) of {self.repeats}, of --help {2 * self.repeats}. "
            f"Load average at the start {self.load:.1f}. {self.note}"
        )
        return text.rstrip()


def report(setting: Setting, results: list[tuple[int, list[Sample], str]], help_: Sample) -> str:
    """The record as Markdown."""
    lines = [
        f"# Checking the knowledge base, {setting.day}",
        "",
        str(setting),
        "",
        "| blocks | run | wall seconds | target | processor seconds | peak memory |",
        "|---:|---|---|---|---:|---:|",
    ]
    for size, samples, _ in results:
        for sample in samples:
            target = TARGETS_S.get(sample.name) if size == 1000 else None
            lines.append(_row(f"{size:,}", sample, target))
    lines.append(_row("", help_, TARGETS_S["--help"]))
    lines += ["", *(f"{size:,} blocks: {said}." for size, _, said in results)]
    lines += [
        "",
        f"Made by `python bench/kb.py --sizes {','.join(str(s) for s, _, _ in results)} --repeats {setting.repeats}`.",
    ]
    return "\n".join(lines) + "\n"


def _row(size: str, sample: Sample, target: float | None) -> str:
    span = f"{sample.median:.2f} ({min(sample.seconds):.2f} to {max(sample.seconds):.2f})"
    aim = "" if target is None else f"under {target}: {'met' if sample.median < target else 'missed'}"
    processor = statistics.median(sample.processor)
    return f"| {size} | {sample.name} | {span} | {aim} | {processor:.2f} | {sample.peak_mib:.0f} MiB |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="1000,10000", help="numbers of blocks, comma-separated")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--hardware", default=f"{os.cpu_count()} cores", help="how to describe this machine")
    parser.add_argument("--note", default="", help="what else to know about this run")
    parser.add_argument("--date", type=date.fromisoformat, default=datetime.now(UTC).date())
    parser.add_argument("--out", type=Path, help="write the record there, too")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    run(["--help"], dict(os.environ))  # compiled files and disk caches are warm for everybody
    help_ = repeat("--help", 2 * options.repeats, lambda: run(["--help"], dict(os.environ)), lambda: None)
    sizes = [int(size) for size in options.sizes.split(",")]
    results = [(size, *measure(size, options.repeats)) for size in sizes]
    setting = Setting(options.date, options.hardware, options.note, load, options.repeats)
    text = report(setting, results, help_)
    print(text, end="")
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
