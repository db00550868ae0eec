from __future__ import annotations

from pathlib import Path

import pytest

from kb.candidate import MAX_SOURCE_BYTES
from kb.candidate_files import CandidateFileError, read_candidate
from kb.dtype import Target

PLAN = "contract: rope\nlaunches:\n  - {entry: rope, grid: [num_tokens, 1, 1]}\nnotes: One block a row.\n"


def folder(tmp_path: Path, plan: str = PLAN, source: str = "int x;\n", name: str = "kernel.cu") -> Path:
    (tmp_path / name).write_text(source)
    (tmp_path / "plan.yaml").write_text(plan)
    return tmp_path


def test_a_folder_is_read_with_target_by_source_and_contract_by_plan(tmp_path: Path) -> None:
    candidate = read_candidate(folder(tmp_path))
    assert (candidate.contract, candidate.target, candidate.notes) == ("rope", Target.CUDA, "One block a row.")
    assert candidate.plan.launches[0].grid[0].text == "num_tokens"


def test_two_targets_may_share_a_folder(tmp_path: Path) -> None:
    for target, name in ((Target.CUDA, "kernel.cu"), (Target.CPU, "kernel.cpp")):
        (tmp_path / name).write_text(f"// {target}\n")
        (tmp_path / f"plan.{target}.yaml").write_text(f"launches:\n  - {{entry: {target}_entry}}\n")
    for target in Target:
        candidate = read_candidate(tmp_path, "rope", target)
        assert candidate.plan.launches[0].entry == f"{target}_entry"
        assert candidate.source == f"// {target}\n"
    with pytest.raises(CandidateFileError, match="choose one with --target"):
        read_candidate(tmp_path, "rope")


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ("launches: []\ncontract: rope\n", "plan.yaml:1:"),
        ("contract: rope\nlaunches:\n  - {entry: 'not a name'}\n", "plan.yaml:3:"),
        ("contract: rope\nlaunches:\n  - {entry: a, gird: [1, 1, 1]}\n", "plan.yaml:3:"),
        ("contract: rope\nlaunches:\n  - {entry: a, shared_bytes: 4 / 2}\n", "plan.yaml:3:"),
        ("launches:\n  - {entry: a}\n", "names no contract"),
        ("contract: rope\nlaunches: [\n", "plan.yaml:"),
    ],
    ids=["no launch", "bad name", "unknown key", "bad expression", "no contract", "not YAML"],
)
def test_a_bad_plan_is_told_where(tmp_path: Path, plan: str, message: str) -> None:
    with pytest.raises(CandidateFileError, match=message):
        read_candidate(folder(tmp_path, plan))


def test_what_is_missing_or_too_large_is_told(tmp_path: Path) -> None:
    with pytest.raises(CandidateFileError, match="not a folder"):
        read_candidate(tmp_path / "nowhere")
    with pytest.raises(CandidateFileError, match=r"neither kernel\.cu nor kernel\.cpp"):
        read_candidate(tmp_path)
    folder(tmp_path, source="x" * (MAX_SOURCE_BYTES + 1))
    with pytest.raises(CandidateFileError, match="larger than"):
        read_candidate(tmp_path)
    (tmp_path / "kernel.cu").write_bytes(b"\xff\xfe")
    with pytest.raises(CandidateFileError, match="UTF-8"):
        read_candidate(tmp_path)
    (tmp_path / "kernel.cu").write_text(" \n")
    with pytest.raises(CandidateFileError, match="empty"):
        read_candidate(tmp_path)
    (tmp_path / "plan.yaml").unlink()
    with pytest.raises(CandidateFileError, match="missing"):
        read_candidate(tmp_path)


def test_a_plan_for_another_contract_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CandidateFileError, match="for contract 'rope', not 'kv_append'"):
        read_candidate(folder(tmp_path), "kv_append")
