"""``agentcompile kernels``: look at and look after the kernel store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from kb.cli.failure import Failure
from kb.dtype import Target
from kb.library import library_root
from kb.store import Entry, KernelStore, StoreError
from kb.store import archive as archives

app = typer.Typer(help="Look after the kernel store.", no_args_is_help=True, add_completion=False)

StoreOption = Annotated[
    Path | None, typer.Option("--store", help="Folder of the store; default: kernels/ of the library.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command("ls")
def list_kernels(
    contract: Annotated[str | None, typer.Argument(help="Only kernels of this contract.")] = None,
    target: Annotated[Target | None, typer.Option(help="Only kernels for this target.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Revoked kernels too.")] = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """List kernels, fastest first; damaged entries are named and skipped. Exits 1 when one is damaged."""
    found, damaged = _open(store).entries(contract, target)
    rows = [_row(e) for e in found if everything or e.manifest.status == "admitted"]
    if as_json:
        print(json.dumps({"kernels": rows, "damaged": damaged}, indent=2))
    else:
        _print_table(rows)
        for line in damaged:
            Console(stderr=True).print(f"damaged, skipped: {line}", style="red", markup=False, soft_wrap=True)
    if damaged:
        raise typer.Exit(1)


@app.command("show")
def show(
    digest: Annotated[str, typer.Argument(help="Digest, or its first digits.")],
    source: Annotated[bool, typer.Option("--source", help="Print the kernel's source alone.")] = False,
    transcript: Annotated[
        bool, typer.Option("--transcript", help="Print the transcript alone, as JSON lines.")
    ] = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show one kernel: manifest, gates and timings."""
    entry = _get(store, digest)
    if source:
        print(entry.source, end="" if entry.source.endswith("\n") else "\n")
    elif transcript:
        for event in entry.transcript():
            print(json.dumps(event, ensure_ascii=False))
    elif as_json:
        print(entry.manifest.model_dump_json(indent=2))
    else:
        _print_entry(entry)


