"""``agentcompile why``: which kernel runs at which site of a model, what it was tried against, and why it won."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from kb.cli.failure import Failure


def command(
    model_dir: Annotated[Path, typer.Argument(metavar="MODEL_DIR", help="Folder of a Hugging Face checkpoint.")],
    bucket: Annotated[list[int] | None, typer.Option(min=1, help="Batch size; may be repeated. Default: 1.")] = None,
    context: Annotated[int, typer.Option(min=1, help="Tokens every sequence has while steps are timed.")] = 1024,
    store: Annotated[
        Path | None, typer.Option("--store", help="Kernel store; default: kernels/ of the library.")
    ] = None,
    library: Annotated[Path | None, typer.Option("--library", help="Folder of the library.")] = None,
    dtype: Annotated[str, typer.Option(help="auto, bfloat16, float16 or float32.")] = "auto",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    cache: Annotated[Path | None, typer.Option(help="Folder of selection records; default: the user's cache.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print site by site what runs, what was tried, how long a whole step took with each, and the reason.

    A choice that was measured before, for the same kernels, shapes, device and driver, is read from its record. Last
    come admitted kernels that were not offered, since no verdict lets them run at the dims of a site.
    """
    from kb.library import load_library
    from runtime.cli.models import kernels_of, open_engine, select_kernels
    from runtime.engine.selecting import as_table, target_of
    from runtime.engine.unoffered import unoffered

    buckets = tuple(sorted(set(bucket or [1])))
    engine = open_engine(model_dir, device=device, dtype=dtype, max_batch=max(buckets), buckets=buckets)
    with engine:
        choices = select_kernels(engine, library=library, store=store, context=context, cache=cache)
        root, kernels = kernels_of(library, store)
        left = unoffered(choices, load_library(root).contracts, kernels, target_of(engine.executor))
    rows = as_table(choices)
    if as_json:
        steps = [{"bucket": c.bucket, "library_us": c.library_us, "step_us": c.step_us} for c in choices]
        print(json.dumps({"steps": steps, "rows": rows, "not_offered": [asdict(u) for u in left]}, indent=2))
        return
    if not rows:
        raise Failure("this model has no site that a kernel can be chosen for", 1)
    _print(rows)
    for choice in choices:
        print(
            f"batch {choice.bucket}, {choice.context} tokens each: {choice.library_us / 1e3:.3f} ms a step on the "
            f"library path, {choice.step_us / 1e3:.3f} ms as chosen"
        )
    if left:
        print(f"not offered (agentcompile validate DIGEST --model {model_dir} --record judges a kernel there):")
    for kernel in left:
        dims = ", ".join(f"{name}={value}" for name, value in kernel.dims.items())
        print(f"  {kernel.operation} {kernel.digest[:12]}, {kernel.why}: {dims}")


def _print(rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in ("batch", "site", "implementation", "step µs", "runs", "why"):
        table.add_column(name, justify="right" if name in ("batch", "step µs") else "left")
    last = None
    for row in rows:
        place = (row["bucket"], row["operation"], str(row["dims"]))
        shown = ("", "") if place == last else (str(row["bucket"]), row["operation"])
        last = place
        step = f"{row['step_us']:.1f}" if row["step_us"] is not None else "-"
        table.add_row(*shown, row["candidate"], step, "yes" if row["chosen"] else "", row["why"])
    Console().print(table)
