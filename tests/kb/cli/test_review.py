"""``agentcompile review``: what a change brings, and nothing that was there before."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime

import pytest
from markdown_it import MarkdownIt

from kb.candidate import Candidate, Launch, LaunchPlan
from kb.digest import meaning_digest
from kb.dtype import Target
from kb.library import load_library
from kb.manifest import BlockRef, Environment, Manifest, Origin, Verdict
from kb.store import KernelStore
from tests.kb.cli.command import agentcompile
from tests.kb.git.checkout import Checkout, git

ACCEPTABLE = {
    "claim": "Keep the row in registers and read every weight of the row exactly once.",
    "why": "Bandwidth decides at one row, so a second pass over the weights costs its full time.",
}


def admit(checkout: Checkout) -> str:
    """A kernel made from the library as it stands; its digest."""
    library = load_library(checkout.library)
    contract, principle = library.contracts["op"], library.principles["demo/slug"]
    candidate = Candidate(
        contract="op",
        target=Target.CPU,
        source='extern "C" void op() {}\n',
        plan=LaunchPlan(launches=(Launch(entry="op"),)),
    )
    now = datetime(2026, 11, 30, tzinfo=UTC)
    verdict = Verdict(
        candidate=candidate.digest,
        contract="op",
        contract_version=1,
        target=Target.CPU,
        accepted=True,
        gates=(),
        environment=Environment(hardware="a test machine", arch="x86_64", compiler="g++"),
        seed=1,
        judged_at=now,
    )
    manifest = Manifest(
        digest=candidate.digest,
        contract="op",
        contract_version=contract.version,
        contract_digest=meaning_digest(contract),
        target=Target.CPU,
        plan=candidate.plan,
        status="admitted",
        origin=Origin(
            authorship="llm",
            provider="replay",
            principles=(BlockRef(id=principle.id, version=principle.version, digest=meaning_digest(principle)),),
        ),
        verdicts=(verdict,),
        admitted_at=now,
    )
    KernelStore(checkout.library / "kernels").admit(candidate, manifest)
    return candidate.digest


def test_a_change_that_brings_nothing_new_passes(checkout: Checkout):
    reviewed = agentcompile("review", "HEAD", "--json")
    assert reviewed.code == 0
    assert reviewed.out == agentcompile("review", "HEAD", "--format", "json").out
    data = reviewed.json
    assert (data["findings"], data["diff"]["entries"], data["prompts"], data["stale"]) == ([], [], [], [])


def test_findings_that_were_there_before_are_counted_and_not_repeated(checkout: Checkout):
    checkout.write("principles/demo/broken.yaml", "id: [\n")
    checkout.commit("broken before")
    checkout.put(title="Read the weights a single time", modified="2026-02-02")
    data = agentcompile("review", "HEAD", "--format", "json").json
    assert data["findings"] == []
    assert data["known_findings"] >= 1


def test_an_error_that_the_change_brings_fails_the_review(checkout: Checkout):
    checkout.write("principles/demo/broken.yaml", "id: [\n")
    reviewed = agentcompile("review", "HEAD")
    assert reviewed.code == 1
    assert "principles/demo/broken.yaml:2:1: error AC011" in reviewed.out
    assert "! principle demo/broken" in reviewed.out


def test_a_change_of_meaning_without_a_bump_is_a_finding(checkout: Checkout):
    checkout.put(claim="Split the row over four warps and add the parts in a fixed order.", modified="2026-02-02")
    reviewed = agentcompile("review", "HEAD", "--format", "json")
    assert reviewed.code == 1
    assert [(f["path"], f["code"]) for f in reviewed.json["findings"]] == [("principles/demo/slug.yaml", "AC401")]
    (entry,) = reviewed.json["diff"]["entries"]
    assert entry["bump"] == "missing"


def test_a_line_that_moved_is_no_new_finding(checkout: Checkout):
    checkout.write("principles/demo/broken.yaml", "title: x\nid: demo/broken\n")
    checkout.commit("broken before")
    checkout.write("principles/demo/broken.yaml", "# a comment\ntitle: x\nid: demo/broken\n")
    assert agentcompile("review", "HEAD", "--format", "json").json["findings"] == []


def test_prompts_touched_are_named_with_their_tokens(checkout: Checkout):
    checkout.put("demo/second", when={}, modified="2026-02-02", **ACCEPTABLE)
    (checkout.root / "principles/demo/slug.yaml").unlink()
    prompts = agentcompile("review", "HEAD", "--format", "json").json["prompts"]
    # The removed block spoke to cuda alone, the new one to both: on cpu there was no prompt to compare with.
    cuda, cpu = prompts
    assert (cuda["contract"], cuda["target"], cuda["entered"], cuda["left"]) == (
        "op",
        "cuda",
        ["demo/second"],
        ["demo/slug"],
    )
    assert cuda["tokens_before"] > 0
    assert cuda["tokens_after"] > 0
    assert (cpu["target"], cpu["tokens_before"], cpu["entered"]) == ("cpu", None, ["demo/second"])


def test_an_editorial_change_touches_the_prompts_that_show_it_and_no_kernel(checkout: Checkout):
    digest = admit(checkout)
    checkout.commit("kernel")
    checkout.put(title="Read the weights a single time")
    data = agentcompile("review", "HEAD", "--format", "json").json
    assert data["stale"] == []
    (prompt,) = data["prompts"]
    assert (prompt["entered"], prompt["left"], prompt["reworded"]) == ([], [], [])
    assert "the same blocks, worded differently" in agentcompile("review", "HEAD").out
    assert digest


def test_kernels_made_stale_are_named_with_the_reason(checkout: Checkout):
    digest = admit(checkout)
    base = checkout.commit("kernel")
    checkout.put(version=2, modified="2026-02-02", **ACCEPTABLE)
    checkout.commit("bumped")
    text = (checkout.root / "contracts/op.yaml").read_text()
    checkout.write("contracts/op.yaml", text.replace("kappa: 1.25", "kappa: 1.5"))
    checkout.commit("looser, not bumped")
    (stale,) = agentcompile("review", f"{base}..HEAD", "--format", "json").json["stale"]
    assert stale["digest"] == digest
    assert stale["reasons"] == ["contract op: changed, still called v1", "principle demo/slug: v1 then, v2 now"]
    # What an earlier change made stale is not blamed on a later one.
    (later,) = agentcompile("review", "HEAD~1..HEAD", "--format", "json").json["stale"]
    assert later["reasons"] == ["contract op: changed, still called v1"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"status": "retired", "status_reason": "Untrue."}, "principle demo/slug: retired"),
        (
            {"status": "superseded", "superseded_by": "demo/next", "status_reason": "Untrue."},
            "principle demo/slug: superseded by demo/next",
        ),
    ],
)
def test_a_kernel_of_a_retired_or_superseded_block_is_stale(checkout: Checkout, change: dict[str, str], reason: str):
    admit(checkout)
    checkout.commit("kernel")
    checkout.put(**change)
    (stale,) = agentcompile("review", "HEAD", "--format", "json").json["stale"]
    assert stale["reasons"] == [reason]


def test_a_revoked_kernel_is_not_reported_and_a_damaged_one_is_named(checkout: Checkout):
    digest = admit(checkout)
    store = KernelStore(checkout.library / "kernels")
    shutil.copytree(store.get(digest).folder, checkout.library / "kernels/op/cpu" / ("0" * 64))
    store.revoke(digest, "Wrong at odd sizes.")
    checkout.commit("kernels")
    (checkout.root / "principles/demo/slug.yaml").unlink()
    data = agentcompile("review", "HEAD", "--format", "json").json
    assert data["stale"] == []
    assert len(data["damaged"]) == 1


def test_text_and_markdown_have_the_same_four_parts(checkout: Checkout):
    admit(checkout)
    checkout.commit("kernel")
    checkout.put(claim="Split the row | over <b>four</b> warps and add the `parts` in order.")
    text = agentcompile("review", "HEAD").out
    for part in ("findings: ", "\nchanges\n", "prompts touched: 1", "kernels made stale: 1"):
        assert part in text
    markdown = agentcompile("review", "HEAD", "--format", "markdown").out
    html = MarkdownIt("commonmark").enable("table").render(markdown)
    for part in ("<h1>Knowledge base review", "<h2>Findings", "<h2>Changes", "<h2>Prompts touched", "<h2>Kernels made"):
        assert part in html
    assert html.count("<table>") == 5
    assert "<b>" not in html


def test_a_branch_is_reviewed_from_where_it_began(checkout: Checkout):
    git(checkout.root, "checkout", "-q", "-b", "side")
    checkout.put("demo/side", modified="2026-02-02", **ACCEPTABLE)
    checkout.commit("side")
    git(checkout.root, "checkout", "-q", "main")
    checkout.write("principles/demo/broken.yaml", "id: [\n")
    checkout.commit("broken on main")
    reviewed = agentcompile("review", "main...side", "--format", "json").json
    assert [e["id"] for e in reviewed["diff"]["entries"]] == ["demo/side"]
    assert not any("broken" in f["path"] for f in reviewed["findings"])
