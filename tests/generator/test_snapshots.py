"""The fixed part of every prompt, as a file: a change of wording or interface shows in a review as what it is.

Principles are left out: their changes show in their own files. With UPDATE_SNAPSHOTS=1 in the environment this test
writes the files anew.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from generator.render import Request, render
from kb.dtype import DType, Target
from kb.expr import MAX_LENGTH
from kb.library import library_root, load_library

LIBRARY = load_library(library_root())
FOLDER = Path(__file__).with_name("snapshots")
CASES = [(contract, target) for contract in sorted(LIBRARY.contracts) for target in Target]


def prompt_of(contract: str, target: Target) -> str:
    arch = "sm_90" if target is Target.CUDA else "x86_64"
    request = Request(target, arch, dtype=DType.BFLOAT16, bandwidth_gbps=1000.0, kinds=frozenset())
    return render(LIBRARY.contracts[contract], LIBRARY.principles, request).text


@pytest.mark.parametrize(("contract", "target"), CASES)
def test_the_prompt_without_principles_is_the_recorded_one(contract: str, target: Target) -> None:
    path = FOLDER / f"{contract}.{target.value}.md"
    text = prompt_of(contract, target)
    if os.environ.get("UPDATE_SNAPSHOTS"):
        FOLDER.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert path.exists(), f"{path} is missing; UPDATE_SNAPSHOTS=1 writes it"
    assert text == path.read_text(encoding="utf-8"), f"{path} differs; look at it, then UPDATE_SNAPSHOTS=1"


@pytest.mark.parametrize("target", list(Target))
def test_the_limit_on_expressions_is_told(target: Target) -> None:
    assert f"at most {MAX_LENGTH} characters each" in prompt_of("rope", target)


def test_every_snapshot_has_its_contract() -> None:
    assert {p.name for p in FOLDER.glob("*.md")} == {f"{c}.{t.value}.md" for c, t in CASES}
