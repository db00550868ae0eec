"""AddressSanitizer and UndefinedBehaviorSanitizer: a program around the candidate, every buffer a block of its own.

The worker's arena has guard bands that catch writes; here a read one byte beyond a buffer is caught too, and so are
overflows of local arrays, shifts too far, and conversions that mean nothing. The program is compiled from the very
source and prelude the gates compile, and runs confined like a kernel.
"""

from __future__ import annotations

import math
import os
import re
import signal
import subprocess
import sys
import tempfile
from functools import lru_cache
from pathlib import Path

import torch

from kb.contract import Contract, Role
from kb.dtype import DType, Target
from kb.manifest import Finding
from kb.signature import parameters
from runtime.compile_cpu import find_compiler
from runtime.errors import MissingToolError
from runtime.kernel import Compiled, full_source
from validator.gates.context import Context
from validator.inputs import CallInputs, make_inputs
from validator.sanitizers.report import Progress, Report
from validator.shapes import Shape

_FLAGS = ("-std=c++17", "-O1", "-g", "-fopenmp", "-fno-omit-frame-pointer", "-ffp-contract=fast")
_SANITIZE = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-sanitize=alignment")
_OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=0:exitcode=99:hard_rss_limit_mb=8192:detect_stack_use_after_return=1",
    "UBSAN_OPTIONS": "print_stacktrace=0",
    "OMP_WAIT_POLICY": "passive",
}
_COMPILE_SECONDS = 120
_UNDEFINED = re.compile(r"kernel\.cpp:(\d+):\d+: runtime error: (.*)")
_ADDRESS = re.compile(r"ERROR: AddressSanitizer:? ([\w-]+)(.*)")
_FRAME = re.compile(r"kernel\.cpp:(\d+)")


def missing() -> str | None:
    """Why there is no sanitizer here; None when a trivial program runs under it."""
    try:
        compiler = find_compiler()
    except MissingToolError as error:
        return str(error)
    return _probe(compiler.command)


