"""The digest of an entry follows its meaning: layout, titles and evidence leave it alone, claims do not."""

from __future__ import annotations

from typing import Any

import pytest

from kb.contract import Contract, Early
from kb.digest import folded, meaning_digest, meanings
from kb.library import library_root, load_library
from kb.yaml import load_text
from tests.kb.git.checkout import contract, contract_yaml, principle


@pytest.mark.parametrize(
    "change",
    [
        {"title": "Another"},
        {"status": "draft"},
        {"version": 7},
        {"modified": "2027-01-01"},
        {"authors": ["Somebody"]},
        {"references": ["https://example.org"]},
        {"related": [{"id": "demo/other", "relation": "refines"}]},
        {"evidence": [{"kind": "reasoned", "what": "Something new."}]},
        {"claim": "keep the row\nin registers,   and read every weight once"},
        {"when": {"batch": {"max": 8, "min": 1}, "target": ["cuda"]}},
        {"id": "demo/renamed"},
    ],
)
def test_what_means_nothing_leaves_the_digest_alone(change: dict[str, Any]):
    base = {"claim": "Keep the row in registers and read every weight once."}
    assert meaning_digest(principle(**{**base, **change})) == meaning_digest(principle(**base))


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "mandate"},
        {"patterns": ["op", "rope"]},
        {"when": {}},
        {"claim": "Keep the row in registers and read every weight twice."},
        {"why": "Latency decides."},
        {"effect": "unknown"},
    ],
)
def test_what_means_something_changes_it(change: dict[str, Any]):
    assert meaning_digest(principle(**change)) != meaning_digest(principle())


def test_lists_that_are_sets_have_no_order():
    one = principle(patterns=["op", "rope"], when={"features": ["gqa", "qk_norm"], "dims": ["a < 2", "b < 2"]})
    two = principle(patterns=["rope", "op"], when={"features": ["qk_norm", "gqa"], "dims": ["b < 2", "a < 2"]})
    assert meaning_digest(one) == meaning_digest(two)


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("title: An operation", "title: The operation", True),
        ("doc: Width of a row", "doc: Elements a row", True),
        ("why: Storage", "why: It is stored", True),
        ("status: accepted", "status: draft", True),
        ("max: 32768", "max: 4096", False),
        ("2 * x", "2 * y", False),
        ("2 * x", "2  *  x", True),
        ("kappa: 1.25", "kappa: 1.5", False),
        ("hidden_size: 4096}", "hidden_size: 8192}", False),
        ("[torch_eager]", "[torch_compiled]", False),
    ],
)
def test_a_contract_means_its_interface_numerics_and_judgement(old: str, new: str, same: bool):
    assert old in contract_yaml()
    edited = Contract.model_validate(load_text(contract_yaml().replace(old, new)).value)
    assert (meaning_digest(edited) == meaning_digest(contract())) is same


def test_the_order_of_dims_is_the_order_of_arguments():
    text = contract_yaml()
    dims = text.split("dims:\n")[1].split("# What must hold")[0].splitlines(keepends=True)
    swapped = Contract.model_validate(load_text(text.replace("".join(dims), "".join(reversed(dims)))).value)
    assert meaning_digest(swapped) != meaning_digest(contract())


@pytest.mark.parametrize(
    ("one", "two", "same"),
    [
        ("Use 1.5 (not 15).", "use 1.5 not 15", True),
        ("x <= 1.5", "x < 1.5", False),
        ("1.5", "15", False),
        (".5", "5", False),
        ("a != b", "a = b", False),
        ("a - b", "a + b", False),
        ("line\nbreak", "line break", True),
    ],
)
def test_folding_keeps_what_is_inside_a_word(one: str, two: str, same: bool):
    assert (folded(one) == folded(two)) is same


def test_the_digest_is_the_same_on_every_machine():
    assert meaning_digest(principle()) == "ba77b75fcb958e996e61fadd64259294b6415f9c26dabd61be7d3067d553b8e9"
    assert meaning_digest(contract()) == "4a992fa6edac9e91a0db7d29072c995e0418fb7474e680bfe3d2fdc43831482e"


def with_early(contract: Contract, **early: Early | None) -> Contract:
    tensors = tuple(t.model_copy(update={"early": early.get(t.name, t.early)}) for t in contract.tensors)
    return contract.model_copy(update={"tensors": tensors})


def test_a_permission_to_read_early_leaves_older_kernels_standing_and_taking_it_back_does_not() -> None:
    now = load_library(library_root()).contracts["paged_decode_attention"]
    before = with_early(now, k_cache=None, v_cache=None, block_table=None, seq_lens=None)
    half = with_early(now, k_cache=None, v_cache=None)
    assert len({meaning_digest(c) for c in (now, half, before)}) == 3
    assert {meaning_digest(c) for c in (now, half, before)} <= meanings(now)
    assert meaning_digest(now) not in meanings(before)
    assert meaning_digest(now) not in meanings(half)
    assert meanings(before) == {meaning_digest(before)}
