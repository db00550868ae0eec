"""Prompts: the same bytes for the same input, only what applies, stable part first."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from generator.prompt import count_tokens
from generator.render import RenderError, Request, render
from kb.dtype import DType, Target
from kb.library import library_root, load_library
from kb.principle import Kind

LIBRARY = load_library(library_root())
CASES = [(c, t) for c in sorted(LIBRARY.contracts) for t in Target]


def request(target: Target, **more: object) -> Request:
    arch = "sm_90" if target is Target.CUDA else "x86_64"
    return Request(target, arch, dtype=DType.BFLOAT16, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(("contract", "target"), CASES)
def test_every_contract_renders_for_every_target(contract: str, target: Target) -> None:
    prompt = render(LIBRARY.contracts[contract], LIBRARY.principles, request(target))
    for part in ("# Task", "# Contract", "## Interface", "# Mandate", "# Decisions", "# Dead ends", "# Reply"):
        assert part in prompt.text
    assert prompt.text.index("# Mandate") < prompt.text.index("# Decisions") < prompt.text.index("# Dead ends")
    assert "{arch}" not in prompt.text
    for tensor in LIBRARY.contracts[contract].tensors:
        assert f"| {tensor.name} |" in prompt.text
    assert prompt.manifest.dropped == ()


def test_the_same_input_gives_the_same_bytes_in_another_process_with_another_hash_seed() -> None:
    code = (
        "from tests.generator.test_render import *\n"
        "for c, t in CASES:\n"
        "    p = render(LIBRARY.contracts[c], LIBRARY.principles, request(t))\n"
        "    print(c, t, p.manifest.prompt_digest)\n"
    )
    root = Path(__file__).resolve().parents[2]
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=root,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(root)},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1
    assert len(outputs.pop().splitlines()) == len(CASES)


def test_history_comes_last_and_leaves_the_prefix_alone() -> None:
    contract = LIBRARY.contracts["rope"]
    plain = render(contract, LIBRARY.principles, request(Target.CPU))
    told = render(contract, LIBRARY.principles, request(Target.CPU), "\n# What was tried\n")
    assert told.prefix == plain.prefix
    assert told.text == plain.text + "\n# What was tried\n"
    assert told.manifest.prompt_digest != plain.manifest.prompt_digest


def test_blocks_for_another_target_are_out_with_the_deciding_condition() -> None:
    prompt = render(LIBRARY.contracts["gated_mlp_up"], LIBRARY.principles, request(Target.CPU))
    out = {d.id: d.reason for d in prompt.manifest.decisions if not d.included}
    assert out
    assert all(reason.startswith("does not hold: ") for reason in out.values())
    assert any("target is cuda" in reason for reason in out.values())


def test_a_batch_condition_follows_the_dims() -> None:
    contract = LIBRARY.contracts["gated_mlp_up"]
    dims = dict(contract.sweep.performance[0])
    one = render(contract, LIBRARY.principles, request(Target.CUDA, dims=({**dims, "num_tokens": 1},)))
    many = render(contract, LIBRARY.principles, request(Target.CUDA, dims=({**dims, "num_tokens": 64},)))
    assert {b.id for b in one.manifest.blocks} != {b.id for b in many.manifest.blocks}
    assert "num_tokens=64" in many.text


def test_a_tight_budget_drops_the_least_relevant_first_and_says_so() -> None:
    contract = LIBRARY.contracts["gated_mlp_up"]
    whole = render(contract, LIBRARY.principles, request(Target.CUDA))
    budget = whole.manifest.prefix_tokens - 400
    tight = render(contract, LIBRARY.principles, request(Target.CUDA, budget=budget))
    assert tight.manifest.dropped
    assert tight.manifest.prefix_tokens <= budget
    assert all("by relevance" in d.reason for d in tight.manifest.dropped)
    mandates = {p.id for p in LIBRARY.principles.values() if p.kind is Kind.MANDATE}
    assert not mandates & {d.id for d in tight.manifest.dropped}


def test_a_budget_too_small_for_the_mandate_is_one_clear_error() -> None:
    with pytest.raises(RenderError, match=r"tokens too small for the contract and mandates of rope; raise --budget"):
        render(LIBRARY.contracts["rope"], LIBRARY.principles, request(Target.CUDA, budget=300))


def test_a_contract_without_accepted_principles_is_one_clear_error() -> None:
    with pytest.raises(RenderError, match="no accepted principle"):
        render(LIBRARY.contracts["rope"], {}, request(Target.CUDA))


def test_the_bandwidth_floor_is_the_contracts_bytes_over_the_bandwidth() -> None:
    contract = LIBRARY.contracts["gated_mlp_down"]
    text = render(contract, LIBRARY.principles, request(Target.CUDA, bandwidth_gbps=4490.0)).text
    dims = contract.sweep.performance[0]
    size = contract.bytes_moved(dims, DType.BFLOAT16)
    assert f"- {size / 4490e3:.2f} µs for {size} bytes" in text


def test_token_counts_grow_with_the_text() -> None:
    assert count_tokens("") == 0
    assert count_tokens("a short line") < count_tokens("a short line and a longer one")


def test_an_older_architecture_is_asked_for_in_words_and_only_where_it_is_wanted() -> None:
    contract = LIBRARY.contracts["rope"]
    plain = render(contract, LIBRARY.principles, request(Target.CUDA)).text
    both = render(contract, LIBRARY.principles, request(Target.CUDA, also=("sm_80",))).text
    assert "must also compile for" not in plain
    assert "must also compile for sm_80" in both
    assert "at most 166912 bytes of shared memory" in both
