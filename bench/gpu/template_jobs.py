"""What a process of its own does for the template benchmark: compile, judge, or time a product against the library."""

from __future__ import annotations

import os
import time
import traceback
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.gpu.template_cases import Case, cases, plain_product, runtime_cases
from generator.kernel_templates.contracts import template_candidates
from generator.kernel_templates.legality import legal
from generator.kernel_templates.parameters import Parameters
from generator.kernel_templates.templates import instantiate
from kb.candidate import Candidate
from kb.contract import Contract
from kb.dtype import DType, Target
from kb.library import library_root, load_library
from kb.manifest import GateName
from runtime.compile_cache import CompileCache

GATES = (GateName.STATIC, GateName.COMPILE, GateName.INTERFACE, GateName.NUMERICS)
ARCH = "sm_90"
_state: dict[str, Any] = {}


@dataclass(frozen=True, slots=True)
class Judged:
    """A candidate to be judged: of a case by its parameters, or of a contract by its place in the list."""

    name: str
    number: int
    of_contract: bool
    quick: bool

    @property
    def label(self) -> str:
        return f"{self.name} #{self.number}"


@dataclass(frozen=True, slots=True)
class Product:
    """One shape to be timed with these parameters."""

    label: str
    rows: int
    outputs: int
    inputs: int
    parameters: tuple[Parameters, ...]
    seconds: float = 0.8


@dataclass(slots=True)
class Timed:
    """Microseconds a call by arm, what went wrong by arm, the largest error by arm in units of the output's size."""

    micros: dict[str, float] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    poisoned: bool = False  # the device context of the process is no longer good


def start(cache: Path) -> None:
    """First thing in every process."""
    os.environ.setdefault("OMP_NUM_THREADS", "2")
    _state["cache"] = CompileCache(cache)
    _state["contracts"] = load_library(library_root()).contracts
    _state["cases"] = cases() | runtime_cases()


def case_jobs() -> Iterator[Judged]:
    """Every case with each of its parameters, in full; with sizes at run time the first of them."""
    for case in cases().values():
        yield from (Judged(case.name, i, False, False) for i in range(len(case.cuda)))
    yield from (Judged(name, 0, False, False) for name in runtime_cases())


def contract_jobs() -> Iterator[Judged]:
    """Candidates of every contract: the first in full, a few of the others quickly."""
    for contract in load_library(library_root()).contracts.values():
        last = len(template_candidates(contract, Target.CUDA, ARCH)) - 1
        chosen = [i for i in (0, 2, 5, 7, 9, last) if 0 <= i <= last]
        yield from (Judged(contract.id, i, True, i > 0) for i in dict.fromkeys(chosen))


def subject(job: Judged) -> tuple[Candidate, Contract, str]:
    """What ``job`` judges, and its parameters in words."""
    if job.of_contract:
        contract = _state["contracts"][job.name]
        found = template_candidates(contract, Target.CUDA, ARCH)[job.number]
        return found.candidate, contract, found.description
    case: Case = _state["cases"][job.name]
    parameters = case.cuda[job.number]
    return instantiate(case.spec, parameters, case.contract, Target.CUDA), case.contract, str(parameters)


def judge_one(job: Judged) -> tuple[Judged, Any, str, float]:
    """The verdict up to numerics, or the text of what went wrong."""
    from validator.gates import Options
    from validator.judge import judge
    from validator.worker import Worker

    started = time.monotonic()
    words = ""
    try:
        candidate, contract, words = subject(job)
        if "worker" not in _state:
            _state["worker"] = Worker(Target.CUDA)
        verdict: Any = judge(
            candidate,
            contract,
            options=Options(
                gates=GATES, quick=job.quick, hidden=2 if job.of_contract else 0, compile_jobs=1, budget_seconds=240
            ),
            seed=zlib.crc32(job.label.encode()),
            worker=_state["worker"],
            cache=_state["cache"],
        )
    except Exception:
        verdict = traceback.format_exc()
        _state.pop("worker", None)
    return job, verdict, words, time.monotonic() - started


def compile_one(task: tuple[Product, Parameters]) -> str:
    """Compile one product into the cache; what went wrong, or nothing."""
    from runtime.device import assumed_cuda_device
    from runtime.kernel import compile_candidate

    product, parameters = task
    case = plain_product(product.rows, product.outputs, product.inputs)
    dims = case.contract.sweep.correctness[0]
    if legal(case.spec, parameters, Target.CUDA, ARCH, dims) is not None:
        return ""
    try:
        candidate = instantiate(case.spec, parameters, case.contract, Target.CUDA)
        device = _device() or assumed_cuda_device(ARCH)
        compile_candidate(candidate, case.contract, dims, DType.BFLOAT16, cache=_state["cache"], device=device)
    except Exception as error:
        return f"{product.label} {parameters}: {error}"[:300]
    return ""


