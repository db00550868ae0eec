"""The shipped principles: complete for every contract, evaluable, evidenced, and free of kernel source."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from kb.condition import Situation, applies
from kb.contract import Contract
from kb.dtype import DType, Target
from kb.features import FEATURES, MODEL_FEATURES, TARGET_FEATURES, target_features
from kb.library import load_library
from kb.principle import EvidenceKind, Kind, Principle, Status

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = load_library(ROOT)
PRINCIPLES = list(LIBRARY.principles.values())
CONTRACTS = list(LIBRARY.contracts.values())

FEWEST_BLOCKS = 70
FEWEST = {Kind.DECISION: 5, Kind.DEAD_END: 3, Kind.MANDATE: 1}
ARCHITECTURES = {Target.CUDA: ("sm_80", "sm_90", "sm_100", "sm_120"), Target.CPU: ("x86_64", "aarch64")}

SOURCE_PATTERNS = {
    "code fence": r"```|~~~",
    "statement": r";\s*$|;\s*\n|\{\s*\n|\+\+|\+=|->|<<<|>>>",
    "assignment": r"\b[a-z_][a-z_0-9]*\s=\s[a-z_0-9]",
    "intrinsic with arguments": r"\b_{1,2}[a-z0-9_]+\s*\(|\b(asm|for|while|if)\s*\(|\b[a-z]+_[a-z0-9_]+\(",
    "scope or pointer": r"\w::\w|\bfloat\s*\*|\bvoid\b|#pragma|#include",
}
# Widths of well-known models; a principle speaks of symbols and ratios. A head_dim bound of 64 or 128 is a size class.
MODEL_SIZES = {
    1152, 1536, 2048, 2560, 3072, 3584, 4096, 5120, 6144, 6656, 7168, 8192, 9728, 11008, 12288, 13824, 14336, 16384,
    17408, 18432, 19456, 28672, 32000, 128256, 151936, 152064,
}  # fmt: skip
MODEL_NAMES = r"(?i)\b(llama|qwen|mistral|falcon|glm|gemma|deepseek|bert|gpt|phi|kimi|mixtral|roberta)\w*"


def prose(block: Principle) -> list[str]:
    """The fields that reach a prompt and are not evidence."""
    texts = [block.title, block.claim, block.why, block.retry_when or ""]
    return texts + [link.note for link in block.related if link.note]


def situations(contract: Contract) -> list[Situation]:
    """Every stated shape of a contract on every architecture, plus the situations in which things are not known yet."""
    found = [Situation(), Situation(target=Target.CUDA), Situation(target=Target.CPU, features=frozenset())]
    for _, shape in contract.sweep_shapes():
        for target, names in ARCHITECTURES.items():
            found += [
                Situation(target, arch, dtype, "memory", shape, target_features(target, arch))
                for arch in names
                for dtype in contract.dtypes.storage
            ]
    return found


def test_every_file_loads_and_is_named_after_its_id() -> None:
    files = sorted((ROOT / "principles").glob("*/*.yaml"))
    assert not LIBRARY.findings
    assert {f"{path.parent.name}/{path.stem}" for path in files} == set(LIBRARY.principles)
    assert len(files) >= FEWEST_BLOCKS


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda c: c.id)
@pytest.mark.parametrize("kind", FEWEST, ids=lambda k: k.value)
def test_every_contract_has_enough_accepted_blocks(contract: Contract, kind: Kind) -> None:
    accepted = [b for b in PRINCIPLES if b.status is Status.ACCEPTED and contract.id in b.patterns]
    assert Counter(b.kind for b in accepted)[kind] >= FEWEST[kind]


@pytest.mark.parametrize("block", PRINCIPLES, ids=lambda b: b.id)
def test_a_block_speaks_to_known_contracts_in_names_that_all_of_them_have(block: Principle) -> None:
    for pattern in block.patterns:
        dims = set(LIBRARY.contracts[pattern].dims)
        for condition in block.when.dims:
            assert condition.names <= dims, f"{condition} on {pattern}"
        assert block.when.batch is None or "num_tokens" in dims, f"batch on {pattern}"
    assert {*block.when.features, *block.when.without} <= set(FEATURES)


@pytest.mark.parametrize("block", PRINCIPLES, ids=lambda b: b.id)
def test_when_evaluates_everywhere_and_holds_somewhere(block: Principle) -> None:
    extra = frozenset(block.when.features)
    held = False
    for pattern in block.patterns:
        for now in situations(LIBRARY.contracts[pattern]):
            applies(block.when, now)
            if now.features is not None:
                known = Situation(now.target, now.arch, now.dtype, block.when.bound, now.dims, now.features | extra)
                held = held or applies(block.when, known).holds is True
    if not held:  # a bound that no stated shape reaches, such as a large batch, must still be satisfiable
        assert block.when.batch is not None or block.when.dims, f"{block.id} never applies"


@pytest.mark.parametrize("block", [b for b in PRINCIPLES if b.kind is Kind.DEAD_END], ids=lambda b: b.id)
def test_a_dead_end_has_a_number_from_a_measurement_or_a_publication(block: Principle) -> None:
    assert any(e.value is not None and e.kind is not EvidenceKind.REASONED for e in block.evidence)


@pytest.mark.parametrize("block", PRINCIPLES, ids=lambda b: b.id)
def test_prose_holds_no_kernel_source(block: Principle) -> None:
    for text in prose(block):
        for what, pattern in SOURCE_PATTERNS.items():
            assert not re.search(pattern, text), f"{what} in: {text}"


@pytest.mark.parametrize("block", PRINCIPLES, ids=lambda b: b.id)
def test_prose_and_conditions_name_no_model_and_none_of_its_sizes(block: Principle) -> None:
    for text in [*prose(block), *(condition.text for condition in block.when.dims)]:
        assert not re.search(MODEL_NAMES, text), text
        assert not MODEL_SIZES & {int(n) for n in re.findall(r"\d+", text.replace(",", ""))}, text


def test_links_between_blocks_resolve_and_a_contradiction_says_which_side_wins() -> None:
    for block in PRINCIPLES:
        for link in block.related:
            assert link.id in LIBRARY.principles, f"{block.id} -> {link.id}"
            assert link.id != block.id
            assert link.relation != "contradicts" or link.note, f"{block.id} -> {link.id} has no note"


def test_records_of_measured_evidence_exist_and_hold_the_number() -> None:
    for block in PRINCIPLES:
        for evidence in block.evidence:
            if evidence.record is not None:
                assert evidence.value is not None
                text = (ROOT / evidence.record).read_text(encoding="utf-8")
                assert f"{evidence.value.number:g}" in text, f"{block.id}: {evidence.value.number}"


def test_no_two_blocks_share_a_title() -> None:
    counts = Counter(b.title for b in PRINCIPLES)
    assert not [title for title, n in counts.items() if n > 1]


def test_a_feature_belongs_to_the_model_or_to_the_target_never_to_both() -> None:
    assert not set(MODEL_FEATURES) & set(TARGET_FEATURES)
    assert set(FEATURES) == set(MODEL_FEATURES) | set(TARGET_FEATURES)


def test_dependent_launch_and_clusters_start_with_sm_90() -> None:
    assert "programmatic_dependent_launch" not in target_features(Target.CUDA, "sm_86")
    assert {"programmatic_dependent_launch", "clusters"} <= target_features(Target.CUDA, "sm_90")
    assert target_features(Target.CPU, "x86_64") == frozenset()
    assert all(d in (DType.BFLOAT16, DType.FLOAT16, DType.FLOAT32) for c in CONTRACTS for d in c.dtypes.storage)
