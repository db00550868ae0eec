"""``compile`` from the command line: a plain module and a small Qwen3, to a folder that builds from a clean place."""

from __future__ import annotations

import json
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from typer.testing import CliRunner

from generator.cli.compile import command
from generator.compile.emit import emit
from generator.compile.pipeline import Settings, compile_module
from generator.compile.subject import load_subject
from generator.compile.tournament import Effort, Rule
from kb.cli.failure import Failure
from kb.dtype import Target
from validator.worker import Worker

ROOT = Path(__file__).parents[3]
app = typer.Typer()
app.command()(command)


def run(*arguments: str) -> tuple[int, dict[str, Any]]:
    done = CliRunner().invoke(app, [*arguments, "--json"])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, json.loads(done.stdout)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("compiled") / "stack"


@pytest.fixture(scope="module")
def stack(folder: Path) -> dict[str, Any]:
    code, data = run(
        "tests.generator.compile.modules:stack", "--untimed", "--plans", "1", "--kinds", "3", "--out", str(folder)
    )
    assert code == 0
    return data


def test_a_plain_module_is_compiled_and_gives_the_same(stack: dict[str, Any]) -> None:
    kept = [kind for kind in stack["kinds"] if kind["kept"] != "framework"]
    assert len(kept) == 3
    assert stack["whole"]["same"]
    assert stack["whole"]["kernels"]
    assert stack["left_out"] == {}
    assert {len(kind["regions"]) for kind in kept} == {2}  # each layer's, judged once
    assert stack["judgements"] == 3


def test_a_kind_beyond_the_budget_keeps_the_framework_and_says_so(stack: dict[str, Any]) -> None:
    (left,) = [kind for kind in stack["kinds"] if kind["kept"] == "framework"]
    assert "budget" in left["reason"]


