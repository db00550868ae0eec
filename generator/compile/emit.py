"""The emitted folder: kernels with wrappers and headers, examples, a build script, and what was decided, as data."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from generator.analyze import report_data
from generator.compile.drawing import region_svg
from generator.compile.emit_sources import Unit, build_text, check_text, header_text, kernel_text, wrapper_text
from generator.compile.pipeline import Compilation
from generator.compile.report_html import html_report
from generator.compile.report_markdown import markdown_report
from generator.compile.tournament import Decision, Judged
from generator.ir import dump
from generator.regions import RegionContract
from kb.contract import Role
from kb.dtype import Target
from kb.store.durable import replace_file
from runtime.kernel import load_kernel
from validator.inputs import allocate_outputs, make_inputs

FORMAT = 1
# An example beyond this is left out: weights of a large model would fill the disk.
_EXAMPLE_BYTES = 64 << 20
_EXAMPLE_SEED = 1


def emit(compilation: Compilation, out: Path) -> list[str]:
    """Write everything into ``out`` (made where it is missing); names of the files, relative to it.

    What an earlier emission wrote and this one does not is removed. Raises OSError.
    """
    out.mkdir(parents=True, exist_ok=True)
    _remove_stale(out)
    files: dict[str, bytes] = {}
    units: list[Unit] = []
    for decision in compilation.decisions:
        if decision.chosen is not None:
            unit, made = _unit(decision, compilation)
            units.append(unit)
            files |= made
    suffix = "cu" if compilation.target is Target.CUDA else "cpp"
    if units:
        files[f"check.{suffix}"] = check_text(units, compilation.target).encode()
        files["build.sh"] = build_text(units, compilation.target, compilation.device.arch).encode()
    files["graph.json"] = _json(dump(compilation.graph))
    files["analysis.json"] = _json(report_data(compilation.analysis, compilation.graph))
    files["regions.svg"] = region_svg(compilation).encode()
    files["report.md"] = markdown_report(compilation).encode()
    files["report.html"] = html_report(compilation).encode()
    data = metadata(compilation)
    data["files"] = sorted(files)
    for place, part in compilation.parts.items():
        emit(part, out / "parts" / place)
    files["metadata.json"] = _json(data)  # last: a folder with it is whole
    for name, content in files.items():
        path = out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, content)
    if units:
        (out / "build.sh").chmod(0o755)
    return sorted(files)


def metadata(compilation: Compilation) -> dict[str, Any]:
    """Everything that was decided, as data."""
    whole = compilation.whole
    return {
        "format": FORMAT,
        "module": compilation.subject.name,
        "target": compilation.target.value,
        "device": {
            "name": compilation.device.name,
            "arch": compilation.device.arch,
            "driver": compilation.device.driver,
            "versions": dict(compilation.device.versions),
        },
        "captured": compilation.captured.is_whole,
        "problems": [str(problem) for problem in compilation.problems],
        "regions": [
            {"id": r.id, "label": r.label, "category": r.category.value, "nodes": len(r.nodes), "blocked": r.blocked}
            for r in compilation.analysis.regions
        ],
        "kinds": [_kind(decision) for decision in compilation.decisions],
        "left_out": dict(compilation.left_out),
        "advice": {
            "provider": compilation.advice.provider,
            "model": compilation.advice.model,
            "labels": dict(compilation.advice.labels),
            "reordered": sorted(compilation.advice.first),
            "ignored": list(compilation.advice.ignored),
            "problem": compilation.advice.problem,
        },
        "whole": None
        if whole is None
        else {
            "same": whole.same,
            "difference": whole.difference,
            "worst": whole.worst,
            "module_us": whole.module_us,
            "compiled_us": whole.compiled_us,
            "ratio": whole.ratio,
            "comparison": whole.comparison.value if whole.comparison else None,
            "kernels": whole.kernels,
            "reason": whole.reason,
        },
        "parts": {path: metadata(part) for path, part in compilation.parts.items()},
        "judgements": compilation.judgements,
        "resumed": compilation.resumed,
    }


def _kind(decision: Decision) -> dict[str, Any]:
    kind, contract = decision.kind, decision.kind.contract
    return {
        "id": kind.id,
        "label": kind.label,
        "regions": [r.id for r in kind.members],
        "contract": contract.id if contract else None,
        "storage": contract.storage.value if contract else None,
        "dims": dict(contract.example) if contract else {},
        "kept": decision.chosen.plan.key if decision.chosen else "framework",
        "candidate": decision.chosen.candidate.digest if decision.chosen else None,
        "reason": decision.reason,
        "legal_plans": len(kind.plans.legal) if kind.plans else 0,
        "removed": [{"plan": r.key, "constraint": r.constraint} for r in kind.plans.removed] if kind.plans else [],
        "judged": [_judged(j) for j in decision.judged],
    }


def _judged(judged: Judged) -> dict[str, Any]:
    timing = judged.timing
    return {
        "plan": judged.plan.key,
        "candidate": judged.candidate.digest,
        "estimate_us": judged.plan.cost.microseconds,
        "valid": not judged.failure,
        "failure": judged.failure,
        "accepted": judged.verdict.accepted,
        "candidate_us": timing.candidate_us if timing else None,
        "framework_us": timing.baseline_us if timing else None,
        "ratio": timing.ratio if timing else None,
        "ratio_interval": list(timing.ratio_interval) if timing else None,
        "comparison": timing.comparison.value if timing else None,
    }


def _unit(decision: Decision, compilation: Compilation) -> tuple[Unit, dict[str, bytes]]:
    chosen, region = decision.chosen, decision.kind.contract
    assert chosen is not None
    assert region is not None
    example = _example(region, chosen, compilation.target)
    sizes = {t.name: _bytes(region, t.name) for t in region.contract.tensors}
    unit = Unit(region.contract, chosen.candidate, region.storage, region.example, sizes, bool(example))
    suffix = "cu" if compilation.target is Target.CUDA else "cpp"
    folder = f"kernels/{unit.name}"
    files = {
        f"{folder}/kernel.{suffix}": kernel_text(unit, compilation.device).encode(),
        f"{folder}/launch.{suffix}": wrapper_text(unit).encode(),
        f"{folder}/{unit.name}.h": header_text(unit).encode(),
        f"{folder}/metadata.json": _json(
            {
                "contract": region.contract.model_dump(mode="json"),
                "storage": region.storage.value,
                "dims": dict(region.example),
                "target": compilation.target.value,
                "plan": chosen.plan.key,
                "launch": chosen.candidate.plan.model_dump(mode="json"),
                "candidate": chosen.candidate.digest,
                "origin": "template",
                "verdict": chosen.verdict.model_dump(mode="json"),
            }
        ),
    }
    return unit, files | {f"{folder}/example/{name}.bin": content for name, content in example.items()}


def _example(region: RegionContract, chosen: Judged, target: Target) -> dict[str, bytes]:
    """Contents of every tensor of one call, outputs as the judged kernel gives them; empty where it is too large."""
    contract, dims = region.contract, region.example
    if contract.bytes_moved(dims, region.storage) > _EXAMPLE_BYTES:
        return {}
    device = target.value
    inputs = make_inputs(contract, dims, region.storage, "normal", _EXAMPLE_SEED, device)
    call = inputs.with_tensors(allocate_outputs(contract, dims, region.storage, device))
    before = {t.name: call.tensors[t.name] for t in contract.tensors if t.role is Role.IN}
    load_kernel(chosen.candidate, contract, dims, region.storage).bind(call.tensors, call.scalars)()
    return {
        name: tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()
        for name, tensor in {**call.tensors, **before}.items()
        if tensor is not None
    }


def _bytes(region: RegionContract, name: str) -> int:
    tensor = region.contract.tensor(name)
    count = tensor.dtype.bind(region.storage).itemsize
    for size in region.contract.shape_of(tensor, region.example):
        count *= size
    return count


def _remove_stale(out: Path) -> None:
    """Remove what an earlier emission listed, and nothing else."""
    try:
        listed: Iterable[str] = json.loads((out / "metadata.json").read_text(encoding="utf-8"))["files"]
        names = [n for n in listed if isinstance(n, str) and not Path(n).is_absolute() and ".." not in Path(n).parts]
    except (OSError, ValueError, KeyError, TypeError):
        return
    (out / "metadata.json").unlink(missing_ok=True)
    for name in names:
        (out / name).unlink(missing_ok=True)
    for folder in {out / Path(n).parts[0] / Path(n).parts[1] for n in names if n.startswith("kernels/")}:
        if not any(p.is_file() for p in folder.rglob("*")):
            shutil.rmtree(folder, ignore_errors=True)


def _json(data: Any) -> bytes:
    return (json.dumps(data, indent=1, ensure_ascii=False, default=str) + "\n").encode()


__all__ = ["emit", "metadata"]
