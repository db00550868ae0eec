"""``agentcompile site`` as a person meets it."""

from __future__ import annotations

import re
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from kb.cli.app import load_command
from kb.site.content import Content, read_content
from kb.site.hand_written import SiteError, pages
from tests.kb.site.conftest import HAS_MATERIAL
from tests.kb.site.fabricate import ROOT, copy_library

needs_material = pytest.mark.skipif(not HAS_MATERIAL, reason="mkdocs-material is not installed (extra 'docs')")


def run(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kb", "site", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=280)


@needs_material
def test_an_error_is_one_line_and_an_exit_code(tmp_path: Path):
    (tmp_path / "mine.txt").write_text("keep", encoding="utf-8")
    done = run("build", "--output", str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "name an empty folder with --output" in done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["mine.txt"]


@needs_material
def test_serve_builds_and_answers_on_this_machine_alone(tmp_path: Path):
    library = copy_library(tmp_path / "library", ("gated-mlp",))
    command = [sys.executable, "-m", "kb", "site", "serve", "--port", "0", "--library", str(library)]
    process = subprocess.Popen(
        [*command, "--output", str(tmp_path / "site")], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(line.split(" ")[0], timeout=30) as answer:
            assert b"Knowledge that compiles" in answer.read()
    finally:
        process.terminate()
        process.wait(timeout=30)
        process.stdout.close()


DOCUMENTED = [
    (path.name, *match)
    for path in sorted((ROOT / "site" / "docs").rglob("*.md"))
    for match in re.findall(r"agentcompile ([a-z]+)((?: [A-Za-z0-9_./:…-]+)*)", path.read_text(encoding="utf-8"))
]


@pytest.mark.parametrize(("page", "command", "rest"), DOCUMENTED)
def test_the_guide_names_only_commands_and_options_that_exist(page: str, command: str, rest: str):
    loaded = load_command(command)
    words = rest.split()
    if hasattr(loaded, "commands") and words:
        loaded = loaded.commands[words[0]]
    known = {name for parameter in loaded.params for name in (*parameter.opts, *parameter.secondary_opts)}
    assert {word for word in words if word.startswith("--")} <= known, page


def test_a_marker_that_nothing_generates_is_an_error(tmp_path: Path):
    (tmp_path / "index.md").write_text("# Title\n\n<!-- generated: miracles -->\n", encoding="utf-8")
    with pytest.raises(SiteError, match="nothing generates 'miracles'"):
        dict(pages(tmp_path, read_content(ROOT)))


def test_a_marker_without_its_record_names_the_record(tmp_path: Path):
    (tmp_path / "index.md").write_text("# Title\n\n<!-- generated: bandwidth-table -->\n", encoding="utf-8")
    content = read_content(ROOT)
    without = Content(content.library)
    with pytest.raises(SiteError, match="h200-ceilings"):
        dict(pages(tmp_path, without))