@app.command("why")
def why(
    contract: Annotated[str, typer.Argument(help="Contract id.")],
    target: Annotated[Target, typer.Option(help="Target.")] = Target.CUDA,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say which kernel of a contract comes first, and why the others do not."""
    found, damaged = _open(store).entries(contract, target)
    if not found and not damaged:
        raise Failure(f"no kernel for {contract} on {target.value}", 1)
    reasons = [{**_row(e), "why": _reason(e, found)} for e in found] + [
        {"digest": "", "status": "damaged", "why": line} for line in damaged
    ]
    if as_json:
        print(json.dumps(reasons, indent=2))
        return
    for row in reasons:
        print(f"{row['digest'][:12] or '(damaged)':12}  {row['status']:9}  {row['why']}")


@app.command("verify")
def verify(store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Check every entry's seal, digest and transcript. Exits 1 when one is damaged."""
    opened = _open(store)
    damaged = opened.verify()
    count = sum(1 for _ in opened.folders())
    if as_json:
        print(json.dumps({"entries": count, "damaged": damaged}, indent=2))
    else:
        for line in damaged:
            print(f"damaged: {line}")
        print(f"{count} {'entry' if count == 1 else 'entries'}, {len(damaged)} damaged")
    if damaged:
        raise typer.Exit(1)


@app.command("revoke")
def revoke(
    digest: Annotated[str, typer.Argument(help="Digest, or its first digits.")],
    reason: Annotated[str, typer.Option("--reason", help="Why it must not run any more.")],
    store: StoreOption = None,
) -> None:
    """Take a kernel out of use; it stays in the store with the reason."""
    try:
        entry = _open(store).revoke(digest, reason)
    except StoreError as error:
        raise Failure(str(error)) from None
    print(f"revoked {entry.manifest.contract}/{entry.manifest.target}/{entry.digest[:12]}: {entry.manifest.reason}")


@app.command("gc")
def collect(
    removed: Annotated[bool, typer.Option("--revoked", help="Delete revoked kernels too.")] = False,
    max_age: Annotated[float, typer.Option(help="Keep leftovers younger than this, in seconds.")] = 3600.0,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Remove what interrupted writers left behind."""
    opened = _open(store)
    gone = [str(p) for p in opened.collect(max_age=max_age)] if opened.root.exists() else []
    if removed:
        gone += [str(opened.remove(e.digest)) for e in opened.entries()[0] if e.manifest.status == "revoked"]
    if as_json:
        print(json.dumps({"removed": gone}, indent=2))
        return
    for path in gone:
        print(f"removed {path}")
    print(f"{len(gone)} removed")


@app.command("export")
def export(
    output: Annotated[Path, typer.Argument(help="Tar file to write.")],
    digests: Annotated[list[str] | None, typer.Argument(help="Kernels; default: all admitted.")] = None,
    store: StoreOption = None,
) -> None:
    """Write kernels to one file that another store can import."""
    opened = _open(store)
    try:
        chosen = [opened.get(d) for d in digests or []] or [
            e for e in opened.entries()[0] if e.manifest.status == "admitted"
        ]
        if not chosen:
            raise Failure(f"{opened.root} holds no admitted kernel to export", 1)
        archives.export(chosen, output)
    except StoreError as error:
        raise Failure(str(error)) from None
    except OSError as error:
        raise Failure(f"{output}: {error.strerror}") from None
    print(f"{len(chosen)} kernels written to {output}")


@app.command("import")
def import_(archive: Annotated[Path, typer.Argument(help="File made by export.")], store: StoreOption = None) -> None:
    """Add the kernels of an exported file; every entry is checked before any is added."""
    try:
        added, known = archives.import_(_open(store), archive)
    except StoreError as error:
        raise Failure(str(error), 1) from None
    print(f"{len(added)} added, {len(known)} already there")


def _open(store: Path | None) -> KernelStore:
    if store is not None and not store.is_dir():
        raise Failure(f"{store}: no such folder; name the store's folder with --store")
    return KernelStore(store if store is not None else library_root() / "kernels")


def _get(store: Path | None, digest: str) -> Entry:
    try:
        return _open(store).get(digest)
    except StoreError as error:
        raise Failure(str(error)) from None


def _row(entry: Entry) -> dict[str, Any]:
    m = entry.manifest
    last = m.acceptance
    return {
        "contract": m.contract,
        "target": m.target.value,
        "digest": m.digest,
        "status": m.status,
        "authorship": m.origin.authorship,
        "model": m.origin.model,
        "ratio": round(entry.ratio, 3),
        "bandwidth_share": round(max((t.bandwidth_share for t in last.timings), default=0.0), 3),
        "hardware": last.environment.hardware,
        "judged_at": last.judged_at.isoformat(),
        "reason": m.reason,
    }


def _print_table(rows: list[dict[str, Any]]) -> None:
    if not rows:
        print("no kernels")
        return
    table = Table(box=None, pad_edge=False)
    for name in ("contract", "target", "digest", "ratio", "share of floor", "author", "hardware", "status"):
        right = name in ("ratio", "share of floor")
        table.add_column(name, justify="right" if right else "left", no_wrap=name in ("contract", "target", "digest"))
    for r in rows:
        author = f"{r['authorship']} {r['model']}".strip()
        share = f"{r['bandwidth_share']:.0%}" if r["bandwidth_share"] else "-"
        ratio = f"{r['ratio']:.2f}" if r["ratio"] else "-"
        table.add_row(r["contract"], r["target"], r["digest"][:12], ratio, share, author, r["hardware"], r["status"])
    Console().print(table)


def _print_entry(entry: Entry) -> None:
    m, last, console = entry.manifest, entry.manifest.acceptance, Console()
    console.print(f"[bold]{m.contract}[/] for {m.target.value}, contract version {m.contract_version}, {m.status}")
    console.print(f"{m.digest}", markup=False)
    if m.reason:
        console.print(f"reason: {m.reason}", markup=False)
    o = m.origin
    told = f", {len(o.principles)} principles in the prompt, {o.rounds} rounds" if o.authorship == "llm" else ""
    console.print(f"{o.authorship} {o.provider} {o.model}".rstrip() + told, markup=False)
    console.print(f"judged {last.judged_at:%Y-%m-%d} on {last.environment.hardware}", markup=False)
    for gate in last.gates:
        console.print(f"  {gate.gate.value:12} {gate.outcome.value:8} {gate.reason}", markup=False)
    if last.timings:
        table = Table(box=None, pad_edge=False)
        for name in ("dims", "dtype", "µs", "baseline", "µs", "ratio", "95 %", "share of floor"):
            table.add_column(name, no_wrap=name != "dims")
        for t in last.timings:
            dims = " ".join(f"{k}={v}" for k, v in t.dims.items())
            low, high = t.ratio_interval
            numbers = (f"{t.candidate_us:.2f}", t.baseline, f"{t.baseline_us:.2f}", f"{t.ratio:.3f}")
            table.add_row(dims, t.dtype, *numbers, f"{low:.3f}-{high:.3f}", f"{t.bandwidth_share:.0%}")
        console.print(table)
    for verdict in m.verdicts:
        if verdict.at is not None:
            failed = verdict.failed_gate
            word = "accepted" if verdict.accepted else f"rejected by {failed.gate.value}" if failed else "not accepted"
            dims = " ".join(f"{k}={v}" for k, v in verdict.at.items())
            console.print(f"{verdict.judged_at:%Y-%m-%d} {word} at {dims}", markup=False, soft_wrap=True)


def _reason(entry: Entry, rivals: list[Entry]) -> str:
    if entry.manifest.status == "revoked":
        return f"revoked: {entry.manifest.reason}"
    running = [e for e in rivals if e.manifest.status == "admitted"]
    if entry is running[0]:
        return f"first: {entry.ratio:.3f} of the strongest baseline, geometric mean over its timed shapes"
    return f"behind {running[0].digest[:12]}: {entry.ratio:.3f} against {running[0].ratio:.3f}"
