"""The corpus: kernels that are right and must pass, kernels that are wrong or cheat and must be rejected, gate by gate.

``expect.yaml`` of a wrong candidate names its contract, its target, and the gate (or gates) that must reject it;
``code``, where given, the finding (or findings). CUDA candidates go as far as this machine can: without a GPU that is
the static and the compile gate.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kb.candidate import Candidate
from kb.candidate_files import CandidateFileError, read_candidate
from kb.contract import Contract
from kb.dtype import Target
from kb.manifest import GateName, Outcome, Verdict
from kb.yaml import load_file
from runtime.compile_cache import CompileCache
from validator.judge import Options, judge
from validator.worker import Worker

CORPUS = Path(__file__).parents[1] / "calibration"
WITHOUT_DEVICE = (GateName.STATIC, GateName.COMPILE)

pytestmark = [pytest.mark.calibration, pytest.mark.timeout(300)]


def expectation(folder: Path) -> dict[str, Any]:
    document = load_file(folder / "expect.yaml")
    assert document.value is not None, f"{folder}: {document.problems}"
    return document.value


def listed(value: Any) -> list[str]:
    return value if isinstance(value, list) else [] if value is None else [value]


def wrong_folders(target: Target) -> list[Path]:
    folders = sorted(p.parent for p in (CORPUS / "wrong").glob("*/expect.yaml"))
    return [folder for folder in folders if expectation(folder)["target"] == target.value]


def right_folders(target: Target) -> list[tuple[Path, str]]:
    """(folder, contract id) of every right candidate for ``target``."""
    source = "kernel.cu" if target is Target.CUDA else "kernel.cpp"
    found = [(p.parent, p.parent.name) for p in sorted((CORPUS / "right").glob(f"*/{source}"))]
    for path in sorted((CORPUS / "right_extra").glob(f"*/{source}")):
        found.append((path.parent, str(expectation(path.parent)["contract"])))
    return found


@pytest.fixture(scope="session")
def kept_images(pytestconfig: pytest.Config) -> CompileCache:
    """Images of the corpus, kept between runs: most of a run is compiling."""
    assert pytestconfig.cache is not None
    return CompileCache(pytestconfig.cache.mkdir("calibration-images"))


@pytest.fixture(scope="session")
def cuda_worker() -> Iterator[Worker]:
    with Worker(Target.CUDA) as worker:
        yield worker


def judged(
    folder: Path, candidate: Candidate, contract: Contract, images: CompileCache, worker: Worker | None, last: GateName
) -> Verdict:
    """A quick judgement up to gate ``last``; timing only where that is what is asked for."""
    gates = list(GateName)[: list(GateName).index(last) + 1]
    seed = zlib.crc32(folder.name.encode())
    options = Options(gates=tuple(gates), quick=True, hidden=1, call_seconds=2.0, timing_seconds=1.0)
    return judge(candidate, contract, options=options, seed=seed, worker=worker, cache=images)


def read(folder: Path, expected: dict[str, Any], record: Callable[[str, object], None]) -> Candidate | None:
    """The candidate; None when it cannot even be read, which is as good as failing the static gate."""
    record("calibration", "wrong")
    try:
        return read_candidate(folder, expected["contract"], Target(expected["target"]))
    except CandidateFileError:
        assert "static" in listed(expected["gate"])
        return None


def check_rejection(verdict: Verdict, expected: dict[str, Any]) -> None:
    failed = verdict.failed_gate
    gates = listed(expected["gate"])
    assert failed is not None, f"nothing was found; {' or '.join(gates)} should have rejected it: {expected['why']}"
    found = "; ".join(f"{f.code}: {f.message}" for f in failed.findings[:3])
    assert failed.gate.value in gates, f"rejected by {failed.gate.value} ({found}), not by {' or '.join(gates)}"
    if codes := listed(expected.get("code")):
        assert any(f.code in codes for f in failed.findings), f"{' or '.join(codes)} expected, found {found}"


def check_acceptance(verdict: Verdict, gates: tuple[GateName, ...]) -> None:
    for result in verdict.gates:
        found = "; ".join(f"{f.code}: {f.message}" for f in result.findings[:3])
        if result.gate in gates:
            missing_tool = result.gate is GateName.SANITIZER and result.outcome is Outcome.SKIPPED
            assert result.outcome is Outcome.PASSED or missing_tool, f"{result.gate.value}: {found or result.reason}"


@pytest.mark.parametrize("folder", wrong_folders(Target.CPU), ids=lambda f: f.name)
def test_calibration_a_wrong_cpu_candidate_is_rejected_by_the_gate_named(
    folder: Path,
    contracts: dict[str, Contract],
    kept_images: CompileCache,
    cpu_worker: Worker,
    record_property: Callable[[str, object], None],
) -> None:
    expected = expectation(folder)
    candidate = read(folder, expected, record_property)
    if candidate is None:
        return
    last = max((GateName(g) for g in listed(expected["gate"])), key=list(GateName).index)
    verdict = judged(folder, candidate, contracts[expected["contract"]], kept_images, cpu_worker, last)
    check_rejection(verdict, expected)


@pytest.mark.parametrize(("folder", "contract_id"), right_folders(Target.CPU), ids=lambda f: getattr(f, "name", ""))
def test_calibration_a_right_cpu_candidate_passes_every_gate_but_timing(
    folder: Path,
    contract_id: str,
    contracts: dict[str, Contract],
    kept_images: CompileCache,
    cpu_worker: Worker,
    record_property: Callable[[str, object], None],
) -> None:
    record_property("calibration", "right")
    candidate = read_candidate(folder, contract_id, Target.CPU)
    verdict = judged(folder, candidate, contracts[contract_id], kept_images, cpu_worker, GateName.SANITIZER)
    check_acceptance(verdict, tuple(GateName)[:-1])


@pytest.mark.parametrize("folder", wrong_folders(Target.CUDA), ids=lambda f: f.name)
def test_calibration_a_wrong_cuda_candidate_gets_no_further_than_a_machine_without_gpu_can_tell(
    folder: Path,
    contracts: dict[str, Contract],
    kept_images: CompileCache,
    record_property: Callable[[str, object], None],
) -> None:
    pytest.importorskip("cuda.core")
    expected = expectation(folder)
    candidate = read(folder, expected, record_property)
    if candidate is None:
        return
    verdict = judged(folder, candidate, contracts[expected["contract"]], kept_images, None, GateName.COMPILE)
    assert not verdict.accepted
    if set(listed(expected["gate"])) & {g.value for g in WITHOUT_DEVICE}:
        check_rejection(verdict, expected)
    else:
        record_property("calibration", "needs a GPU")
        check_acceptance(verdict, WITHOUT_DEVICE)


@pytest.mark.parametrize(("folder", "contract_id"), right_folders(Target.CUDA), ids=lambda f: getattr(f, "name", ""))
def test_calibration_a_right_cuda_candidate_passes_what_needs_no_gpu(
    folder: Path,
    contract_id: str,
    contracts: dict[str, Contract],
    kept_images: CompileCache,
    record_property: Callable[[str, object], None],
) -> None:
    pytest.importorskip("cuda.core")
    record_property("calibration", "right")
    candidate = read_candidate(folder, contract_id, Target.CUDA)
    verdict = judged(folder, candidate, contracts[contract_id], kept_images, None, GateName.COMPILE)
    check_acceptance(verdict, WITHOUT_DEVICE)


@pytest.mark.gpu
@pytest.mark.parametrize("folder", wrong_folders(Target.CUDA), ids=lambda f: f.name)
def test_calibration_a_wrong_cuda_candidate_is_rejected_by_the_gate_named(
    folder: Path,
    contracts: dict[str, Contract],
    kept_images: CompileCache,
    cuda_worker: Worker,
    record_property: Callable[[str, object], None],
) -> None:
    expected = expectation(folder)
    candidate = read(folder, expected, record_property)
    if candidate is None:
        return
    last = max((GateName(g) for g in listed(expected["gate"])), key=list(GateName).index)
    verdict = judged(folder, candidate, contracts[expected["contract"]], kept_images, cuda_worker, last)
    check_rejection(verdict, expected)


@pytest.mark.gpu
@pytest.mark.parametrize(("folder", "contract_id"), right_folders(Target.CUDA), ids=lambda f: getattr(f, "name", ""))
def test_calibration_a_right_cuda_candidate_passes_every_gate_but_timing(
    folder: Path,
    contract_id: str,
    contracts: dict[str, Contract],
    kept_images: CompileCache,
    cuda_worker: Worker,
    record_property: Callable[[str, object], None],
) -> None:
    record_property("calibration", "right")
    candidate = read_candidate(folder, contract_id, Target.CUDA)
    verdict = judged(folder, candidate, contracts[contract_id], kept_images, cuda_worker, GateName.SANITIZER)
    check_acceptance(verdict, tuple(GateName)[:-1])


def test_calibration_the_corpus_is_large_and_covers_both_targets_and_every_contract(
    contracts: dict[str, Contract],
) -> None:
    wrong = [expectation(folder) for target in Target for folder in wrong_folders(target)]
    assert len(wrong) >= 40
    for target in Target:
        assert {contract for _, contract in right_folders(target)} == set(contracts)
        assert any(e["target"] == target.value for e in wrong)
    assert {gate for e in wrong for gate in listed(e["gate"])} == {g.value for g in GateName}
