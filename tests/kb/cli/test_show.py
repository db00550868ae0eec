"""``agentcompile show`` for every sort of entry."""

from __future__ import annotations

import pytest

from tests.kb.cli.command import agentcompile
from tests.kb.git.checkout import Checkout


def test_a_principle_is_shown_whole(checkout: Checkout):
    checkout.put(
        kind="dead_end",
        retry_when="Registers grow.",
        title="Do not [bold]spill[/bold]",
        related=[{"id": "demo/other", "relation": "alternative", "note": "When rows are short."}],
        evidence=[
            {
                "kind": "published",
                "what": "Two kernels beat one.",
                "hardware": "NVIDIA H200",
                "value": {"number": 0.93, "unit": "ratio"},
                "reference": "a/b#1",
            }
        ],
    )
    checkout.put("demo/other", supersedes=["demo/slug"])
    shown = agentcompile("show", "demo/slug")
    assert shown.code == 0
    for text in (
        "Do not [bold]spill[/bold]",
        "demo/slug  dead end  accepted  v1  principles/demo/slug.yaml",
        "Keep the row in registers",
        "target is cuda; num_tokens in 1..8",
        "1.05 to 1.2 times the speed of the kernel",
        "published: Two kernels beat one.",
        "0.93 ratio",
        "a/b#1",
        "Registers grow.",
        "alternative demo/other: When rows are short.",
        "demo/other  (supersedes, decision)",
    ):
        assert text in shown.out
    assert not any(line.endswith(" ") for line in shown.out.splitlines() if line.startswith("  Keep"))


def test_a_contract_is_shown_with_its_interface(checkout: Checkout):
    shown = agentcompile("show", "op")
    assert shown.code == 0
    for text in ("out = round_T(2 * x)", "hidden_size % 8 == 0", "1..32768", "T* __restrict__ out", "demo/slug"):
        assert text in shown.out


def test_json_holds_every_field_and_what_refers_to_it(checkout: Checkout):
    principle = agentcompile("show", "demo/slug", "--json").json
    assert principle["entry"] == "principle"
    assert principle["claim"].startswith("Keep the row")
    assert len(principle["digest"]) == 64
    contract = agentcompile("show", "op", "--json").json
    assert contract["referred_to_by"] == [{"id": "demo/slug", "relation": "speaks to it", "kind": "decision"}]
    assert set(contract["signatures"]) == {"cuda", "cpu"}


@pytest.mark.parametrize(
    ("typed", "meant"), [("slug", "demo/slug"), ("demo/slog", "demo/slug"), ("other/slug", "demo/slug"), ("opp", "op")]
)
def test_a_near_miss_gets_a_suggestion(checkout: Checkout, typed: str, meant: str):
    shown = agentcompile("show", typed)
    assert shown.code == 2
    assert shown.err == f"agentcompile: no entry '{typed}'; did you mean {meant}?\n"


def test_an_id_like_nothing_gets_an_error_that_names_the_library(checkout: Checkout):
    shown = agentcompile("show", "zzz")
    assert shown.code == 2
    assert shown.err == f"agentcompile: no entry 'zzz' in {checkout.root}\n"


def test_an_unreadable_entry_says_where_it_breaks(checkout: Checkout):
    checkout.write("principles/demo/broken.yaml", "id: demo/broken\ntitle: [\n")
    shown = agentcompile("show", "demo/broken")
    assert shown.code == 2
    assert "'demo/broken' cannot be read: principles/demo/broken.yaml:" in shown.err
