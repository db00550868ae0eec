"""The compile gate: every image compiles, and the images hold nothing they should not."""

from __future__ import annotations

import itertools
import multiprocessing
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from typing import Any, ClassVar

from kb.candidate import Candidate
from kb.contract import Contract
from kb.dtype import DType, Target
from kb.manifest import Finding, GateName, GateResult
from runtime.compile_cache import CompileCache
from runtime.device import DeviceInfo, assumed_cuda_device
from runtime.errors import CompileError, LoadError
from runtime.kernel import Compiled, compile_candidate
from validator.gates.context import Context, describe, passed_or_failed
from validator.image_check import image_problems
from validator.shapes import Shape
from validator.source.rules import known_constants

_MOST = 20


class CompileGate:
    """The first image alone, so that a source that does not compile says so once; then the rest, side by side.

    Quick judgements compile the first only; the others when they are needed. Where the options name older
    architectures, the first shape and those that are timed must compile for them as well.
    """

    name: ClassVar[GateName] = GateName.COMPILE
    needs_run: ClassVar[bool] = False

    def run(self, context: Context) -> GateResult:
        pairs = context.pairs()
        started = time.monotonic()
        try:
            first = context.compiled(*pairs[0])
            findings = _image_findings(context, first)
            images = [first]
            if not findings and not context.options.quick:
                for done, (shape, storage, compiled) in enumerate(_compile_all(context, pairs[1:]), 2):
                    context.remember(shape, storage, compiled)
                    images.append(compiled)
                    context.progress(self.name, describe(shape, storage), done / len(pairs))
                    findings += _image_findings(context, compiled)
            findings += [f for arch in context.options.also if (f := _elsewhere(context, arch)) is not None]
        except CompileError as error:
            return passed_or_failed(self.name, _compiler_findings(error))
        except LoadError as error:
            return passed_or_failed(self.name, [Finding(code="bad-launch", message=str(error))])
        details: dict[str, Any] = {
            "images": len({c.image.digest for c in images}),
            "compiler": first.image.compiler,
            "arch": first.image.arch,
            "options": list(first.image.options),
            "resources": _resources(images),
            "warnings": [str(m) for m in first.image.messages][:_MOST],
            "seconds": round(time.monotonic() - started, 3),
        }
        if context.options.also:
            details["also"] = list(context.options.also)
        spilled = {
            name: r for name, r in details["resources"].items() if r["spill_store_bytes"] or r["spill_load_bytes"]
        }
        details["warnings"] += [
            f"{name}: {r['spill_store_bytes']} bytes of spill stores, {r['spill_load_bytes']} of loads to local memory"
            for name, r in spilled.items()
        ]
        unique = {(f.code, f.message): f for f in findings}
        return passed_or_failed(self.name, list(unique.values())[:_MOST], **details)


def _compile_all(context: Context, pairs: Iterable[tuple[Shape, DType]]) -> Iterator[tuple[Shape, DType, Compiled]]:
    """Everything left, as it gets ready. NVRTC holds the interpreter while it works, so it gets processes."""
    todo = list(pairs)
    jobs = min(context.options.jobs, len(todo))
    if jobs <= 1:
        for shape, storage in todo:
            yield shape, storage, context.compiled(shape, storage)
        return
    pool: Executor
    if context.target is Target.CUDA:
        pool = ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"))
    else:
        pool = ThreadPoolExecutor(jobs)
    with pool:
        waiting = {
            pool.submit(
                _compile_one, context.candidate, context.contract, shape, storage, context.cache.root, context.device
            ): (shape, storage)
            for shape, storage in todo
        }
        try:
            for future in as_completed(waiting):
                shape, storage = waiting[future]
                yield shape, storage, _result(future.result())
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _compile_one(
    candidate: Candidate, contract: Contract, shape: Shape, storage: DType, root: Any, device: DeviceInfo
) -> Compiled | tuple[str, Any]:
    try:
        return compile_candidate(candidate, contract, shape.dims, storage, cache=CompileCache(root), device=device)
    except CompileError as error:  # its constructor takes more than a message, so it does not travel by itself
        return "compile", (str(error), error.messages, error.log)
    except LoadError as error:
        return "load", str(error)


def _result(outcome: Compiled | tuple[str, Any]) -> Compiled:
    if isinstance(outcome, Compiled):
        return outcome
    kind, content = outcome
    raise CompileError(*content) if kind == "compile" else LoadError(content)


def _elsewhere(context: Context, arch: str) -> Finding | None:
    """What is wrong with the candidate on another architecture, at its first shape and those it is timed at."""
    shape, storage = context.pairs()[0]
    timed = context.options.timed or context.contract.sweep.performance[:1]
    device = assumed_cuda_device(arch)
    try:
        for dims in (shape.dims, *timed):
            compile_candidate(context.candidate, context.contract, dims, storage, cache=context.cache, device=device)
    except CompileError as error:
        told = next(iter(error.errors), None)
        text = f"{told.text[:300]}" if told is not None else error.log.strip()[-600:] or str(error)
        return Finding(code="not-portable", message=f"{arch}: {text}", line=told.line if told is not None else None)
    except LoadError as error:
        return Finding(code="not-portable", message=f"{arch}: {error}")
    return None


def _compiler_findings(error: CompileError) -> list[Finding]:
    findings = [
        Finding(
            code="compile-error",
            message=m.text[:500],
            line=m.line,
            details={"excerpt": m.excerpt[:200]} if m.excerpt else {},
        )
        for m in itertools.islice(error.errors, _MOST)
    ]
    return findings or [Finding(code="compile-error", message=str(error)[:1000], details={"log": error.log[-2000:]})]


def _image_findings(context: Context, compiled: Compiled) -> list[Finding]:
    entries = [launch.entry for launch in context.candidate.plan.launches]
    constants = known_constants(context.candidate, context.contract)
    found = image_problems(compiled.image.path, context.target, entries, constants)
    return [Finding(code=p.code, message=p.message) for p in found[:_MOST]]


def _resources(images: Iterable[Compiled]) -> dict[str, dict[str, int]]:
    """The most any image needs, by entry."""
    worst: dict[str, dict[str, int]] = {}
    names = ("registers", "shared_bytes", "stack_bytes", "spill_store_bytes", "spill_load_bytes")
    for compiled in images:
        for entry, resources in compiled.image.resources.items():
            row = worst.setdefault(entry, dict.fromkeys(names, 0))
            for name in names:
                row[name] = max(row[name], getattr(resources, name))
    return worst
