"""``agentcompile validate CANDIDATE``: judge a candidate, with a live table of the gates.

A candidate is a folder, or a kernel of the store by its digest; the latter can be judged at the dims of a model, and
what is found recorded in its manifest (validator.cli.stored, validator.extending).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kb.cli.failure import Failure
from kb.cli.library import JsonOption, LibraryOption
from kb.dtype import DType, Target
from kb.manifest import GateName, GateResult, Outcome, Verdict
from kb.store import StoreError
from validator.cli import stored

if TYPE_CHECKING:
    from kb.candidate import Candidate
    from kb.contract import Contract
    from validator.gates.context import Event, Options

_STYLES = {Outcome.PASSED: "green", Outcome.FAILED: "red", Outcome.SKIPPED: "yellow"}
_MOST_FINDINGS = 8


def command(
    candidate: Annotated[
        str, typer.Argument(help="Folder with kernel.cu or kernel.cpp and plan.yaml, or a stored kernel's digest.")
    ],
    contract: Annotated[str | None, typer.Option("--contract", help="Contract id; default: the plan's.")] = None,
    target: Annotated[Target | None, typer.Option("--target", help="cuda or cpu; default: by the source.")] = None,
    dims: Annotated[str | None, typer.Option("--dims", metavar="K=V,…", help="One shape instead of the sweep.")] = None,
    model: Annotated[
        Path | None, typer.Option("--model", help="Stored kernels: at the dims of this checkpoint's decode steps.")
    ] = None,
    bucket: Annotated[
        list[int] | None, typer.Option(min=1, help="Batch of those steps; repeatable; default 1.")
    ] = None,
    record: Annotated[
        bool, typer.Option("--record", help="Stored kernels: add the verdict, whatever it says, to the manifest.")
    ] = False,
    store: Annotated[
        Path | None, typer.Option("--store", help="Kernel store; default: kernels/ of the library.")
    ] = None,
    dtype: Annotated[
        list[DType] | None, typer.Option("--dtype", help="Storage types; default: the contract's.")
    ] = None,
    gates: Annotated[str | None, typer.Option("--gates", metavar="NAMES", help="Only these, comma-separated.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer shapes and inputs, brief timing.")] = False,
    keep_going: Annotated[bool, typer.Option("--keep-going", help="Run later gates after a failure.")] = False,
    seed: Annotated[int | None, typer.Option("--seed", help="Repeat a judgement: hidden shapes and inputs.")] = None,
    timeout: Annotated[float, typer.Option("--timeout", min=0.1, help="Seconds a call may take.")] = 10.0,
    budget: Annotated[float, typer.Option("--budget", min=1, help="Seconds the judgement may take.")] = 900.0,
    report: Annotated[Path | None, typer.Option("--report", help="Write the verdict to this file as JSON.")] = None,
    library: LibraryOption = None,
    as_json: JsonOption = False,
) -> None:
    """Judge a candidate kernel: static, compile, interface, numerics, sanitizer, performance.

    A stored kernel is judged as a whole, or with --dims or --model at those compile-time dims alone; with --record an
    accepting verdict lets engines offer it there.

    Exit codes: 0 no gate failed, 1 a gate failed, 2 bad usage or unreadable input.
    """
    if stored.is_digest(candidate):
        options = _options(None, dtype or [], gates, quick, keep_going, timeout, budget)
        _judge_stored(
            candidate, options, _parse_dims(dims), model, bucket or [], record, store, library, seed, report, as_json
        )
        return
    if record or model is not None:
        raise Failure(f"--{'record' if record else 'model'} is for stored kernels, named by digest; this is a folder")
    judged, found = _read(Path(candidate), contract, target, library)
    options = _options(dims, dtype or [], gates, quick, keep_going, timeout, budget)
    if options.dims is not None:
        try:
            found.check_dims(options.dims)
        except ValueError as error:
            raise Failure(f"--dims: {error}") from None
    for storage in options.storages or ():
        if storage not in found.dtypes.storage:
            names = ", ".join(d.value for d in found.dtypes.storage)
            raise Failure(f"--dtype {storage.value}: {found.id} stores {names}")
    with _view(as_json, found, judged) as show:
        from validator.judge import judge

        verdict = judge(judged, found, options=options, seed=seed, on_event=show)
    _tell(verdict.model_dump(mode="json"), report, as_json)
    if not as_json:
        _summarise(verdict, options.whole(found))
    if verdict.failed_gate is not None:
        raise typer.Exit(1)


def _judge_stored(
    digest: str,
    options: Options,
    dims: dict[str, int] | None,
    model: Path | None,
    buckets: list[int],
    record: bool,
    store: Path | None,
    root: Path | None,
    seed: int | None,
    report: Path | None,
    as_json: bool,
) -> None:
    entry, contract, kernels = stored.find(digest, store, root)
    verdicts = []
    for trial in stored.trials_of(contract, dims, model, buckets, options):
        where = "" if trial.at is None else " at " + " ".join(f"{k}={v}" for k, v in trial.at.items())
        with _view(as_json, contract, entry.candidate, where) as show:
            from validator.extending import ExtensionError, extend, worth_recording

            try:
                into = kernels if record else None
                verdict = extend(entry, contract, trial, store=into, options=options, seed=seed, on_event=show)
            except (ExtensionError, StoreError, OSError) as error:
                raise Failure(str(error)) from None
        verdicts.append(verdict)
        if not as_json:
            _summarise(verdict, options.whole(contract))
            kept = record and worth_recording(verdict)
            print(f"{'recorded' if kept else 'not recorded'}: {entry.digest[:12]}{where}")
    _tell([v.model_dump(mode="json") for v in verdicts], report, as_json)
    if any(v.failed_gate is not None for v in verdicts):
        raise typer.Exit(1)


def _tell(data: Any, report: Path | None, as_json: bool) -> None:
    text = json.dumps(data, indent=2, allow_nan=True)
    if report is not None:
        try:
            report.write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            raise Failure(f"{report}: cannot be written: {error.strerror or error}") from None
    if as_json:
        typer.echo(text)


def _read(
    folder: Path, contract_id: str | None, target: Target | None, root: Path | None
) -> tuple[Candidate, Contract]:
    from kb.candidate_files import CandidateFileError, read_candidate
    from kb.library import library_root, load_library

    try:
        candidate = read_candidate(folder, contract_id, target)
    except CandidateFileError as error:
        raise Failure(str(error)) from None
    library = load_library(library_root(root))
    if candidate.contract not in library.contracts:
        known = ", ".join(sorted(library.contracts)) or "none"
        raise Failure(f"no contract '{candidate.contract}' in {library.root} (known: {known})")
    return candidate, library.contracts[candidate.contract]


def _options(
    dims: str | None,
    storages: list[DType],
    gates: str | None,
    quick: bool,
    keep_going: bool,
    timeout: float,
    budget: float,
) -> Options:
    from runtime.compile_cache import default_root
    from validator.gates.context import Options

    return Options(
        gates=_gate_names(gates),
        keep_going=keep_going,
        quick=quick,
        dims=_parse_dims(dims),
        storages=tuple(storages) or None,
        hidden=2 if quick else 4,
        call_seconds=timeout,
        budget_seconds=budget,
        turns=default_root() / "turns",
    )


def _parse_dims(text: str | None) -> dict[str, int] | None:
    if text is None:
        return None
    dims = {}
    for part in text.split(","):
        name, equals, value = part.strip().partition("=")
        if not equals or not value.strip().isdigit():
            raise Failure(f"--dims: '{part.strip()}' is not name=number")
        dims[name.strip()] = int(value)
    return dims


def _gate_names(text: str | None) -> tuple[GateName, ...]:
    if text is None:
        return tuple(GateName)
    try:
        return tuple(GateName(word.strip()) for word in text.split(","))
    except ValueError:
        names = ", ".join(g.value for g in GateName)
        raise Failure(f"--gates: '{text}' holds an unknown gate (there are {names})") from None


@contextmanager
def _view(quiet: bool, contract: Contract, candidate: Candidate, where: str = "") -> Iterator[Callable[[Event], None]]:
    """A table that follows the gates: redrawn in place on a terminal, elsewhere a line for each gate at its end."""
    if quiet:
        yield lambda _: None
        return
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True)
    rows = dict.fromkeys(GateName, ("", "", ""))
    title = f"{contract.id} v{contract.version}, {candidate.target.value}, candidate {candidate.digest[:12]}{where}"
    if not console.is_terminal:
        console.print(title)
        yield lambda event: _print_line(console, event)
        return
    with Live(_table(title, rows), console=console, refresh_per_second=8) as live:

        def show(event: Event) -> None:
            if event.result is not None:
                rows[event.gate] = _row(event.result)
            else:
                share = "" if event.share is None else f"{event.share:4.0%}"
                rows[event.gate] = ("[cyan]running[/]", share, event.message)
            live.update(_table(title, rows))

        yield show


def _table(title: str, rows: dict[GateName, tuple[str, str, str]]) -> Any:
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for name in ("gate", "", "time", ""):
        table.add_column(name, no_wrap=name != "")
    for gate, (state, seconds, text) in rows.items():
        table.add_row(gate.value, state, seconds, text)
    return table


def _row(result: GateResult) -> tuple[str, str, str]:
    from rich.markup import escape

    if result.outcome is Outcome.SKIPPED:
        text = result.reason
    elif result.findings:
        text = f"{result.findings[0].code}: {result.findings[0].message}"
    else:
        text = _measured(result)
    return f"[{_STYLES[result.outcome]}]{result.outcome.value}[/]", f"{result.seconds:.1f} s", escape(text)


def _measured(result: GateResult) -> str:
    """What a passed gate has to say, in a few words."""
    details = result.details
    if result.gate is GateName.COMPILE:
        return f"{details.get('images', 0)} images" + (f", {len(w)} warnings" if (w := details.get("warnings")) else "")
    if result.gate is GateName.NUMERICS:
        share = float(details.get("worst_share_of_allowed", 0.0))
        return f"{details.get('inputs', 0)} inputs, worst error {share:.0%} of what is allowed"
    if result.gate is GateName.SANITIZER:
        return ", ".join(details.get("tools", []))
    if result.gate is GateName.PERFORMANCE:
        return ", ".join(f"{name}: {'yes' if good else 'no'}" for name, good in details.get("variants", {}).items())
    return ""


def _print_line(console: Any, event: Event) -> None:
    if event.result is not None:
        state, seconds, text = _row(event.result)
        console.print(f"{event.gate.value:<12} {state} {seconds} {text}", soft_wrap=True)


def _summarise(verdict: Verdict, whole: bool) -> None:
    from rich.console import Console
    from rich.markup import escape

    console = Console(soft_wrap=True)
    for gate in verdict.gates:
        for finding in gate.findings[:_MOST_FINDINGS]:
            line = f"line {finding.line}: " if finding.line is not None else ""
            shape = " ".join(f"{k}={v}" for k, v in (finding.shape or {}).items())
            console.print(
                f"[bold]{finding.code}[/] {escape(line + finding.message)}" + (f"\n    at {shape}" if shape else "")
            )
        if len(gate.findings) > _MOST_FINDINGS:
            console.print(f"and {len(gate.findings) - _MOST_FINDINGS} more")
    for timing in verdict.timings:
        shape = " ".join(f"{k}={v}" for k, v in timing.dims.items())
        console.print(
            f"{timing.candidate_us:9.2f} us, {timing.baseline} {timing.baseline_us:.2f} us, ratio {timing.ratio:.3f} "
            f"({timing.comparison.value}), {timing.bandwidth_share:.0%} of bandwidth: {shape}"
        )
    layers = ", ".join(verdict.environment.sandbox) or "none"
    if verdict.accepted:
        word = "accepted"
    elif verdict.failed_gate is not None:
        word = f"not accepted: the {verdict.failed_gate.gate.value} gate failed"
    elif not whole:
        word = "no gate failed; acceptance needs the whole trial (no --quick, --dims or --dtype)"
    else:
        skipped = ", ".join(g.gate.value for g in verdict.gates if g.outcome is Outcome.SKIPPED)
        word = f"no gate failed; not accepted, as these were skipped: {skipped}"
    console.print(f"sandbox: {layers}\nseed {verdict.seed}: {word}")
