"""Sources of an emitted folder: the kernel as it was judged, a launch wrapper, its header, a check, a build script."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from generator.compile.c_text import c_text
from kb.candidate import Candidate, Launch
from kb.contract import Contract, DimKind, Role
from kb.dtype import DType, Target
from kb.expr import Expr
from kb.signature import parameters
from runtime.compile_cpu import OPTIONS, SOURCE_NAME
from runtime.device import DeviceInfo
from runtime.kernel import full_source, kernel_dims

_STREAM = "stream"


@dataclass(frozen=True, slots=True)
class Unit:
    """A kernel to be emitted, with the example its check runs: file names by tensor, sizes in bytes."""

    contract: Contract
    candidate: Candidate
    storage: DType
    dims: Mapping[str, int]
    bytes_of: Mapping[str, int]
    has_example: bool

    @property
    def name(self) -> str:
        """Name of the wrapper and of its folder."""
        return self.contract.id


def kernel_text(unit: Unit, device: DeviceInfo) -> str:
    """What the judge's compiler read, the ``#line`` directive left out: the file stands for itself."""
    dims = kernel_dims(unit.contract, unit.dims)
    text = full_source(unit.candidate, unit.contract, dims, unit.storage, device)
    return "\n".join(line for line in text.splitlines() if not line.startswith("#line ")) + "\n"


def header_text(unit: Unit) -> str:
    """The C interface of the wrapper."""
    name = unit.name
    shapes = "\n".join(
        f" * {t.name}: {t.dtype.bind(unit.storage).value} [{', '.join(e.text for e in t.shape)}], {t.role.value}, "
        f"{t.align}-byte aligned"
        for t in unit.contract.tensors
    )
    return f"""/* {unit.contract.title}
 *
{shapes}
 *
 * Tensors are dense and row-major. The workspace holds {name}_workspace_bytes(...) bytes,
 * 128-byte aligned{_zeroed(unit)}.
 * Returns 0, or the number of an error of the device. {_asynchronous(unit)} */
#ifndef {name.upper()}_H
#define {name.upper()}_H
#ifdef __cplusplus
extern "C" {{
#endif
int {name}({", ".join(_parameters(unit))});
long long {name}_workspace_bytes({", ".join(f"int {n}" for n in _sizes(unit)) or "void"});
#ifdef __cplusplus
}}
#endif
#endif
"""


def wrapper_text(unit: Unit) -> str:
    """The launch wrapper: includes the kernel, so that its constants are the launch's."""
    cuda = unit.candidate.target is Target.CUDA
    lines = [
        f'#include "{"kernel.cu" if cuda else SOURCE_NAME}"',
        f'#include "{unit.name}.h"',
        *(["#include <cuda_runtime.h>"] if cuda else []),
        "",
        f'extern "C" __attribute__((visibility("default"))) long long {unit.name}_workspace_bytes('
        f"{', '.join(f'int {n}' for n in _sizes(unit)) or 'void'}) {{",
        f"  return {c_text(unit.candidate.plan.workspace.bytes)};",
        "}",
        "",
        f'extern "C" __attribute__((visibility("default"))) int {unit.name}({", ".join(_parameters(unit))}) {{',
        *(f"  {line}" for launch in unit.candidate.plan.launches for line in _launch(unit, launch)),
        "  return 0;",
        "}",
    ]
    return "\n".join(lines) + "\n"


def check_text(units: Sequence[Unit], target: Target) -> str:
    """A program that calls every wrapper on its example and compares with what the judged kernel gave."""
    template = _template("check.cu" if target is Target.CUDA else "check.cpp")
    headers = "\n".join(f'#include "kernels/{u.name}/{u.name}.h"' for u in units)
    checked = [u for u in units if u.has_example]
    cases = "\n".join(_case(unit) for unit in checked)
    calls = "\n".join(f"  wrong += check_{u.name}();" for u in checked)
    return template.replace("@HEADERS@", headers).replace("@CASES@", cases).replace("@CALLS@", calls)


def build_text(units: Sequence[Unit], target: Target, arch: str) -> str:
    """The script that compiles the folder alone, in the folder ``build`` beside it."""
    names = " ".join(u.name for u in units)
    if target is Target.CUDA:
        return _template("build.cuda.sh").replace("@NAMES@", names).replace("@ARCH@", arch)
    kept = [o for o in OPTIONS if not o.startswith("-W") or o == "-Wl,-z,defs"]
    return _template("build.cpu.sh").replace("@NAMES@", names).replace("@OPTIONS@", " ".join(kept))


def _sizes(unit: Unit) -> tuple[str, ...]:
    return unit.contract.dims_of(DimKind.RUNTIME)


