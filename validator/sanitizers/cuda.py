"""compute-sanitizer: memcheck, racecheck, initcheck and synccheck, each in a process of its own, side by side."""

from __future__ import annotations

import os
import pickle
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

from kb.dtype import DType
from kb.manifest import Finding
from runtime.kernel import Compiled
from validator.gates.context import Context
from validator.inputs import make_inputs
from validator.sanitizers.report import Progress, Report
from validator.shapes import Shape

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
INSTALL = "pip install nvidia-cuda-sanitizer-api, or install the CUDA toolkit"
_FOUND = 86
_SECONDS = 120.0
_TITLE = re.compile(
    r"^=========\s+(?!COMPUTE-SANITIZER|ERROR SUMMARY|RACECHECK SUMMARY|Host Frame|Saved host)(\S.*)$", re.M
)
_PLACE = re.compile(r"kernel\.cu:(\d+)")


@lru_cache(maxsize=1)
def find_tool() -> Path | None:
    """compute-sanitizer: COMPUTE_SANITIZER, the PATH, NVIDIA's wheel, CUDA_HOME, the system's toolkit."""
    if named := os.environ.get("COMPUTE_SANITIZER"):
        return Path(named)
    if found := shutil.which("compute-sanitizer"):
        return Path(found)
    site = Path(sysconfig.get_paths()["purelib"])
    roots = [site / "nvidia" / "cu13", site / "nvidia" / "cuda_sanitizer_api"]
    roots += [Path(home) for home in (os.environ.get("CUDA_HOME"), "/usr/local/cuda") if home]
    for root in roots:
        for path in (root / "compute-sanitizer" / "compute-sanitizer", root / "bin" / "compute-sanitizer"):
            if path.is_file() and os.access(path, os.X_OK):
                return path
    return None


def missing() -> str | None:
    """Why compute-sanitizer cannot run; None when it is there."""
    return None if find_tool() else f"compute-sanitizer is not installed: {INSTALL}"


def sanitize(context: Context, progress: Progress) -> Report:
    """Run the smallest shape under all tools at once."""
    shapes = sorted(context.shapes(), key=lambda s: context.contract.bytes_moved(s.dims, DType.FLOAT32))
    shape, storage = shapes[0], context.storages[0]
    progress(", ".join(TOOLS), 0.0)
    context.close_resident()
    compiled = context.compiled(shape, storage)
    with tempfile.TemporaryDirectory(prefix="agentcompile-sanitize-") as folder, ThreadPoolExecutor(len(TOOLS)) as pool:
        job = Path(folder) / "job.pickle"
        job.write_bytes(_job(context, shape, storage, compiled))
        results = list(pool.map(lambda tool: _run(tool, job), TOOLS))
    findings = [f for _, found in results for f in found]
    ran = tuple(tool for tool, (finished, _) in zip(TOOLS, results, strict=True) if finished)
    return Report(
        ran, tuple(f.model_copy(update={"shape": dict(shape.dims)}) for f in findings), {"shape": dict(shape.dims)}
    )


def _job(context: Context, shape: Shape, storage: DType, compiled: Compiled) -> bytes:
    inputs = make_inputs(
        context.contract, shape.dims, storage, "normal", context.seed_for("sanitize", shape.dims, storage)
    )
    return pickle.dumps({"compiled": compiled, "tensors": dict(inputs.tensors), "scalars": dict(inputs.scalars)})


def _run(tool: str, job: Path) -> tuple[bool, list[Finding]]:
    """Whether the tool ran to the end, and what it found."""
    program = find_tool()
    assert program is not None
    command = [
        str(program),
        "--tool",
        tool,
        "--error-exitcode",
        str(_FOUND),
        "--print-limit",
        "5",
        "--launch-timeout",
        "90",
        # Libraries probe the driver for entry points it may not have; only the kernel is on trial.
        "--report-api-errors",
        "no",
    ]
    command += [sys.executable, "-m", "validator.sanitizers.device_run", str(job)]
    root = str(Path(__file__).resolve().parents[2])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_SECONDS, env=environment, check=False
        )
    except subprocess.TimeoutExpired:
        return False, [Finding(code=f"{tool}-timed-out", message=f"{tool} did not finish within {_SECONDS:g} s")]
    return read_report(tool, done.returncode, done.stdout + done.stderr)


def read_report(tool: str, code: int, output: str) -> tuple[bool, list[Finding]]:
    """Whether the tool ran to the end, and its findings."""
    if code == 0:
        return True, []
    title = _TITLE.search(output)
    place = _PLACE.search(output)
    line = int(place[1]) if place else None
    if code == _FOUND and title:
        return True, [Finding(code=tool, message=title[1].strip()[:300], line=line, details={"output": output[:4000]})]
    message = (
        f"{tool} ended with status {code}: {output.strip().splitlines()[-1][:200] if output.strip() else 'no output'}"
    )
    return False, [Finding(code=f"{tool}-failed", message=message, line=line, details={"output": output[-4000:]})]
