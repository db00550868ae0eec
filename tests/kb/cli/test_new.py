"""``agentcompile new``: drafts that load, in their place, and never over another file."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from kb.library import load_library
from kb.principle import Kind, Principle, Status
from tests.kb.cli.command import agentcompile
from tests.kb.git.checkout import Checkout, git

SAID = (
    "--title", "Read: the #1 row [once]",
    "--pattern", "op",
    "--claim", "Keep the row in registers; the weights are read once: never twice. " * 3,
    "--why", 'A "second" pass\ncosts its full time.',
    "--evidence", "- it doubles the traffic",
    "--author", "Ann: Author",
)  # fmt: skip
DEAD_END = ("--reference", "owner/name#12", "--value", "0.93 of the baseline", "--retry-when", "Registers double.")


def load(checkout: Checkout, entry_id: str) -> Principle:
    library = load_library(checkout.library)
    assert library.findings == ()
    return library.principles[entry_id]


@pytest.mark.parametrize(
    ("sort", "kind", "more"),
    [("principle", Kind.DECISION, ()), ("mandate", Kind.MANDATE, ()), ("dead-end", Kind.DEAD_END, DEAD_END)],
)
def test_flags_alone_make_a_draft_that_loads(checkout: Checkout, sort: str, kind: Kind, more: tuple[str, ...]):
    made = agentcompile("new", sort, "demo/fresh", *SAID, *more)
    assert made.code == 0, made.err
    path = checkout.root / "principles/demo/fresh.yaml"
    assert made.out.startswith(f"wrote {path}\n")
    block = load(checkout, "demo/fresh")
    assert (block.kind, block.status, block.version) == (kind, Status.DRAFT, 1)
    assert block.title == "Read: the #1 row [once]"
    assert block.claim == ("Keep the row in registers; the weights are read once: never twice. " * 3).strip()
    assert block.why == 'A "second" pass costs its full time.'
    assert block.evidence[0].what == "- it doubles the traffic"
    assert block.authors == ("Ann: Author",)
    assert block.created == datetime.now(UTC).date()
    first = path.read_text().splitlines()[0]
    assert first == "# yaml-language-server: $schema=../../site/schema/principle.json"
    if more:
        assert block.retry_when == "Registers double."
        assert block.evidence[0].reference == "owner/name#12"
        assert block.evidence[0].value is not None
        assert (block.evidence[0].value.number, block.evidence[0].value.unit) == (0.93, "of the baseline")


def test_a_contract_is_a_draft_that_loads(checkout: Checkout):
    made = agentcompile(
        "new", "contract", "fresh_op", "--title", "T", "--family", "demo", "--summary", "S.", "--semantics", "out = x"
    )
    assert made.code == 0, made.err
    library = load_library(checkout.library)
    assert library.findings == ()
    assert library.contracts["fresh_op"].status is Status.DRAFT
    text = (checkout.root / "contracts/fresh_op.yaml").read_text()
    assert text.startswith("# yaml-language-server: $schema=../site/schema/contract.json\n")


@pytest.mark.parametrize(
    ("arguments", "missing"),
    [
        (("principle",), "ID, --title, --pattern, --claim, --why, --evidence"),
        (("dead-end", "demo/fresh", *SAID), "--reference, --value, --retry-when"),
        (("contract", "fresh_op", "--title", "T"), "--family, --summary, --semantics"),
    ],
)
def test_without_a_terminal_every_missing_flag_is_named_at_once(
    checkout: Checkout, arguments: tuple[str, ...], missing: str
):
    git(checkout.root, "config", "user.name", "Configured Name")
    made = agentcompile("new", *arguments)
    assert made.code == 2
    assert made.err == f"agentcompile: missing: {missing} (in a terminal they are asked for)\n"
    assert git(checkout.root, "status", "--porcelain") == ""


def test_the_author_is_gits_user_unless_named(checkout: Checkout):
    git(checkout.root, "config", "user.name", "Configured Name")
    assert agentcompile("new", "principle", "demo/fresh", *SAID[:-2]).code == 0
    assert load(checkout, "demo/fresh").authors == ("Configured Name",)


@pytest.mark.parametrize("entry_id", ["demo/slug", "demo/untracked"])
def test_an_existing_entry_is_never_overwritten(checkout: Checkout, entry_id: str):
    checkout.put("demo/untracked")
    place = checkout.root / f"principles/{entry_id}.yaml"
    before = place.read_bytes()
    made = agentcompile("new", "principle", entry_id, *SAID)
    assert made.code == 2
    assert f"'{entry_id}' exists: principles/{entry_id}.yaml; ids are never reused" in made.err
    assert place.read_bytes() == before


def test_a_broken_file_in_the_place_is_not_overwritten_either(checkout: Checkout):
    checkout.write("principles/demo/fresh.yaml", "id: [")
    assert agentcompile("new", "principle", "demo/fresh", *SAID).code == 2
    assert (checkout.root / "principles/demo/fresh.yaml").read_text() == "id: ["


def test_an_id_that_another_file_holds_is_taken(checkout: Checkout):
    git(checkout.root, "mv", "principles/demo/slug.yaml", "principles/demo/elsewhere.yaml")
    made = agentcompile("new", "principle", "demo/slug", *SAID)
    assert "'demo/slug' exists: principles/demo/elsewhere.yaml" in made.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("principle", "Demo/Slug", *SAID), "an id is family/slug"),
        (("principle", "../../etc/x", *SAID), "an id is family/slug"),
        (("principle", "demo/fr\u0435sh", *SAID), "an id is family/slug"),
        (("principle", "demo/fresh", *SAID, "--pattern", "opp"), "no contract 'opp'; did you mean op?"),
        (("principle", "demo/fresh", *SAID, "--value", "fast"), "a number and a unit are needed"),
        (("principle", "demo/fresh", *SAID, "--retry-when", "Never."), "--retry-when: not for this sort of entry"),
        (("principle", "demo/fresh", *SAID, "--title", "x" * 121), "121 characters; 120 at most"),
        (("principle", "demo/fresh", *SAID, "--claim", "zero\u200bwidth"), "U+200B"),
        (("contract", "Fresh", "--title", "T"), "an id is words of a-z and 0-9 joined by '_'"),
    ],
)
def test_bad_values_are_refused_before_anything_is_written(
    checkout: Checkout, arguments: tuple[str, ...], message: str
):
    made = agentcompile("new", *arguments)
    assert made.code == 2
    assert message in made.err
    assert len(made.err.splitlines()) == 1
    assert git(checkout.root, "status", "--porcelain") == ""


def test_json_names_the_file(checkout: Checkout):
    made = agentcompile("new", "principle", "demo/fresh", *SAID, "--json").json
    assert made["path"] == "principles/demo/fresh.yaml"
    assert Path(made["file"]).is_file()


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs a pseudo-terminal")
def test_in_a_terminal_what_is_missing_is_asked_for_and_bad_answers_are_asked_again(checkout: Checkout):
    answers = [
        "Bad Id",
        "demo/asked",
        "Read it once",
        "opp",
        "op",
        "Keep the row.",
        "Bandwidth.",
        "A pass less.",
        "Ann",
    ]
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "kb", "new", "principle", "--library", str(checkout.root)],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=Path(__file__).parents[3],
        env={**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"},
    )
    os.close(theirs)
    os.write(ours, "".join(f"{answer}\n" for answer in answers).encode())
    shown = b""
    try:
        while chunk := os.read(ours, 4096):
            shown += chunk
    except OSError:  # how a pseudo-terminal says that the other end is closed
        pass
    os.close(ours)
    assert process.wait(60) == 0, shown.decode()
    assert b"an id is family/slug" in shown
    assert b"no contract 'opp'; did you mean op?" in shown
    block = load(checkout, "demo/asked")
    assert (block.title, block.patterns, block.authors) == ("Read it once", ("op",), ("Ann",))
