"""``agentcompile kernels`` as a person uses it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kb.cli.failure import Failure
from kb.cli.kernels import app
from kb.store import KernelStore

run = CliRunner()


@pytest.fixture
def store(tmp_path: Path, make) -> Path:
    root = tmp_path / "kernels"
    opened = KernelStore(root)
    for i, ratio in enumerate((1.1, 1.4)):
        opened.admit(*make(i, ratio=ratio), [{"event": "prompt"}])
    return root


def test_ls_prints_the_fastest_first(store: Path) -> None:
    rows = json.loads(run.invoke(app, ["ls", "--store", str(store), "--json"]).stdout)["kernels"]
    assert [r["ratio"] for r in rows] == [1.4, 1.1]
    text = run.invoke(app, ["ls", "--store", str(store)]).stdout
    assert text.index("1.40") < text.index("1.10")


def test_ls_names_a_damaged_entry_and_exits_with_one(store: Path) -> None:
    next(KernelStore(store).folders()).joinpath("kernel.cpp").write_text("x")
    result = run.invoke(app, ["ls", "--store", str(store)])
    assert result.exit_code == 1
    assert "damaged, skipped" in result.output


def test_show_prints_source_manifest_and_transcript(store: Path, make) -> None:
    digest = make(1, ratio=1.4)[0].digest
    where = ["--store", str(store)]
    assert run.invoke(app, ["show", digest, "--source", *where]).stdout.startswith("// kernel 1")
    assert json.loads(run.invoke(app, ["show", digest, "--json", *where]).stdout)["digest"] == digest
    assert json.loads(run.invoke(app, ["show", digest, "--transcript", *where]).stdout)["event"] == "prompt"
    text = run.invoke(app, ["show", digest[:10], *where]).stdout
    assert "numerics" in text
    assert "1.400" in text


def test_why_names_the_first_and_what_the_others_lack(store: Path, make) -> None:
    result = run.invoke(app, ["why", "rope", "--target", "cpu", "--store", str(store)])
    first, second = result.stdout.splitlines()
    assert "first: 1.400" in first
    assert f"behind {make(1)[0].digest[:12]}" in second


def test_revoke_gc_and_verify_work_together(store: Path, make) -> None:
    digest = make(0)[0].digest
    where = ["--store", str(store)]
    assert run.invoke(app, ["revoke", digest, "--reason", "stale", *where]).exit_code == 0
    assert "stale" in run.invoke(app, ["ls", "--all", "--json", *where]).stdout
    assert run.invoke(app, ["gc", "--revoked", *where]).stdout.endswith("1 removed\n")
    result = run.invoke(app, ["verify", *where])
    assert (result.exit_code, result.stdout) == (0, "1 entry, 0 damaged\n")


def test_export_and_import_round_trip(store: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    archive = str(tmp_path / "k.tar")
    assert run.invoke(app, ["export", archive, "--store", str(store)]).exit_code == 0
    assert run.invoke(app, ["import", archive, "--store", str(other)]).stdout == "2 added, 0 already there\n"


def test_an_unknown_digest_or_store_is_bad_usage(store: Path, tmp_path: Path) -> None:
    for arguments in (["show", "ffffff", "--store", str(store)], ["ls", "--store", str(tmp_path / "none")]):
        result = run.invoke(app, arguments)
        assert isinstance(result.exception, Failure)
        assert result.exception.exit_code == 2
