"""What the documents tell a reader to type exists, and their links lead somewhere."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import click
import pytest
import typer
from ruamel.yaml import YAML

from kb.cli.app import app
from kb.dtype import Target
from kb.library import load_library

ROOT = Path(__file__).parent.parent
DOCUMENTS = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")
_BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`(agentcompile [^`]+|make [^`]+)`")


def typed(text: str) -> Iterator[str]:
    """Every line of a shell block, and every command in the running text."""
    for block in _BLOCK.findall(text):
        yield from (line for line in block.splitlines() if line and not line.startswith("#"))
    yield from (" ".join(span.split()) for span in _SPAN.findall(_BLOCK.sub("", text)))


LINES = sorted({(name, line) for name in DOCUMENTS for line in typed((ROOT / name).read_text(encoding="utf-8"))})


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


def resolve(words: list[str]) -> tuple[click.Command, list[str]]:
    """The command that ``words`` call, and what is left for it to parse."""
    with mock.patch.object(sys, "argv", ["agentcompile", *words]):
        command: click.Command = typer.main.get_command(app)
        context = click.Context(command, info_name="agentcompile")
        while hasattr(command, "get_command") and words:
            found = command.get_command(context, words[0])
            assert found is not None, f"no command '{words[0]}'"
            command, words = found, words[1:]
    return command, words


def test_the_documents_hold_commands():
    assert len(LINES) > 20
    assert ("README.md", "make test") in LINES
    assert ("README.md", "make demo") in LINES


@pytest.mark.parametrize(("document", "line"), LINES)
def test_every_command_in_a_document_exists(document: str, line: str):
    words = shlex.split(line)
    if words[0] == "make":
        assert set(words[1:]) <= make_targets()
    elif words[0] == "agentcompile":
        command, rest = resolve(words[1:])
        options = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        assert {word.split("=")[0] for word in rest if word.startswith("--")} <= options
    else:
        assert words[0] in ("pip", "pre-commit")


def test_contracts_and_entries_in_shell_blocks_exist():
    library = load_library(ROOT)
    known = {*library.contracts, *library.principles}
    for document, line in LINES:
        words = shlex.split(line)
        if len(words) > 2 and words[:2] in (
            ["agentcompile", "show"],
            ["agentcompile", "history"],
            ["agentcompile", "render"],
        ):
            assert words[2] in known or words[2] == "ID", f"{document}: {line}"
            assert "--target" not in words or words[words.index("--target") + 1] in set(Target)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_relative_links_lead_to_files(document: str):
    text = (ROOT / document).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        if not target.startswith("https://"):
            assert (ROOT / target).exists(), target


@pytest.mark.parametrize("document", DOCUMENTS)
def test_folders_that_a_document_names_exist(document: str):
    text = (ROOT / document).read_text(encoding="utf-8")
    for folder in re.findall(r"`([a-z]+/)(?:[a-z/*.]*)`", text):
        assert (ROOT / folder).is_dir(), folder


def test_the_licence_is_apache_2():
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Apache License\n                           Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text
    assert 'license = "Apache-2.0"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def test_the_workflow_runs_what_the_readme_says_and_never_pastes_a_name_into_a_shell():
    workflow = YAML(typ="safe").load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))
    jobs = workflow["jobs"]
    assert jobs["test"]["strategy"]["matrix"]["python"] == ["3.11", "3.12", "3.13"]
    runs = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    assert any(run.startswith("make test") for run in runs)
    assert "agentcompile check --format github" in runs
    assert any('agentcompile review "$BASE...HEAD" --format markdown' in run for run in runs)
    assert not any("${{" in run for run in runs)
    assert workflow["permissions"] == {"contents": "read"}


@pytest.mark.parametrize("name", [".pre-commit-hooks.yaml", ".pre-commit-config.yaml"])
def test_hooks_check_entries_with_commands_that_exist(name: str):
    loaded = YAML(typ="safe").load((ROOT / name).read_text(encoding="utf-8"))
    hooks = loaded if isinstance(loaded, list) else [hook for repo in loaded["repos"] for hook in repo["hooks"]]
    entries = {hook["id"]: hook for hook in hooks}
    files = re.compile(entries["agentcompile-check"]["files"])
    assert files.search("principles/gated-mlp/slug.yaml")
    assert files.search("contracts/rope.yaml")
    assert not files.search("tests/contracts/rope.yaml")
    for hook in entries.values():
        words = hook["entry"].removeprefix(".venv/bin/").split()
        if words[0] == "agentcompile":
            command, rest = resolve(words[1:])
            assert set(rest) <= {option for parameter in command.params for option in parameter.opts}