def sanitize(context: Context, progress: Progress) -> Report:
    """Run the smallest shape, and a ragged one, under both sanitizers."""
    findings: list[Finding] = []
    shapes = sorted(context.shapes(), key=lambda s: context.contract.bytes_moved(s.dims, DType.FLOAT32))
    chosen = shapes[:1] if context.options.quick else [shapes[0], shapes[len(shapes) // 2]]
    for i, shape in enumerate(chosen):
        storage = context.storages[i % len(context.storages)]
        progress("address,undefined", i / len(chosen))
        compiled = context.compiled(shape, storage)
        with tempfile.TemporaryDirectory(prefix="agentcompile-sanitize-") as folder:
            findings += _run(context, shape, storage, compiled, Path(folder))
        if findings:
            break
    return Report(("address", "undefined"), tuple(findings), {"shapes": len(chosen)})


def _run(context: Context, shape: Shape, storage: DType, compiled: Compiled, folder: Path) -> list[Finding]:
    contract = context.contract
    inputs = make_inputs(contract, shape.dims, storage, "normal", context.seed_for("sanitize", shape.dims, storage))
    source = full_source(context.candidate, contract, compiled.signature.dims, storage, compiled.device)
    (folder / "kernel.cpp").write_text(source)
    (folder / "main.cpp").write_text(_program(contract, shape, storage, compiled, inputs))
    (folder / "inputs.bin").write_bytes(_input_bytes(contract, inputs))
    command = [*find_compiler().command, *_FLAGS, *_SANITIZE, _native(), "kernel.cpp", "main.cpp", "-o", "program"]
    try:
        built = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=_COMPILE_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return [
            Finding(code="sanitizer-compile", message=f"did not compile with sanitizers within {_COMPILE_SECONDS} s")
        ]
    if built.returncode != 0:
        tail = built.stderr.strip().splitlines()[-1:] or ["no message"]
        return [Finding(code="sanitizer-compile", message=f"does not compile with sanitizers: {tail[0][:300]}")]
    code, output = run_confined(folder / "program", folder, 10 * context.options.call_seconds)
    finding = read_report(code, output)
    return [finding.model_copy(update={"shape": dict(shape.dims)})] if finding else []


def run_confined(program: Path, folder: Path, seconds: float) -> tuple[int | None, str]:
    """Exit status (None: killed at the limit) and output of a program that may read ``folder`` and nothing else."""
    command = [sys.executable, "-m", "validator.sandbox.launch", str(program), str(folder)]
    environment = {**os.environ, **_OPTIONS, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    with subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            # The launcher's death takes the program along (it is told when its parent dies).
            process.kill()
            process.communicate()
            return None, ""
    return process.returncode, output[-20_000:]


def read_report(code: int | None, output: str) -> Finding | None:
    """The finding in a sanitizer's output; None for a clean run."""
    if code == 0:
        return None
    if code is None:
        return Finding(code="timed-out", message="did not finish under the sanitizers and was killed")
    if match := _UNDEFINED.search(output):
        return Finding(code="undefined-behaviour", message=match[2].strip()[:300], line=int(match[1]))
    if match := _ADDRESS.search(output):
        access = re.search(r"^(READ|WRITE) of size \d+", output, re.MULTILINE)
        frame = _FRAME.search(output, match.end())
        what = f"{match[1]}{': ' + access[0] if access else match[2][:120]}"
        return Finding(code="bad-memory-access", message=what, line=int(frame[1]) if frame else None)
    name = signal.Signals(-code).name if code < 0 else f"status {code}"
    return Finding(
        code="crashed", message=f"ended with {name} under the sanitizers", details={"output": output[-1000:]}
    )


def _program(contract: Contract, shape: Shape, storage: DType, compiled: Compiled, inputs: CallInputs) -> str:
    """C++ that reads the inputs, gives every buffer a block of exactly its size, and calls twice."""
    entries = list(dict.fromkeys(launch.entry for launch in compiled.launches))
    wanted = parameters(contract, Target.CPU)
    types = ["void*" if p.kind in ("tensor", "workspace") else p.c_type for p in wanted]
    lines = ["#include <cstdio>", "#include <cstdlib>", "#include <cstring>"]
    lines += [f'extern "C" void {entry}({", ".join(types)});' for entry in entries]
    lines += [
        "static void* block(std::size_t bytes, std::size_t align, std::FILE* file, int fill) {",
        "  void* p = nullptr;",
        "  if (posix_memalign(&p, align < 8 ? 8 : align, bytes ? bytes : 1)) std::exit(98);",
        "  if (file) { if (bytes && std::fread(p, 1, bytes, file) != bytes) std::exit(97); }",
        "  else std::memset(p, fill, bytes);",
        "  return p;",
        "}",
        "int main() {",
        '  std::FILE* file = std::fopen("inputs.bin", "rb");',
        "  if (!file) return 96;",
    ]
    arguments = []
    for p in wanted:
        if p.kind == "tensor":
            tensor = contract.tensor(p.name)
            arguments.append(f"b_{p.name}")
            if not contract.is_present(tensor, shape.dims):
                lines.append(f"  void* b_{p.name} = nullptr;")
                continue
            size = math.prod(contract.shape_of(tensor, shape.dims)) * tensor.dtype.bind(storage).itemsize
            source = "nullptr" if tensor.role is Role.OUT else "file"
            lines.append(f"  void* b_{p.name} = block({size}u, {tensor.align}, {source}, 0xff);")
        elif p.kind == "scalar":
            arguments.append(f"{inputs.scalars[p.name]!r}" + ("f" if p.dtype is DType.FLOAT32 else ""))
        elif p.kind == "dim":
            arguments.append(str(compiled.signature.dims[p.name]))
        else:
            arguments.append("b_workspace")
            fill = 0 if compiled.candidate.plan.workspace.zeroed == "once" else 0xFF
            size = compiled.workspace_bytes
            lines.append(f"  void* b_workspace = {f'block({size}u, 128, nullptr, {fill})' if size else 'nullptr'};")
    calls = "".join(f"    {launch.entry}({', '.join(arguments)});\n" for launch in compiled.launches)
    return "\n".join([*lines, f"  for (int i = 0; i < 2; ++i) {{\n{calls}  }}", "  return 0;", "}", ""])


def _input_bytes(contract: Contract, inputs: CallInputs) -> bytes:
    """Present inputs one after the other, in the contract's order."""
    parts = []
    for tensor in contract.tensors:
        values = inputs.tensors.get(tensor.name)
        if values is not None and tensor.role is not Role.OUT:
            parts.append(bytes(values.contiguous().view(torch.uint8).numpy().tobytes()))
    return b"".join(parts)


def _native() -> str:
    import platform

    return "-mcpu=native" if platform.machine() == "aarch64" else "-march=native"


@lru_cache(maxsize=4)
def _probe(command: tuple[str, ...]) -> str | None:
    with tempfile.TemporaryDirectory(prefix="agentcompile-probe-") as folder:
        (Path(folder) / "main.cpp").write_text("int main() { return 0; }\n")
        words = [*command, *_FLAGS, *_SANITIZE, "main.cpp", "-o", "program"]
        try:
            built = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
            if built.returncode != 0:
                return f"{Path(command[0]).name} has no sanitizer library here (apt-get install libasan8 libubsan1)"
            code, output = run_confined(Path(folder) / "program", Path(folder), 30)
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"the sanitizers could not be tried: {error}"
    return None if code == 0 else f"programs do not run under the sanitizers here: {output.strip()[:200] or code}"
