"""Imports point one way, and a command pays only for what it uses."""

from __future__ import annotations

import ast
import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kb.cli.app import COMMANDS

ROOT = Path(__file__).parent.parent
# Each package may import those before it.
ORDER = ("kb", "runtime", "validator", "generator")
HEAVY = {"torch", "transformers", "safetensors", "cupy", "cuda", "triton", "anthropic"}
FILES = [path for package in ORDER for path in sorted((ROOT / package).rglob("*.py"))]


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """(line, top-level package) of every import in a file, those inside functions included."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name.split(".")[0]) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports here are absolute"
            yield node.lineno, (node.module or "").split(".")[0]


def loaded_by_name(path: Path) -> Iterator[tuple[int, str]]:
    """(line, top-level package) of every module that is imported by a string."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            for argument in node.args:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    yield node.lineno, argument.value.split(".")[0]


def ids(paths: list[Path]) -> list[str]:
    return [path.relative_to(ROOT).as_posix() for path in paths]


def test_there_is_something_to_check():
    assert {path.relative_to(ROOT).parts[0] for path in FILES} == set(ORDER)


@pytest.mark.parametrize("path", FILES, ids=ids(FILES))
def test_imports_point_one_way(path: Path):
    parts = path.relative_to(ROOT).parts
    above = set(ORDER[ORDER.index(parts[0]) + 1 :])
    wrong = [(line, name) for line, name in imported(path) if name in above or name == "tests"]
    if parts[:2] != ("kb", "cli"):
        # The command line is the composition root: it alone reaches upwards, and only by name.
        wrong += [(line, name) for line, name in loaded_by_name(path) if name in above]
    assert wrong == []


@pytest.mark.parametrize(
    "path", [p for p in FILES if p.is_relative_to(ROOT / "kb")], ids=lambda p: p.relative_to(ROOT).as_posix()
)
def test_the_knowledge_base_needs_no_heavy_package(path: Path):
    assert [(line, name) for line, name in imported(path) if name in HEAVY] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_of_the_table_exists(name: str):
    module = importlib.import_module(COMMANDS[name][0])
    assert callable(getattr(module, "command", None)) or hasattr(module, "app")
    assert COMMANDS[name][1].endswith(".")


_PROBE = """
import json, sys
sys.argv = ["agentcompile", *json.loads(sys.argv[1])]
from kb.cli.app import main
try:
    main()
except SystemExit as stop:
    assert stop.code in (0, None), stop.code
print("loaded:", json.dumps(sorted({name.split(".")[0] for name in sys.modules})))
"""


def loaded_after(*arguments: str) -> set[str]:
    """Top-level packages in memory after a command ran in a process of its own."""
    command = [sys.executable, "-c", _PROBE, json.dumps(arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return set(json.loads(done.stdout.splitlines()[-1].removeprefix("loaded: ")))


@pytest.mark.parametrize(
    "arguments", [("check", "--library", str(ROOT)), ("show", "rope"), ("schema", "contract"), ("diff", "HEAD..HEAD")]
)
def test_commands_of_the_knowledge_base_leave_heavy_packages_alone(arguments: tuple[str, ...]):
    if arguments[0] == "diff" and not (ROOT / ".git").exists():
        pytest.skip("not in a git repository")
    assert loaded_after(*arguments) & (HEAVY | {"runtime", "validator", "generator"}) == set()


def test_help_loads_no_command_at_all():
    assert loaded_after("--help") & (HEAVY | {"git", "pydantic", "ruamel", *ORDER[1:]}) == set()
