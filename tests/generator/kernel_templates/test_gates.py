"""Every template through the gates: on this machine's processor up to numerics, for CUDA up to compilation."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import torch

from bench.gpu.template_cases import Case, cases, runtime_cases
from generator.kernel_templates.contracts import template_candidates
from generator.kernel_templates.templates import LOCALS, instantiate
from kb.candidate import Candidate, resolve
from kb.contract import Contract, Role, Sweep
from kb.dtype import STORAGE_DTYPES, DType, Target
from kb.library import library_root, load_library
from kb.manifest import GateName, Outcome, Verdict
from runtime.compile_cache import CompileCache
from runtime.device import assumed_cuda_device
from runtime.kernel import compile_candidate, load_kernel
from validator.gates import Options
from validator.inputs import allocate_outputs, make_inputs
from validator.judge import judge
from validator.numerics import judge_outputs, truth_of
from validator.source.rules import problems_of
from validator.worker import Worker

GATES = (GateName.STATIC, GateName.COMPILE, GateName.INTERFACE, GateName.NUMERICS)
LIBRARY = load_library(library_root()).contracts
STATIC_CASES, RUNTIME_CASES = cases(), runtime_cases()
WITH_TEMPLATES = [name for name, c in LIBRARY.items() if template_candidates(c, Target.CPU, "x86_64")]
SM_90 = assumed_cuda_device("sm_90")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> CompileCache:
    return CompileCache(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker(Target.CPU) as made:
        yield made


def edges(contract: Contract) -> Contract:
    """The contract with three of its shapes: one point or row, and two with a tail."""
    shapes = contract.sweep.correctness
    chosen = (shapes[0], *shapes[2:4]) if len(shapes) > 3 else shapes
    return contract.model_copy(update={"sweep": Sweep(correctness=chosen, performance=chosen[:1])})


def judged(candidate: Candidate, contract: Contract, worker: Worker, cache: CompileCache) -> Verdict:
    options = Options(gates=GATES, quick=True, hidden=0, compile_jobs=1)
    return judge(candidate, contract, options=options, seed=7, worker=worker, cache=cache)


@pytest.mark.parametrize("name", [n for n in RUNTIME_CASES if not n.startswith("mean")])
def test_a_template_passes_every_gate_up_to_numerics_on_the_processor(
    name: str, worker: Worker, cache: CompileCache
) -> None:
    case = RUNTIME_CASES[name]
    contract = edges(case.contract)
    verdict = judged(instantiate(case.spec, case.cpu[0], contract, Target.CPU), contract, worker, cache)
    assert verdict.failed_gate is None, verdict.failed_gate
    assert {g.gate for g in verdict.gates if g.outcome is Outcome.PASSED} == set(GATES)


def test_the_gates_reject_a_template_of_another_computation(worker: Worker, cache: CompileCache) -> None:
    mean, largest = RUNTIME_CASES["mean_at_run_time"], RUNTIME_CASES["largest_at_run_time"]
    contract = edges(mean.contract)
    wrong = instantiate(largest.spec, largest.cpu[0], contract, Target.CPU)
    failed = judged(wrong, contract, worker, cache).failed_gate
    assert failed is not None
    assert failed.gate is GateName.NUMERICS


@pytest.mark.parametrize("name", WITH_TEMPLATES)
def test_the_first_candidate_of_a_contract_is_right_on_the_processor(name: str, cache: CompileCache) -> None:
    contract = LIBRARY[name]
    dims = dict(contract.sweep.correctness[1])
    candidate = template_candidates(contract, Target.CPU, "x86_64")[0].candidate
    assert problems_of(candidate, contract) == []
    inputs = make_inputs(contract, dims, DType.BFLOAT16, "normal", 3)
    truth = truth_of(contract, dims, DType.BFLOAT16, inputs)
    work = inputs.clone().with_tensors(allocate_outputs(contract, dims, DType.BFLOAT16, "cpu"))
    kernel = load_kernel(candidate, contract, dims, DType.BFLOAT16, cache=cache)
    kernel.bind(work.tensors, work.scalars)()
    outputs = {t.name: work.tensors[t.name] for t in contract.tensors if t.role is not Role.IN}
    found = judge_outputs(contract, dims, DType.BFLOAT16, "normal", truth, outputs)  # type: ignore[arg-type]
    assert found.findings == ()


@pytest.mark.parametrize("target", Target)
def test_zero_rows_are_no_work_and_no_error(target: Target, cache: CompileCache) -> None:
    case = RUNTIME_CASES["chain_at_run_time"]
    dims = {n: d.model_copy(update={"min": 0}) for n, d in case.contract.dims.items()}
    contract = case.contract.model_copy(update={"dims": dims})
    candidate = instantiate(case.spec, case.parameters(target)[0], contract, target)
    sizes = {"num_rows": 0, "num_columns": 16}
    if target is Target.CUDA:
        launches, _ = resolve(candidate.plan, {**sizes, "num_sms": 132})
        assert launches[0].grid == (1, 1, 1)
        assert "if (index >= rows * packs) return;" in candidate.source
        return
    kernel = load_kernel(candidate, contract, sizes, DType.FLOAT32, cache=cache)
    empty, bias = torch.empty(0, 16), torch.zeros(16)
    kernel.bind({"input": empty, "bias": bias, "output": torch.empty(0, 16)}, {})()


def chosen(cases_: dict[str, Case]) -> list[tuple[str, int]]:
    """Every template; the product, which has the most to choose, with each of its parameters."""
    return [(name, i) for name, case in cases_.items() for i in range(len(case.cuda)) if name == "linear" or i < 1]


@pytest.mark.parametrize(("name", "number"), chosen(STATIC_CASES))
def test_a_template_passes_the_static_and_the_compile_gate_for_cuda(
    name: str, number: int, cache: CompileCache
) -> None:
    case = STATIC_CASES[name]
    candidate = instantiate(case.spec, case.cuda[number], case.contract, Target.CUDA)
    assert problems_of(candidate, case.contract) == []
    assert not re.search(r"\]\s*\([^)]*\bauto\b", candidate.source)  # NVRTC 13.0 takes a generic lambda for host code
    shapes = case.contract.sweep.correctness
    dims, storage = shapes[-1 - number % 2], STORAGE_DTYPES[number % 3]
    compiled = compile_candidate(candidate, case.contract, dims, storage, cache=cache, device=SM_90)
    assert all(r.spill_store_bytes <= 16 for r in compiled.image.resources.values())


@pytest.mark.parametrize("name", WITH_TEMPLATES)
def test_candidates_of_a_contract_differ_and_the_first_passes_the_static_and_the_compile_gate_for_cuda(
    name: str, cache: CompileCache
) -> None:
    contract = LIBRARY[name]
    found = template_candidates(contract, Target.CUDA, "sm_90")
    assert problems_of(found[0].candidate, contract) == []
    assert len({f.candidate.digest for f in found}) == len(found)
    dims = contract.sweep.correctness[-1]
    compile_candidate(found[0].candidate, contract, dims, DType.BFLOAT16, cache=cache, device=SM_90)


def test_candidates_for_an_architecture_without_clusters_ask_for_none() -> None:
    for name in WITH_TEMPLATES:
        for found in template_candidates(LIBRARY[name], Target.CUDA, "sm_80"):
            assert all(launch.cluster[1].text == "1" for launch in found.candidate.plan.launches)


def test_names_a_template_declares_are_refused_in_contracts() -> None:
    """A dim of the same name would be hidden by the template's own: every declared name is on the list."""
    declared = re.compile(
        r"\b(?:int|long long|float|auto|bool|size_t|Best|S|T)\*?(?: const)? ([a-z][a-z0-9_]*) ?(?:=|\[|;)"
    )
    ours = re.compile(r"v_|sum_|found_|out_|in_|row_of_|aligned_|kept_|below\d|i\d")
    for cases_ in (STATIC_CASES, RUNTIME_CASES):
        for case in cases_.values():
            for target in Target:
                for parameters in case.parameters(target):
                    source = instantiate(case.spec, parameters, case.contract, target).source
                    entry = source[source.index('extern "C"') :]
                    names = {n for n in declared.findall(entry) if not ours.match(n)}
                    assert names <= LOCALS, names - LOCALS
