"""``agentcompile run``: a prompt's continuation, streamed, and how fast it came."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kb.cli.failure import Failure

if TYPE_CHECKING:
    from runtime.engine.engine import Engine, Result
    from runtime.engine.request import Output, SamplingParams
    from runtime.engine.speed import Speed


def command(
    model_dir: Annotated[Path, typer.Argument(metavar="MODEL_DIR", help="Folder of a Hugging Face checkpoint.")],
    prompt: Annotated[str | None, typer.Argument(help="Text to continue; standard input when left out.")] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens to produce.")] = 256,
    temperature: Annotated[float, typer.Option(min=0, help="0 takes the most probable token.")] = 0.0,
    top_k: Annotated[int, typer.Option(min=0, help="Draw from the K most probable tokens; 0 for all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Draw from the most probable tokens that add up to P.")] = 1.0,
    min_p: Annotated[float, typer.Option(help="Drop tokens less than P times as probable as the best.")] = 0.0,
    repetition_penalty: Annotated[float, typer.Option(help="Above 1, tokens already there get less probable.")] = 1.0,
    seed: Annotated[int | None, typer.Option(help="Makes drawn tokens repeatable.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="End before this text; may be given several times.")] = None,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on past the end-of-text token.")] = False,
    chat: Annotated[bool, typer.Option("--chat", help="Put the prompt into the checkpoint's chat template.")] = False,
    dtype: Annotated[str, typer.Option(help="auto, bfloat16, float16 or float32.")] = "auto",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    library_path: Annotated[
        bool, typer.Option("--library-path", help="Use no kernels: the library path alone.")
    ] = False,
    no_fallback: Annotated[bool, typer.Option("--no-fallback", help="Fail when a chosen kernel cannot run.")] = False,
    store: Annotated[
        Path | None, typer.Option("--store", help="Kernel store; default: kernels/ of the library.")
    ] = None,
    library: Annotated[Path | None, typer.Option("--library", help="Folder of the library.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object when done.")] = False,
) -> None:
    """Run a model on a prompt: the text on standard output as it comes, then its speed on standard error."""
    engine, params = _prepare(
        model_dir,
        device,
        dtype,
        no_fallback,
        {
            "max_tokens": max_tokens,
            "temperature": temperature,
            "top_k": top_k,
            "top_p": top_p,
            "min_p": min_p,
            "repetition_penalty": repetition_penalty,
            "seed": seed,
            "stop": tuple(stop or ()),
            "ignore_eos": ignore_eos,
        },
    )
    with engine:
        if not library_path:
            from runtime.cli.models import select_kernels

            select_kernels(engine, library=library, store=store)
        tokens = _tokens(engine, _prompt(prompt), chat)
        result, speed = _generate(engine, tokens, params, stream=not as_json)
        report = _report(engine, result, speed)
    if as_json:
        print(json.dumps(report, indent=2, ensure_ascii=False))
    else:
        print(_summary(report), file=sys.stderr)


def _prepare(
    model_dir: Path, device: str, dtype: str, no_fallback: bool, sampling: dict[str, Any]
) -> tuple[Engine, SamplingParams]:
    """Engine and parameters; every refusal is one line."""
    from runtime.cli.models import open_engine

    engine = open_engine(model_dir, device=device, dtype=dtype, allow_fallback=not no_fallback, max_batch=1)
    from runtime.engine.request import RequestError, SamplingParams

    try:
        return engine, SamplingParams(**sampling)
    except RequestError as error:
        raise Failure(str(error)) from error


def _prompt(given: str | None) -> str:
    if given is not None:
        return given
    if sys.stdin.isatty():
        raise Failure("no prompt; give one after the folder, or pipe it in")
    return sys.stdin.read()


def _tokens(engine: Engine, text: str, chat: bool) -> list[int]:
    from runtime.engine.tokenizer import CheckpointTokenizer
    from runtime.models.spec import ModelError

    assert isinstance(engine.tokenizer, CheckpointTokenizer)
    try:
        return engine.tokenizer.chat([{"role": "user", "content": text}]) if chat else engine.tokenizer.encode(text)
    except ModelError as error:
        raise Failure(str(error)) from error


def _generate(engine: Engine, tokens: list[int], params: SamplingParams, stream: bool) -> tuple[Result, Speed]:
    """Run one request and time it."""
    from runtime.engine.request import RequestError
    from runtime.engine.speed import Speed
    from runtime.sites import FallbackRefusedError

    times: list[float] = []
    results: list[Result] = []

    def on_output(output: Output) -> None:
        times.append(time.perf_counter())
        if stream:
            print(output.text, end="", flush=True)
        if output.finished:
            results.append(engine.result(output.request_id))

    start = time.perf_counter()
    try:
        engine.add_request(tokens, params, on_output=on_output)
    except RequestError as error:
        raise Failure(str(error)) from error
    try:
        for _ in engine.run():
            pass
    except FallbackRefusedError as error:
        raise Failure(str(error)) from error
    if stream:
        print(flush=True)
    return results[0], Speed(len(tokens), len(times), times[0] - start, times[-1] - times[0])


def _report(engine: Engine, result: Result, speed: Speed) -> dict[str, Any]:
    """Everything ``--json`` prints."""
    from kb.dtype import Target
    from runtime.bandwidth import measure_bandwidth
    from runtime.device import device_for
    from runtime.engine.speed import floor_ms, peak_host_bytes

    weights = engine.decoder.weights
    device = device_for(Target.CUDA if weights.embed.is_cuda else Target.CPU)
    peak = peak_host_bytes()  # before the measurement's own buffers
    gbps = measure_bandwidth(device).read_gbps
    floor = floor_ms(engine.spec, weights, 1, speed.mean_context, gbps)
    took = speed.ms_per_token
    return {
        "text": result.text,
        "finish_reason": result.finish_reason.value,
        "prompt_tokens": speed.prompt_tokens,
        "output_tokens": speed.output_tokens,
        "first_token_ms": round(1e3 * speed.first_token_s, 3),
        "ms_per_token": None if took is None else round(took, 3),
        "tokens_per_s": None if speed.tokens_per_s is None else round(speed.tokens_per_s, 2),
        "floor_ms": round(floor, 4),
        "share_of_floor": None if took is None else round(floor / took, 4),
        "read_gbps": round(gbps, 1),
        "device": device.name,
        "dtype": engine.decoder.storage.value,
        "weight_bytes": weights.nbytes,
        "peak_host_bytes": peak,
        "kernels": len(engine.selection.chosen),
        "fallbacks": {str(site): reason for site, reason in engine.selection.fallbacks.items()},
    }


def _summary(report: dict[str, Any]) -> str:
    first = f"{report['output_tokens']} tokens, first after {report['first_token_ms']:.0f} ms"
    if report["ms_per_token"] is None:
        return first
    return (
        f"{first}; {report['tokens_per_s']:.1f} tokens/s, {report['ms_per_token']:.2f} ms a token, "
        f"{report['share_of_floor']:.1%} of the bandwidth floor ({report['floor_ms']:.2f} ms at "
        f"{report['read_gbps']:.0f} GB/s)"
    )
