"""How long the docs site takes to build: the shipped content, and many generated blocks.

    python -m bench.site [--blocks 2000] [--repeats 3]

Each build runs in a process of its own, strictly; wall time, processor time and peak memory are printed as Markdown.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Measured:
    """One build."""

    pages: str
    wall_s: float
    processor_s: float
    peak_mib: float


def generated_library(folder: Path, blocks: int) -> Path:
    """The shipped library with its principles repeated under new ids until there are ``blocks`` of them."""
    for name in ("contracts", "bench/results"):
        shutil.copytree(ROOT / name, folder / name)
    (folder / "kernels").mkdir()
    shipped = sorted((ROOT / "principles").glob("*/*.yaml"))
    for number in range(blocks):
        source = shipped[number % len(shipped)]
        family, slug, copy = source.parent.name, source.stem, number // len(shipped)
        text = source.read_text(encoding="utf-8")
        if copy:
            text = text.replace(f"id: {family}/{slug}\n", f"id: {family}/{slug}-{copy}\n", 1)
            slug = f"{slug}-{copy}"
        target = folder / "principles" / family / f"{slug}.yaml"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    return folder


def measure(library: Path) -> Measured:
    """Build once in a fresh process."""
    with tempfile.TemporaryDirectory() as scratch:
        command = [
            sys.executable,
            "-m",
            "kb",
            "site",
            "build",
            "--library",
            str(library),
            "--output",
            f"{scratch}/site",
        ]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        start = time.perf_counter()
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, env=os.environ)
        wall = time.perf_counter() - start
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Measured(done.stdout.split(": ", 1)[1].split(" (")[0], wall, processor, after.ru_maxrss / 1024)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--blocks", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    print("| content | pages | wall, s | processor, s | peak memory, MiB |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as scratch:
        generated = generated_library(Path(scratch), options.blocks)
        for name, library in (("as shipped", ROOT), (f"{options.blocks:,} blocks", generated)):
            runs = [measure(library) for _ in range(options.repeats)]
            wall, processor = (sorted(getattr(r, field) for r in runs) for field in ("wall_s", "processor_s"))
            peak = max(r.peak_mib for r in runs)
            print(
                f"| {name} | {runs[0].pages} | {wall[0]:.1f}–{wall[-1]:.1f} | {processor[0]:.1f}–{processor[-1]:.1f} "
                f"| {peak:.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
