"""The tensor-core templates' index arithmetic, waits and barriers, run on this machine's processor."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from bench.gpu.template_cases import plain_product
from generator.kernel_templates.cuda import tensor_gemm
from generator.kernel_templates.parameters import TensorGemmParameters
from generator.kernel_templates.templates import instantiate
from kb.candidate import resolve
from kb.dtype import Target
from runtime.compile_cpu import find_compiler

HARNESS = Path(__file__).with_name("emulation.cpp")
NUM_SMS = 8
SHARED = "extern __shared__ __align__(128) unsigned char shared[];"


def body_of(rows: int, outputs: int, inputs: int, parameters: TensorGemmParameters) -> str:
    """Dims, launch and the entry's body as a function over blocks that the harness runs."""
    case = plain_product(rows, outputs, inputs)
    candidate = instantiate(case.spec, parameters, case.contract, Target.CUDA)
    dims = {"num_rows": rows, "num_outputs": outputs, "num_inputs": inputs, "num_sms": NUM_SMS}
    (launch,), _ = resolve(candidate.plan, dims)
    entry = candidate.source[candidate.source.index('extern "C"') :]
    inside = entry[entry.index("{") + 1 : entry.rindex("}")]
    assert SHARED in inside
    sizes = ", ".join(f"{name} = {size}" for name, size in dims.items())
    return f"""
constexpr int {sizes};
constexpr int GRID_X = {launch.grid[0]}, GRID_Z = {launch.grid[2]}, THREADS_A_BLOCK = {launch.block[0]};
constexpr int CLUSTER = {launch.cluster[1]}, SHARED_BYTES = {launch.shared_bytes};
void kernel(const T* input, const T* weight, T* output, unsigned char* shared) {{
{inside.replace(SHARED, "")}
}}
"""


@pytest.mark.parametrize(
    ("rows", "outputs", "inputs", "parameters"),
    [
        (9, 40, 200, TensorGemmParameters(0, 32, 64, 3, 2, 2)),
        (9, 150, 264, TensorGemmParameters(0, 32, 64, 3, 2, 2, walk=1)),
    ],
    ids=["a block a tile", "blocks that walk"],
)
def test_a_tensor_core_template_multiplies_tails_and_shared_contractions_right(
    rows: int, outputs: int, inputs: int, parameters: TensorGemmParameters, tmp_path: Path
) -> None:
    assert largest_error(rows, outputs, inputs, parameters, tmp_path) < 0.02  # half a bfloat16 step of the largest sums


def test_tiles_that_are_added_with_rounding_give_the_same_sums(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_gemm, "MULTIPLY", tensor_gemm.ROUNDED)
    parameters = TensorGemmParameters(0, 32, 64, 3, 2, 2)
    assert "parts[p][m][n][i]" in body_of(9, 40, 200, parameters)
    assert largest_error(9, 40, 200, parameters, tmp_path) < 0.02


def largest_error(rows: int, outputs: int, inputs: int, parameters: TensorGemmParameters, tmp_path: Path) -> float:
    """Of every output against the product in float64."""
    (tmp_path / "body.inc").write_text(body_of(rows, outputs, inputs, parameters), encoding="utf-8")
    program = tmp_path / "emulation"
    options = ["-std=c++20", "-O0", "-w", "-pthread", f"-I{tmp_path}", str(HARNESS), "-o", str(program)]
    subprocess.run([*find_compiler().command, *options], check=True, timeout=120)
    done = subprocess.run([program], capture_output=True, text=True, check=True, timeout=60)
    return float(done.stdout)
