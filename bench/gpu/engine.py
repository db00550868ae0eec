"""The decode engine on one GPU, random weights at real sizes: speed, graphs against eager, selection, all families.

    python bench/gpu/engine.py --out DIR [--models qwen3-4b,…|all] [--quick] [--peers] [--no-select] [--all-kernels]

Every model runs in a process of its own with a time limit, and its rows are printed as they come; a model that loses
the device costs the others nothing. Such a model is run once more, call by call, to name the site, implementation,
digest and dims of the call that faulted. ``engine.json`` and ``engine.log`` are written into DIR after every model.
``--all-kernels`` also offers kernels at dims they were not judged at, for finding out what they do there. ``--peers``
also times Hugging Face eager and its static cache under ``torch.compile``, in the same run.
"""

from __future__ import annotations

import argparse
import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.gpu.model_configs import CONFIGS, DRY_RUN
from bench.gpu.report import Report

ROOT = Path(__file__).resolve().parents[2]
LOST, TIMED_OUT = 3, 124
_LEAST_S = 20  # below this a model does not even get its weights drawn


def main() -> int:
    arguments = parsed(sys.argv[1:])
    return run_one(arguments) if arguments.one else run_all(arguments)


def parsed(words: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True)
    parser.add_argument("--models", default="qwen3-4b", help=f"comma-separated, of {', '.join(CONFIGS)}; or all")
    parser.add_argument("--store", default=str(ROOT / "kernels"))
    parser.add_argument("--quick", action="store_true", help="batch 1 and graphs against eager only")
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--no-select", action="store_true", help="the library path everywhere")
    parser.add_argument("--no-library", action="store_true", help="do not time the library path")
    parser.add_argument("--all-kernels", action="store_true", help="offer kernels at dims no verdict covers too")
    parser.add_argument("--batches", default="1,8,64", help="batch sizes at which graphs are compared with eager")
    parser.add_argument("--step-tokens", type=int, default=8192, help="rows of a step where requests arrive together")
    parser.add_argument("--limit", type=int, default=240, help="seconds a model may take")
    parser.add_argument("--total", type=int, default=0, help="seconds for all models; those left over are named")
    parser.add_argument("--no-diagnosis", action="store_true", help="do not run a model that lost the device again")
    parser.add_argument("--selections", default=str(Path(tempfile.gettempdir()) / "agentcompile-selections"))
    parser.add_argument("--device", default="cuda", help="cpu, with --models tiny, for trying this script out")
    for hidden in ("--one", "--result"):  # how a model's own process is started
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    parser.add_argument("--gbps", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--diagnose", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args(words)
    arguments.models = list(CONFIGS) if arguments.models == "all" else arguments.models.split(",")
    arguments.batches = [int(b) for b in arguments.batches.split(",")]
    unknown = [m for m in arguments.models if m not in CONFIGS | DRY_RUN]
    if unknown:
        parser.error(f"unknown model {unknown[0]}; known are {', '.join(CONFIGS)}")
    return arguments


def run_all(arguments: argparse.Namespace) -> int:
    """Every model in its own process; what they said is collected."""
    out = Path(arguments.out)
    out.mkdir(parents=True, exist_ok=True)
    report, start = Report(), time.perf_counter()
    each = arguments.limit
    for name in arguments.models:
        if arguments.total:
            arguments.limit = min(each, arguments.total - (time.perf_counter() - start))
        if arguments.limit < _LEAST_S:
            report.add(name, "process", "not started: the time for all models is used up", ok=False)
            continue
        code = start_model(name, report, arguments)
        if (code == LOST or code < 0) and not arguments.no_diagnosis:
            report.say(f"-- {name} lost the device; once more, call by call")
            if start_model(name, report, arguments, diagnose=True) != LOST:
                report.add(name, "call by call", "nothing faults: it needs graphs, or launches that overlap", ok=False)
        report.record["seconds"] = time.perf_counter() - start
        report.write(out, "engine")
    report.print_table()
    return 1 if report.failures else 0


def start_model(name: str, report: Report, arguments: argparse.Namespace, *, diagnose: bool = False) -> int:
    """Run ``name`` in a process of its own and take over its rows; its exit code."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "model.json"
        command = [sys.executable, __file__, *sys.argv[1:], "--one", name, "--result", str(result)]
        if "read_gbps" in report.record:
            command += ["--gbps", str(report.record["read_gbps"])]
        if diagnose:
            command += ["--diagnose", "--no-library", "--quick"]
        extra = {"PYTHONUNBUFFERED": "1"} | ({"CUDA_LAUNCH_BLOCKING": "1"} if diagnose else {})
        code = say_as_it_comes(command, {**os.environ, **extra}, arguments.limit, report)
        found = json.loads(result.read_text(encoding="utf-8")) if result.exists() else {"rows": []}
    report.rows += [(section, what, text) for section, what, text in found.pop("rows")]
    for key, value in found.items():
        report.record[f"{key}, call by call" if diagnose and key == name else key] = value
    if code not in (0, 1):
        why = f"no end after {arguments.limit:.0f} s" if code == TIMED_OUT else f"exit code {code}"
        report.add(name, "process", "lost the device" if code == LOST else why, ok=False)
    return code


def say_as_it_comes(command: list[str], environment: dict[str, str], limit: float, report: Report) -> int:
    """Run ``command`` and repeat its lines; its exit code, TIMED_OUT when it was ended at ``limit`` seconds."""
    ends = time.monotonic() + limit
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert process.stdout is not None
    pending = b""
    with selectors.DefaultSelector() as ready:
        ready.register(process.stdout, selectors.EVENT_READ)
        while time.monotonic() < ends:
            if not ready.select(timeout=1.0):
                continue
            read = os.read(process.stdout.fileno(), 65536)
            *lines, pending = (pending + read).split(b"\n")
            for line in lines:
                report.say(line.decode(errors="replace"))
            if not read:
                return process.wait()
    process.kill()
    process.wait()
    return TIMED_OUT


def run_one(arguments: argparse.Namespace) -> int:
    """One model, in this process."""
    from bench.gpu.engine_model import run_model
    from kb.dtype import Target
    from runtime.bandwidth import measure_bandwidth
    from runtime.device import device_for

    result = Path(arguments.result)
    report = Report()
    if arguments.gbps is None:
        device = device_for(Target.CUDA if arguments.device == "cuda" else Target.CPU)
        report.record |= {"device": device.name, "driver": device.driver, "versions": dict(device.versions)}
        report.record["read_gbps"] = measure_bandwidth(device).best_gbps
        report.add("device", device.name, f"reads {report.record['read_gbps']:.0f} GB/s")
    else:
        report.record["read_gbps"] = arguments.gbps
    code = run_model(arguments.one, report, arguments, lambda: report.write(result.parent, result.stem))
    if code == LOST:  # tearing a lost device down may abort, or never end
        sys.stdout.flush()
        os._exit(code)
    return code


if __name__ == "__main__":
    sys.exit(main())
