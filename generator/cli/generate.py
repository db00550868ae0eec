"""``agentcompile generate``: rounds for one contract, from prompt to admitted kernel."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from generator.cli.arguments import (
    ALSO_HELP,
    BLOCKS_HELP,
    DIMS_HELP,
    check_also,
    check_arch,
    parse_dims,
    resolve_contract,
)
from generator.selection import Blocks
from kb.cli.failure import Failure
from kb.dtype import DType, Target
from kb.library import library_root, load_library

if TYPE_CHECKING:
    from generator.providers.anthropic import Settings
    from generator.search import Result


def command(
    contract: Annotated[str, typer.Argument(help="Contract id.")],
    target: Annotated[Target, typer.Option(help="Target.")] = Target.CUDA,
    provider: Annotated[str, typer.Option(help="anthropic, exchange:FOLDER or replay:FILE.")] = "anthropic",
    work: Annotated[
        Path | None, typer.Option(help="Folder of this search; default: .agentcompile/CONTRACT-TARGET here.")
    ] = None,
    arch: Annotated[str | None, typer.Option(help="Architecture; default: this machine's.")] = None,
    also: Annotated[list[str] | None, typer.Option(help=ALSO_HELP)] = None,
    dims: Annotated[list[str] | None, typer.Option(help=DIMS_HELP)] = None,
    dtype: Annotated[DType, typer.Option(help="Storage dtype that is timed.")] = DType.BFLOAT16,
    feature: Annotated[list[str] | None, typer.Option(help="A feature the model has; may be repeated.")] = None,
    blocks: Annotated[Blocks, typer.Option(help=BLOCKS_HELP)] = Blocks.ALL,
    rounds: Annotated[int | None, typer.Option(help="Most rounds; default and least: the contract's N.")] = None,
    lanes: Annotated[int, typer.Option(min=1, max=16, help="Candidates a round, side by side.")] = 1,
    improve: Annotated[bool, typer.Option("--improve", help="Use all rounds; keep the best.")] = False,
    seed: Annotated[str | None, typer.Option(help="Digest of an admitted kernel to start from.")] = None,
    wait: Annotated[float, typer.Option(help="Seconds to wait for each reply of an exchange folder.")] = 0.0,
    model: Annotated[str | None, typer.Option(help="Model id for anthropic.")] = None,
    thinking: Annotated[str, typer.Option(help="Extended thinking: adaptive, off or a budget in tokens.")] = "adaptive",
    effort: Annotated[str | None, typer.Option(help="Effort: low, medium, high, xhigh or max.")] = None,
    price: Annotated[
        str | None, typer.Option(help="USD for a million tokens: input,cached-input,output; needed for --max-usd.")
    ] = None,
    batch: Annotated[bool, typer.Option("--batch", help="Ask a round's questions as one message batch.")] = False,
    max_tokens_spent: Annotated[int | None, typer.Option(help="Stop after this many tokens.")] = None,
    max_usd: Annotated[float | None, typer.Option(help="Stop after this much money.")] = None,
    max_seconds: Annotated[float | None, typer.Option(help="Stop after this much time.")] = None,
    bandwidth: Annotated[float | None, typer.Option(help="Read bandwidth in GB/s, for the floor in µs.")] = None,
    store: Annotated[
        Path | None, typer.Option("--store", help="Kernel store; default: kernels/ of the library.")
    ] = None,
    library: Annotated[Path | None, typer.Option("--library", help="Folder of the library.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Run generation rounds for one contract; run the same command again to go on after an interruption."""
    from generator.limits import Limits
    from generator.render import Request
    from generator.run import SearchFailedError, run_search
    from generator.search import Plan
    from kb.store import KernelStore, StoreError

    loaded = load_library(library_root(library))
    chosen = resolve_contract(loaded, contract)
    if rounds is not None and rounds < chosen.rounds:
        raise Failure(f"--rounds {rounds}: contract {contract} asks for at least {chosen.rounds}")
    kernels = KernelStore(store if store is not None else loaded.root / "kernels")
    try:
        start = kernels.get(seed) if seed else None
    except StoreError as error:
        raise Failure(f"--seed: {error}") from None
    if start is not None and start.manifest.origin.authorship != "llm":
        raise Failure(f"--seed {seed}: only LLM-authored kernels may be shown to an author")
    plan = Plan(
        contract=chosen,
        principles=loaded.principles,
        request=Request(
            target=target,
            arch=check_arch(target, arch),
            dims=tuple(parse_dims(d, chosen) for d in dims or []),
            dtype=dtype,
            features=frozenset(feature) if feature else None,
            bandwidth_gbps=bandwidth,
            kinds=blocks.kinds,
            also=check_also(target, also),
        ),
        rounds=rounds or chosen.rounds,
        lanes=lanes,
        improve=improve,
        limits=Limits(tokens=max_tokens_spent, usd=max_usd, seconds=max_seconds),
        seed=start.candidate if start else None,
        batch=batch,
        wait=wait,
    )
    try:
        result, admitted = run_search(
            plan,
            provider=provider,
            settings=provider_settings(model, thinking, effort, price, max_usd) if provider == "anthropic" else None,
            wait=wait,
            work=work or Path(".agentcompile") / f"{contract}-{target.value}",
            store=kernels,
            quiet=as_json,
        )
    except SearchFailedError as error:
        raise Failure(str(error), error.exit_code) from None
    _report(result, admitted, as_json)
    if not admitted:
        raise typer.Exit(1)


def provider_settings(
    model: str | None, thinking: str, effort: str | None, price: str | None, max_usd: float | None
) -> Settings:
    """The Messages API's settings from a command's options. Raises Failure."""
    from generator.providers.anthropic import DEFAULT_MODEL, Price, Settings

    if thinking not in ("adaptive", "off") and not thinking.isdigit():
        raise Failure(f"--thinking '{thinking}': expected adaptive, off or a number of tokens")
    if effort not in (None, "low", "medium", "high", "xhigh", "max"):
        raise Failure(f"--effort '{effort}': expected low, medium, high, xhigh or max")
    if max_usd is not None and price is None:
        raise Failure("--max-usd needs --price: without one the cost of a reply is not known")
    try:
        numbers = [float(part) for part in price.split(",")] if price else []
        cost = Price(*numbers) if numbers else None
    except (TypeError, ValueError):
        raise Failure(f"--price '{price}': expected three numbers, input,cached-input,output") from None
    return Settings(
        model=model or DEFAULT_MODEL,
        thinking=int(thinking) if thinking.isdigit() else thinking,  # type: ignore[arg-type]
        effort=effort,  # type: ignore[arg-type]
        price=cost,
    )


def _report(result: Result, admitted: list[str], as_json: bool) -> None:
    data: dict[str, Any] = {
        "reason": result.reason,
        "admitted": admitted,
        "rounds": max((a.round for a in result.attempts), default=0),
        "best": result.best.candidate.digest if result.best and result.best.candidate else None,
        "ratio": round(result.best.ratio, 4) if result.best else None,
        "spent": result.spent.model_dump(mode="json"),
    }
    if as_json:
        print(json.dumps(data, indent=2))
        return
    spent = result.spent
    cost = f", {spent.usd:.2f} USD" if spent.usd else ""
    print(f"ended: {result.reason}")
    print(f"{spent.replies} replies, {spent.tokens} tokens{cost}, {spent.seconds:.0f} s")
    for digest in admitted:
        print(f"admitted {digest}")
    if not admitted:
        print("no candidate was accepted; the journal holds every prompt, reply and diagnostic")