def test_the_emitted_folder_builds_alone_and_gives_the_same_bits(
    stack: dict[str, Any], folder: Path, tmp_path: Path
) -> None:
    clean = tmp_path / "elsewhere"
    for name in stack["files"]:
        (clean / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(folder / name, clean / name)
    (clean / "build.sh").chmod(0o755)
    done = subprocess.run(["./build.sh"], cwd=clean, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[-1] == "all right"
    assert [line.endswith("the same bits") for line in lines[:-1]] == [True] * 3
    # And the check is one: it finds a result that is not the judged kernel's.
    expected = next(clean.glob("kernels/*/example/out0.bin"))
    expected.write_bytes(bytes(reversed(expected.read_bytes())))
    done = subprocess.run(["build/check"], cwd=clean, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "differs by" in done.stdout


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.outside: list[str] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta",):
            self.open.append(tag)
        self.outside += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        return

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_the_reports_show_every_decision_and_the_region_graph(stack: dict[str, Any], folder: Path) -> None:
    page = _Page()
    html = (folder / "report.html").read_text()
    page.feed(html)
    assert page.open == []
    assert page.outside == []  # nothing is fetched from anywhere
    markdown = (folder / "report.md").read_text()
    words = " ".join(page.words)
    for kind in stack["kinds"]:
        assert kind["label"] in words
        assert kind["label"] in markdown
        assert kind["kept"] in markdown
    drawing = ElementTree.fromstring((folder / "regions.svg").read_text())
    boxes = [g for g in drawing.iter("{http://www.w3.org/2000/svg}g") if g.get("class")]
    assert len(boxes) == len(stack["regions"])
    assert sum(box.get("class") == "kernel" for box in boxes) == 6


def test_again_with_advice_nothing_is_judged_and_what_is_no_longer_written_is_removed(
    stack: dict[str, Any], folder: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    name = next(kind["id"] for kind in stack["kinds"] if kind["label"] == "linear + add")
    said = json.dumps({"regions": {name: {"label": "back to the stream", "order": ["gemv rows=7"]}}})
    reply = {"event": "reply", "key": "advice", "prompt_digest": "", "completion": {"text": said, "model": "model-x"}}
    (tmp_path / "recorded.jsonl").write_text(json.dumps(reply) + "\n")
    once = ("--untimed", "--plans", "1", "--kinds", "1", "--out", str(copy))
    code, data = run(
        "tests.generator.compile.modules:stack", *once, "--advice", f"replay:{tmp_path / 'recorded.jsonl'}"
    )
    assert code == 0
    assert (data["judgements"], data["resumed"]) == (0, 1)
    assert len(list(copy.glob("kernels/*"))) == 1
    assert data["advice"]["labels"] == {name: "back to the stream"}
    assert data["advice"]["ignored"] == [f"{name}: no plan 'gemv rows=7'"]
    assert "back to the stream" in (copy / "report.md").read_text()


def test_sizes_that_may_change_are_arguments_of_the_kernel(tmp_path: Path, worker: Worker) -> None:
    subject = load_subject("tests.generator.compile.modules:normed")
    effort = Effort(whole=False, timed=False, rule=Rule.VALID)
    made = compile_module(subject, Settings(Target.CPU, tmp_path, plans=1, effort=effort, worker=worker))
    assert made.compiled is not None
    assert [d.chosen is not None for d in made.decisions] == [True]
    contract = made.decisions[0].kind.contract
    assert contract is not None
    assert list(contract.contract.dims) == ["s0"]
    for rows in (6, 2, 33):
        x, residual = torch.randn(rows, 64).bfloat16(), torch.randn(rows, 64).bfloat16()
        for got, wanted in zip(made.compiled(x, residual), subject.module(x, residual), strict=True):
            assert torch.allclose(got.float(), wanted.float(), atol=0.05)
    assert made.compiled.fallbacks.total == 0


def test_what_cannot_be_captured_stays_with_the_module_and_its_parts_are_compiled(
    tmp_path: Path, worker: Worker
) -> None:
    subject = load_subject("tests.generator.compile.modules:deciding")
    effort = Effort(whole=False, timed=False, rule=Rule.VALID, kinds=1)
    made = compile_module(subject, Settings(Target.CPU, tmp_path / "judged", plans=1, effort=effort, worker=worker))
    assert list(made.parts) == ["layer"]
    assert made.problems
    assert made.compiled is not None
    assert made.compiled.regions == 1
    assert made.whole is not None
    assert made.whole.same
    large = torch.full((8, 64), 1e8).bfloat16()
    assert torch.equal(made.compiled(large), large)  # the branch is still the module's
    assert made.compiled.fallbacks.total == 0
    odd = torch.randn(3, 64).bfloat16()
    with pytest.warns(UserWarning, match="was captured"):
        assert torch.equal(made.compiled(odd), subject.module(odd))
    assert made.compiled.fallbacks.counts == {"layer: the module": 1}
    assert "forward" not in vars(subject.module.get_submodule("layer"))
    emit(made, tmp_path / "out")
    assert (tmp_path / "out" / "parts" / "layer" / "build.sh").is_file()
    assert "parts/layer/report.md" in (tmp_path / "out" / "report.md").read_text()


def test_a_small_qwen3_is_compiled_from_its_folder(tmp_path: Path) -> None:
    code, data = run(
        str(ROOT / "models" / "tiny-qwen3"), "--untimed", "--plans", "1", "--kinds", "1", "--out", str(tmp_path / "q")
    )
    assert code == 0
    assert data["whole"]["same"]
    (kept,) = [kind for kind in data["kinds"] if kind["kept"] != "framework"]
    assert len(kept["regions"]) == 4  # four layers, judged once
    assert (tmp_path / "q" / "build.sh").is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nowhere",), "neither a folder"),
        (("tests.generator.compile.modules:stack", "--advice", "oracle"), "unknown provider"),
    ],
)
def test_bad_usage_is_one_line(arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(Failure, match=message):
        run(*arguments)
