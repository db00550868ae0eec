"""No path leads from reference or baseline source into a prompt that asks for a kernel."""

from __future__ import annotations

import ast
import dataclasses
from pathlib import Path

import pytest

from generator.leak import find_leaks, tokens, windows
from generator.prompt import Prompt
from generator.render import Request, render
from generator.search import Plan
from kb.dtype import DType, Target
from kb.library import library_root, load_library

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = load_library(library_root())

# Everything that a prompt is made by. distill is the one exception: it asks for prose, and its module says so.
PROMPT_MODULES = ("prompt", "render", "sections", "selection", "history", "search")
FORBIDDEN = ("runtime", "validator", "tests", "bench", "inspect", "importlib")

RUN = 12  # a formula of the contract such as that of SiLU is nine tokens that every kernel repeats


def sources() -> dict[str, str]:
    """Every piece of kernel or reference source in the repository that is no LLM's."""
    folders = ("runtime/baselines", "validator/references", "generator/kernel_templates", "tests/calibration")
    found = {}
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".py", ".cu", ".cpp", ".cuh", ".h"):
                found[str(path.relative_to(ROOT))] = path.read_text(encoding="utf-8")
    return found


def runs_of(corpus: dict[str, str]) -> dict[str, set[tuple[str, ...]]]:
    """Every run of RUN tokens of every source, made once."""
    return {name: windows(tokens(text), RUN) for name, text in corpus.items()}


def sharing(runs: dict[str, set[tuple[str, ...]]], prose: str) -> list[str]:
    """The sources that share a run with ``prose``: only those can have leaked."""
    own = windows(tokens(prose), RUN)
    return [name for name, known in runs.items() if not own.isdisjoint(known)]


def prompts() -> list[Prompt]:
    made = []
    for contract in LIBRARY.contracts.values():
        for target in Target:
            arch = "sm_90" if target is Target.CUDA else "x86_64"
            made.append(render(contract, LIBRARY.principles, Request(target, arch, dtype=DType.BFLOAT16)))
    return made


def test_modules_that_make_prompts_import_neither_runtime_nor_validator() -> None:
    for name in PROMPT_MODULES:
        tree = ast.parse((ROOT / "generator" / f"{name}.py").read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [a.name for a in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
            wrong = [n for n in names if n.split(".")[0] in FORBIDDEN or "kernel_templates" in n]
            assert not wrong, f"generator/{name}.py imports {names}"


def test_modules_that_make_prompts_read_no_file_but_their_templates() -> None:
    for name in PROMPT_MODULES:
        tree = ast.parse((ROOT / "generator" / f"{name}.py").read_text(encoding="utf-8"))
        readers = [
            ast.unparse(node)
            for node in ast.walk(tree)
            if isinstance(node, ast.Call)
            and (getattr(node.func, "attr", "") or getattr(node.func, "id", "")) in ("read_text", "read_bytes", "open")
        ]
        allowed = ["(Path(__file__).parent / 'templates' / name).read_text(encoding='utf-8')"]
        assert readers == (allowed if name == "render" else []), f"generator/{name}.py reads {readers}"


def test_no_prompt_shares_a_run_of_tokens_with_any_reference_or_baseline() -> None:
    corpus = sources()
    assert len(corpus) > 20, "the corpus must hold the references, or this proves nothing"
    runs = runs_of(corpus)
    for prompt in prompts():
        prose = _without_interface(prompt.text)
        for name in sharing(runs, prose):
            leaks = find_leaks(corpus[name], prose, run=RUN)
            assert leaks == [], f"{prompt.manifest.contract} ({prompt.manifest.target}) shares with {name}: {leaks[0]}"


def test_the_check_above_can_fail() -> None:
    corpus = sources()
    name, text = next((n, t) for n, t in corpus.items() if n.endswith(".cu"))
    stolen = "Decisions\n" + text[len(text) // 2 : len(text) // 2 + 300]
    assert name in sharing(runs_of(corpus), stolen)
    assert find_leaks(text, stolen, run=RUN), name


def test_a_search_takes_source_only_from_replies_and_llm_authored_seeds() -> None:
    carriers = {f.name for f in dataclasses.fields(Plan) if "Candidate" in str(f.type)}
    assert carriers == {"seed"}


@pytest.mark.parametrize("authorship", ["hand-written", "template"])
def test_a_kernel_no_llm_wrote_is_refused_as_seed(tmp_path: Path, authorship: str) -> None:
    from typer.testing import CliRunner

    from generator.cli.generate import command
    from kb.cli.failure import Failure
    from kb.store import KernelStore
    from tests.kb.store.fabricate import make_kernel

    candidate, manifest = make_kernel()
    origin = manifest.origin.model_copy(update={"authorship": authorship})
    KernelStore(tmp_path).admit(candidate, manifest.model_copy(update={"origin": origin}))
    import typer

    app = typer.Typer()
    app.command()(command)
    arguments = ["rope", "--target", "cpu", "--seed", candidate.digest, "--store", str(tmp_path)]
    result = CliRunner().invoke(app, arguments)
    assert isinstance(result.exception, Failure)
    assert "only LLM-authored kernels" in str(result.exception)


def _without_interface(text: str) -> str:
    """The prompt without the generated declarations, which every kernel repeats by necessity."""
    start = text.index("## Interface")
    return text[:start] + text[text.index("# Mandate") :]
