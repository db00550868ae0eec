"""``agentcompile regenerate MODEL_DIR``: kernels for a whole model, one command."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from generator.cli.arguments import check_arch
from kb.cli.failure import Failure
from kb.dtype import Target
from kb.library import library_root, load_library

if TYPE_CHECKING:
    from generator.regenerate.measuring import Decoding
    from generator.regenerate.playing import Played
    from generator.regenerate.tasks import Setup, Task

_PROVIDER_HELP = "anthropic, exchange:FOLDER, or replay:STORE (recorded replies of a kernel store)."


def command(
    model_dir: Annotated[Path, typer.Argument(metavar="MODEL_DIR", help="Folder of a Hugging Face checkpoint.")],
    target: Annotated[Target, typer.Option(help="Target.")] = Target.CUDA,
    provider: Annotated[str, typer.Option(help=_PROVIDER_HELP)] = "anthropic",
    patterns: Annotated[
        str, typer.Option(help="Contract ids, comma-separated; default: all that a decode step calls.")
    ] = "",
    bucket: Annotated[list[int] | None, typer.Option(min=1, help="Batch of a step; repeatable; default 1.")] = None,
    jobs: Annotated[int, typer.Option(min=1, max=32, help="Patterns searched side by side.")] = 1,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show plan and prompts; ask and judge nothing.")] = False,
    out: Annotated[Path | None, typer.Option(help="With --dry-run: write the prompts into this folder.")] = None,
    stale: Annotated[
        bool, typer.Option("--stale", help="Only patterns with kernels whose contract or principles have changed.")
    ] = False,
    work: Annotated[
        Path | None, typer.Option(help="Folder of journals and report; default: .agentcompile/MODEL-TARGET here.")
    ] = None,
    arch: Annotated[str | None, typer.Option(help="With --dry-run: another architecture than this machine's.")] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Most rounds; default and least: the contract's N.")] = None,
    lanes: Annotated[int, typer.Option(min=1, max=16, help="Candidates a round, side by side.")] = 1,
    improve: Annotated[bool, typer.Option("--improve", help="Use all rounds; keep the best.")] = False,
    wait: Annotated[float, typer.Option(help="Seconds to wait for each reply of an exchange folder or batch.")] = 0.0,
    model: Annotated[str | None, typer.Option(help="Model id for anthropic.")] = None,
    thinking: Annotated[str, typer.Option(help="Extended thinking: adaptive, off or a budget in tokens.")] = "adaptive",
    effort: Annotated[str | None, typer.Option(help="Effort: low, medium, high, xhigh or max.")] = None,
    price: Annotated[
        str | None, typer.Option(help="USD for a million tokens: input,cached-input,output; needed for --max-usd.")
    ] = None,
    batch: Annotated[bool, typer.Option("--batch", help="Ask a round's questions as one message batch.")] = False,
    max_tokens_spent: Annotated[int | None, typer.Option(help="Stop each search after this many tokens.")] = None,
    max_usd: Annotated[float | None, typer.Option(help="Stop each search after this much money.")] = None,
    max_seconds: Annotated[float | None, typer.Option(help="Stop each search after this much time.")] = None,
    bandwidth: Annotated[float | None, typer.Option(help="Read bandwidth in GB/s, for the floors in prompts.")] = None,
    workload: Annotated[str, typer.Option(help="iN/oM: decoding that is measured before and after.")] = "i128/o128",
    measure: Annotated[bool, typer.Option("--measure/--no-measure", help="Choose and measure in the engine.")] = True,
    capture: Annotated[
        bool,
        typer.Option("--capture/--no-capture", help="Capture the model's graph and check the patterns against it."),
    ] = True,
    store: Annotated[
        Path | None, typer.Option("--store", help="Kernel store; default: kernels/ of the library.")
    ] = None,
    library: Annotated[Path | None, typer.Option("--library", help="Folder of the library.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan or report as JSON.")] = False,
) -> None:
    """Find a model's patterns, reuse kernels that are right and fast at its dims, search for the others, and measure.

    Run the same command again after an interruption, or when replies have arrived: it goes on where it was, and no
    reply is asked for twice. Exit codes: 0 every pattern has kernels, 1 replies are missing or a pattern has none, 2
    bad usage or a search that could not go on.
    """
    from generator.cli.generate import provider_settings
    from generator.limits import Limits
    from generator.regenerate.measuring import Decoding
    from runtime.cli.bench import parse_workload

    if out is not None and not dry_run:
        raise Failure("--out writes the prompts of a plan; give --dry-run with it")
    decoding = Decoding(*parse_workload(workload))
    setup = _setup(
        model_dir,
        target,
        library,
        store,
        work,
        check_arch(target, arch) if dry_run else None,
        dry_run=dry_run,
        provider=provider,
        buckets=tuple(sorted(set(bucket or [1]))),
        stale=stale,
        rounds=rounds,
        lanes=lanes,
        improve=improve,
        limits=Limits(tokens=max_tokens_spent, usd=max_usd, seconds=max_seconds),
        bandwidth_gbps=bandwidth,
        batch=batch,
        wait=wait,
    )
    names = [name.strip() for name in patterns.split(",") if name.strip()]
    tasks, notes = _plan(setup, names, capture=capture)
    if dry_run:
        _show_plan(setup, tasks, notes, out, as_json)
        return
    settings = provider_settings(model, thinking, effort, price, max_usd) if provider == "anthropic" else None
    _run(setup, tasks, notes, settings, jobs, decoding if measure else None, as_json)


def _setup(
    model_dir: Path,
    target: Target,
    library: Path | None,
    store: Path | None,
    work: Path | None,
    arch: str | None,
    *,
    dry_run: bool,
    **more: Any,
) -> Setup:
    from generator.regenerate.tasks import Setup
    from kb.store import KernelStore
    from runtime.device import assumed_cuda_device, cpu_device, cuda_device, has_cuda
    from runtime.models.spec import ModelError, read_spec

    try:
        spec = read_spec(model_dir)
    except ModelError as error:
        raise Failure(str(error)) from None
    if target is Target.CUDA and not has_cuda() and not dry_run:
        raise Failure(
            "no NVIDIA GPU here: nothing could be judged; --dry-run shows plan and prompts, --target cpu runs"
        )
    if target is Target.CPU:
        device = cpu_device()
    elif has_cuda() and arch is None:
        device = cuda_device()
    else:
        device = assumed_cuda_device(arch or "sm_90")
    loaded = load_library(library_root(library))
    return Setup(
        model_dir=model_dir,
        spec=spec,
        library=loaded,
        store=KernelStore(store if store is not None else loaded.root / "kernels"),
        target=target,
        device=device,
        work=work or Path(".agentcompile") / f"{model_dir.resolve().name}-{target.value}",
        **more,
    )


def _plan(setup: Setup, names: Sequence[str], *, capture: bool) -> tuple[list[Task], list[str]]:
    from generator.regenerate.patterns import UnknownPatternError, patterns_of
    from generator.regenerate.seen import compared, look
    from generator.regenerate.tasks import tasks_of
    from generator.render import RenderError

    try:
        found = patterns_of(setup.spec, setup.library.contracts, setup.buckets, setup.spec.dtype, names)
    except UnknownPatternError as error:
        raise Failure(f"--patterns: {error}") from None
    for pattern in found:
        if pattern.wanted and setup.rounds is not None and setup.rounds < pattern.contract.rounds:
            contract = pattern.contract
            raise Failure(f"--rounds {setup.rounds}: contract {contract.id} asks for at least {contract.rounds}")
    seen, unseen = look(setup.model_dir, setup.library.contracts) if capture else ((), None)
    found, notes = compared(found, seen)
    try:
        return tasks_of(found, setup), [*([unseen] if unseen else []), *notes]
    except RenderError as error:
        raise Failure(str(error)) from None


def _show_plan(setup: Setup, tasks: Sequence[Task], notes: Sequence[str], out: Path | None, as_json: bool) -> None:
    from generator.regenerate.report import plan_data, plan_markdown
    from kb.store.durable import replace_file

    data = plan_data(setup, tasks, notes)
    for task, row in zip(tasks, data["patterns"], strict=True):
        if out is not None and row["prompt"] is not None and task.prompt is not None:
            path = out / f"{task.pattern.contract.id}.{setup.target.value}.md"
            try:
                out.mkdir(parents=True, exist_ok=True)
                replace_file(path, task.prompt.text.encode())
            except OSError as error:
                raise Failure(f"{path}: cannot be written: {error.strerror or error}") from None
            row["prompt"]["file"] = str(path)
    print(json.dumps(data, indent=2) if as_json else plan_markdown(data), end="\n" if as_json else "")


def _run(
    setup: Setup,
    tasks: Sequence[Task],
    notes: list[str],
    settings: Any,
    jobs: int,
    decoding: Decoding | None,
    as_json: bool,
) -> None:
    from generator.live import LiveView
    from generator.providers.protocol import ProviderError
    from generator.regenerate.authors import Authors
    from generator.regenerate.begun import begin, end
    from generator.regenerate.measuring import measure_model
    from generator.regenerate.playing import play
    from generator.regenerate.report import run_data, run_markdown
    from generator.regenerate.tasks import Todo
    from kb.store.durable import replace_file
    from runtime.engine.config import ConfigError
    from runtime.errors import RuntimeFailure
    from runtime.models.spec import ModelError

    started = time.monotonic()
    try:
        authors = Authors(setup, settings)
        begun = begin(setup.work)
        with LiveView(quiet=as_json) as view:
            played = play(tasks, setup, authors, jobs=jobs, tell=view.on_event)
            buckets = []
            if decoding is not None and not _unfinished(played):
                view.on_event({"event": "state", "text": "choosing and measuring in the engine"}, setup.model_dir.name)
                buckets = measure_model(setup, begun, decoding)
            elif decoding is not None:
                notes.append("Nothing was measured yet: run the same command again once the rest is there.")
        data = run_data(setup, played, buckets, notes, begun=begun, seconds=time.monotonic() - started)
        text = run_markdown(data)
        replace_file(setup.work / "report.md", text.encode())
        replace_file(setup.work / "report.json", json.dumps(data, indent=1).encode())
        if not _unfinished(played):
            end(setup.work)
    except (ProviderError, ModelError, ConfigError, RuntimeFailure) as error:
        raise Failure(str(error)) from error
    except OSError as error:
        raise Failure(f"{error.filename or setup.work}: {error.strerror or error}") from None
    print(json.dumps(data, indent=2) if as_json else text, end="\n" if as_json else "")
    if any(p.failed for p in played):
        raise typer.Exit(2)
    if any(p.waiting or (p.task.todo not in (Todo.SKIP, Todo.NOTHING) and not p.covered) for p in played):
        raise typer.Exit(1)


def _unfinished(played: Sequence[Played]) -> bool:
    return any(p.waiting or p.failed for p in played)
