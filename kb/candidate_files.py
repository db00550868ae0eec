"""A candidate as a folder: ``kernel.cu`` or ``kernel.cpp``, and ``plan.yaml`` with its launches.

``plan.yaml`` holds the fields of a launch plan and, optionally, ``contract`` and ``notes``:

    contract: residual_rmsnorm
    launches:
      - {entry: residual_rmsnorm, grid: [num_tokens, 1, 1], block: [256, 1, 1]}
    notes: One block a row.

A folder may hold a kernel for both targets; the plans are then ``plan.cuda.yaml`` and ``plan.cpu.yaml``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from kb.candidate import MAX_SOURCE_BYTES, Candidate, LaunchPlan
from kb.dtype import Target
from kb.yaml import Document, load_file
from kb.yaml.locate import locate

SOURCES = {Target.CUDA: "kernel.cu", Target.CPU: "kernel.cpp"}
_BESIDES_PLAN = ("contract", "notes")


class CandidateFileError(Exception):
    """A folder that is not a candidate. The message says which file, where in it, and what to do."""


def read_candidate(folder: Path, contract_id: str | None = None, target: Target | None = None) -> Candidate:
    """Read the candidate in ``folder``.

    ``contract_id`` may be left out where ``plan.yaml`` names the contract, ``target`` where one source is there.
    Raises CandidateFileError.
    """
    if not folder.is_dir():
        raise CandidateFileError(f"{folder}: not a folder; a candidate is a folder with kernel.cu or kernel.cpp")
    target = target or _only_target(folder)
    source = _read_source(folder / SOURCES[target])
    path = folder / f"plan.{target.value}.yaml"
    if not path.exists():
        path = folder / "plan.yaml"
    if not path.exists():
        raise CandidateFileError(f"{path}: missing; write the launches there ('launches: [{{entry: ...}}]')")
    document = load_file(path)
    if document.value is None:
        raise CandidateFileError(_first_problem(path, document))
    named = document.value.get("contract")
    if contract_id and named and named != contract_id:
        raise CandidateFileError(f"{path}: the candidate is for contract '{named}', not '{contract_id}'")
    if not (contract_id or named):
        raise CandidateFileError(f"{path}: names no contract; add 'contract: ID' or pass --contract")
    plan = _read_plan(path, document)
    try:
        return Candidate(
            contract=str(contract_id or named),
            target=target,
            source=source,
            plan=plan,
            notes=str(document.value.get("notes", "")),
        )
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(step) for step in first["loc"])
        raise CandidateFileError(f"{folder}: {place + ': ' if place else ''}{first['msg']}") from None


def _only_target(folder: Path) -> Target:
    found = [target for target, name in SOURCES.items() if (folder / name).exists()]
    if not found:
        raise CandidateFileError(f"{folder}: neither kernel.cu nor kernel.cpp is there")
    if len(found) > 1:
        raise CandidateFileError(f"{folder}: holds kernels for both targets; choose one with --target")
    return found[0]


def _read_source(path: Path) -> str:
    try:
        data = path.read_bytes() if path.stat().st_size <= MAX_SOURCE_BYTES else None
    except OSError as error:
        raise CandidateFileError(f"{path}: cannot be read: {error.strerror or error}") from None
    if data is None:
        raise CandidateFileError(f"{path}: larger than {MAX_SOURCE_BYTES} bytes")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CandidateFileError(f"{path}: byte {error.start} is not UTF-8; save the file as UTF-8") from None


def _read_plan(path: Path, document: Document) -> LaunchPlan:
    fields: dict[str, Any] = {k: v for k, v in (document.value or {}).items() if k not in _BESIDES_PLAN}
    try:
        return LaunchPlan.model_validate(fields)
    except ValidationError as error:
        problems = locate(document, error, LaunchPlan)
        document.problems.extend(problems)
        raise CandidateFileError(_first_problem(path, document)) from None


def _first_problem(path: Path, document: Document) -> str:
    problem = document.problems[0]
    place = ""
    if problem.offset is not None:
        line, column = document.lines.place(problem.offset)
        place = f":{line}:{column}"
    fix = f" ({problem.fix})" if problem.fix else ""
    return f"{path}{place}: {problem.message}{fix}"