def environment(_: object) -> dict[str, Any]:
    """The device and its bandwidth."""
    from runtime.bandwidth import measure_bandwidth
    from runtime.device import cuda_device

    device = cuda_device()
    found = measure_bandwidth(device, _state["cache"])
    return {
        "name": device.name,
        "arch": device.arch,
        "driver": device.driver,
        "num_sms": device.num_sms,
        "bandwidth": dict(found.methods),
        "read_gbps": found.read_gbps,
    }


def time_product(product: Product) -> Timed:
    """The library's product and every template of ``product``, checked, then timed in one interleaved run."""
    import torch

    from runtime.device import cuda_device
    from runtime.stopwatch import stopwatch_for
    from runtime.timing import Arm, Effort, input_sets, time_interleaved

    found = Timed()
    try:
        device = cuda_device()
        bytes_a_set = product.outputs * product.inputs * 2
        sets = input_sets(bytes_a_set, device.cache_bytes, memory_bytes=device.memory_bytes)
        made = [_tensors(product, i) for i in range(sets)]
        arms = {"library": Arm(tuple(_library(t) for t in made))}
        expected = made[0]["input"].float() @ made[0]["weight"].float().t()
        arms["library"].calls[0]()
        found.errors["library"] = _error(made[0]["output"], expected)
        for parameters in product.parameters:
            name = str(parameters)
            calls = _template(product, parameters, made, found)
            if calls is None:
                continue
            made[0]["output"].fill_(float("nan"))
            calls[0]()
            torch.cuda.synchronize()
            found.errors[name] = _error(made[0]["output"], expected)
            if not found.errors[name] <= 2 * found.errors["library"] + 0.01:
                found.problems[name] = (
                    f"wrong: error {found.errors[name]:.3g}, the library {found.errors['library']:.3g}"
                )
                continue
            arms[name] = Arm(tuple(calls))
        effort = Effort(relative_error=0.004, min_rounds=10, seconds=product.seconds)
        timings = time_interleaved(arms, stopwatch_for(Target.CUDA), effort)
        found.micros = {name: t.median_us for name, t in timings.items()}
    except Exception as error:
        found.problems["run"] = f"{type(error).__name__}: {error}"[:400]
        found.poisoned = True
    return found


def _template(product: Product, parameters: Parameters, made: list[dict[str, Any]], found: Timed) -> list[Any] | None:
    """The kernel bound to every input set, or None and the reason in ``found``."""
    from runtime.errors import RuntimeFailure
    from runtime.kernel import load_kernel

    case = plain_product(product.rows, product.outputs, product.inputs)
    dims = case.contract.sweep.correctness[0]
    if (reason := legal(case.spec, parameters, Target.CUDA, ARCH, dims)) is not None:
        found.problems[str(parameters)] = f"illegal: {reason}"
        return None
    candidate = instantiate(case.spec, parameters, case.contract, Target.CUDA)
    try:
        kernel = load_kernel(candidate, case.contract, dims, DType.BFLOAT16, cache=_state["cache"])
        return [kernel.bind(t, {}) for t in made]
    except RuntimeFailure as error:
        found.problems[str(parameters)] = str(error)[:300]
        return None


def _tensors(product: Product, seed: int) -> dict[str, Any]:
    import torch

    gen = torch.Generator("cuda").manual_seed(seed)

    def drawn(*shape: int, scale: float = 1.0) -> torch.Tensor:
        values = torch.empty(shape, dtype=torch.bfloat16, device="cuda")
        return values.normal_(0.0, scale, generator=gen)

    return {
        "input": drawn(product.rows, product.inputs),
        "weight": drawn(product.outputs, product.inputs, scale=product.inputs**-0.5),
        "output": torch.zeros(product.rows, product.outputs, dtype=torch.bfloat16, device="cuda"),
    }


def _library(tensors: dict[str, Any]) -> Callable[[], object]:
    import torch

    x, weight, out = tensors["input"], tensors["weight"].t(), tensors["output"]
    return lambda: torch.mm(x, weight, out=out)


def _error(output: Any, expected: Any) -> float:
    difference = (output.float() - expected).abs().max()
    return float(difference / expected.square().mean().sqrt())


def _device() -> Any:
    from runtime.device import cuda_device, has_cuda

    return cuda_device() if has_cuda() else None