def _parameters(unit: Unit) -> list[str]:
    found = [f"{'const ' if t.role is Role.IN else ''}void* {t.name}" for t in unit.contract.tensors]
    found += [f"int {name}" for name in _sizes(unit)]
    found.append("void* workspace")
    return [*found, f"void* {_STREAM}"] if unit.candidate.target is Target.CUDA else found


def _arguments(unit: Unit) -> list[str]:
    roles = {t.name: t.role for t in unit.contract.tensors}
    found = []
    for parameter in parameters(unit.contract, unit.candidate.target):
        if parameter.kind == "tensor":
            element = parameter.c_type.split("*")[0].replace("const", "").strip()
            const = "const " if roles[parameter.name] is Role.IN else ""
            found.append(f"static_cast<{const}{element}*>({parameter.name})")
        else:
            found.append(parameter.name)
    return found


def _launch(unit: Unit, launch: Launch) -> list[str]:
    condition = "" if launch.when is None else f"if ({c_text(launch.when)}) "
    arguments = ", ".join(_arguments(unit))
    if unit.candidate.target is Target.CPU:
        return [f"{condition}{launch.entry}({arguments});"]

    def triple(sizes: tuple[Expr, Expr, Expr]) -> str:
        return ", ".join(f"(unsigned)({c_text(size)})" for size in sizes)

    attributes: list[str] = []
    if any(size.text != "1" for size in launch.cluster):
        attributes += ["attributes[count].id = cudaLaunchAttributeClusterDimension;"]
        sizes = zip("xyz", launch.cluster, strict=True)
        attributes += [f"attributes[count].val.clusterDim.{axis} = {c_text(size)};" for axis, size in sizes]
        attributes += ["++count;"]
    if launch.cooperative:
        attributes += ["attributes[count].id = cudaLaunchAttributeCooperative;"]
        attributes += ["attributes[count++].val.cooperative = 1;"]
    if launch.programmatic_dependent:
        attributes += ["attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;"]
        attributes += ["attributes[count++].val.programmaticStreamSerializationAllowed = 1;"]
    return [
        f"{condition}{{",
        "  cudaLaunchAttribute attributes[3];",
        "  int count = 0;",
        *(f"  {line}" for line in attributes),
        "  cudaLaunchConfig_t config = {};",
        f"  config.gridDim = dim3({triple(launch.grid)});",
        f"  config.blockDim = dim3({triple(launch.block)});",
        f"  config.dynamicSmemBytes = (size_t)({c_text(launch.shared_bytes)});",
        f"  config.stream = static_cast<cudaStream_t>({_STREAM});",
        "  config.attrs = attributes;",
        "  config.numAttrs = count;",
        f"  cudaError_t error = cudaFuncSetAttribute({launch.entry}, cudaFuncAttributeMaxDynamicSharedMemorySize,",
        "                                           (int)config.dynamicSmemBytes);",
        f"  if (error == cudaSuccess) error = cudaLaunchKernelEx(&config, {launch.entry}, {arguments});",
        "  if (error != cudaSuccess) return (int)error;",
        "}",
    ]


def _case(unit: Unit) -> str:
    lines = [f"static int check_{unit.name}() {{", f'  const char* folder = "kernels/{unit.name}/example/";']
    for tensor in unit.contract.tensors:
        size = unit.bytes_of[tensor.name]
        if tensor.role is Role.IN:
            lines.append(f'  Buffer {tensor.name}(folder, "{tensor.name}", {size}, true);')
        else:
            lines.append(f'  Buffer {tensor.name}(folder, "{tensor.name}", {size}, false);')
    sizes = ", ".join(str(unit.dims[n]) for n in _sizes(unit))
    lines.append(f"  Workspace workspace({unit.name}_workspace_bytes({sizes}));")
    arguments = [f"{t.name}.data()" for t in unit.contract.tensors]
    arguments += [str(unit.dims[n]) for n in _sizes(unit)] + ["workspace.data()"]
    if unit.candidate.target is Target.CUDA:
        arguments.append("nullptr")
    lines.append(f'  if (int error = {unit.name}({", ".join(arguments)})) return failed("{unit.name}", error);')
    written = [t for t in unit.contract.tensors if t.role is not Role.IN]
    lines.append("  int wrong = 0;")
    lines += [f'  wrong += {t.name}.compare("{unit.name}", "{t.dtype.bind(unit.storage).value}");' for t in written]
    return "\n".join([*lines, "  return wrong;", "}", ""])


def _zeroed(unit: Unit) -> str:
    return ", zero before the first call" if unit.candidate.plan.workspace.zeroed == "once" else ""


def _asynchronous(unit: Unit) -> str:
    return "The call is asynchronous." if unit.candidate.target is Target.CUDA else ""


def _template(name: str) -> str:
    return (Path(__file__).parent / "emitted" / name).read_text(encoding="utf-8")


__all__ = ["Unit", "build_text", "check_text", "header_text", "kernel_text", "wrapper_text"]
