"""``agentcompile bench``: a model's decoding on the library path, as chosen, and by its peers, in one run."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kb.cli.failure import Failure

if TYPE_CHECKING:
    from runtime.engine.workload import Measured

_WORKLOAD = re.compile(r"i([1-9][0-9]*)/o([1-9][0-9]*)")
_PEERS = ("hf-eager", "hf-compiled")


def command(
    model_dir: Annotated[Path, typer.Argument(metavar="MODEL_DIR", help="Folder of a Hugging Face checkpoint.")],
    workload: Annotated[str, typer.Option(help="iN/oM: prompts of N tokens, M tokens of output.")] = "i128/o128",
    requests: Annotated[int, typer.Option(min=1, help="Requests that arrive at once.")] = 1,
    rounds: Annotated[int, typer.Option(min=1, help="Interleaved repetitions; medians are printed.")] = 3,
    peers: Annotated[str, typer.Option(help=f"Comma-separated, of {', '.join(_PEERS)}; empty for none.")] = "",
    store: Annotated[
        Path | None, typer.Option("--store", help="Kernel store; default: kernels/ of the library.")
    ] = None,
    library: Annotated[Path | None, typer.Option("--library", help="Folder of the library.")] = None,
    dtype: Annotated[str, typer.Option(help="auto, bfloat16, float16 or float32.")] = "auto",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    no_fallback: Annotated[bool, typer.Option("--no-fallback", help="Fail when a chosen kernel cannot run.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure decoding: milliseconds a token and output tokens a second, arms interleaved in one run."""
    prompt, output = parse_workload(workload)
    wanted = [p for p in peers.split(",") if p]
    unknown = [p for p in wanted if p not in _PEERS]
    if unknown:
        raise Failure(f"--peers '{unknown[0]}': known are {', '.join(_PEERS)}")
    if wanted and requests > 1:
        raise Failure("peers are measured with one request; leave --requests or --peers out")
    rows = _measure(
        model_dir,
        prompt,
        output,
        requests,
        rounds,
        wanted,
        store,
        library,
        dtype,
        device,
        no_fallback,
    )
    if as_json:
        print(json.dumps(rows, indent=2))
    else:
        _print(rows, f"{workload}, {requests} request{'s' if requests > 1 else ''}")


def parse_workload(text: str) -> tuple[int, int]:
    """Prompt and output tokens of ``iN/oM``. Raises Failure."""
    matched = _WORKLOAD.fullmatch(text)
    if matched is None:
        raise Failure(f"--workload '{text}': expected iN/oM, such as i128/o512")
    if int(matched[2]) < 2:
        raise Failure(f"--workload '{text}': a token's time is that between two; ask for 2 tokens of output or more")
    return int(matched[1]), int(matched[2])


def _measure(
    model_dir: Path,
    prompt: int,
    output: int,
    requests: int,
    rounds: int,
    peers: list[str],
    store: Path | None,
    library: Path | None,
    dtype: str,
    device: str,
    no_fallback: bool,
) -> list[dict[str, Any]]:
    from runtime.cli.models import open_engine, select_kernels
    from runtime.engine.workload import Workload, engine_arm, measure, peer_arm
    from runtime.sites import FallbackRefusedError

    settings: dict[str, Any] = {
        "max_batch": requests,
        "buckets": (requests,),
        "max_model_len": prompt + output + 1,
        "prefix_cache": False,
        # One engine must leave room for the other: both hold weights and a cache of their own.
        "kv_blocks": 1 + requests * -(-(prompt + output + 1) // 16),
    }
    plain = open_engine(model_dir, device=device, dtype=dtype, **settings)
    chosen = open_engine(model_dir, device=device, dtype=dtype, allow_fallback=not no_fallback, **settings)
    select_kernels(chosen, library=library, store=store, context=prompt + output // 2)
    work = Workload(prompt, output, requests, plain.spec.vocab_size)
    arms = {"library path": engine_arm(plain, work), "chosen kernels": engine_arm(chosen, work)}
    for peer in peers:
        arms[peer] = peer_arm(peer, model_dir, plain, work)
    with plain, chosen:
        try:
            measured = measure(arms, rounds)
        except FallbackRefusedError as error:
            raise Failure(str(error)) from error
        return [_row(name, m, work, measured["library path"]) for name, m in measured.items()]


def _row(name: str, measured: Measured, work: Any, base: Measured) -> dict[str, Any]:
    return {
        "path": name,
        "ms_per_token": round(measured.ms_per_token, 4),
        "output_tokens_per_s": round(measured.tokens_per_s, 2),
        "speed_up": round(base.ms_per_token / measured.ms_per_token, 3),
        "same_tokens": measured.tokens == base.tokens,
        "prompt_tokens": work.prompt,
        "output_tokens": work.output,
        "requests": work.requests,
    }


def _print(rows: list[dict[str, Any]], title: str) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, title=title, title_justify="left")
    for name in ("path", "ms a token", "output tokens/s", "against library", "same tokens"):
        table.add_column(name, justify="left" if name == "path" else "right")
    for r in rows:
        numbers = (f"{r['ms_per_token']:.3f}", f"{r['output_tokens_per_s']:.1f}", f"{r['speed_up']:.2f}x")
        table.add_row(r["path"], *numbers, "yes" if r["same_tokens"] else "no")
    Console().print(table)
