"""What happened and why, as data and as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from generator.limits import Spent, spent_in
from generator.regenerate.measuring import LIBRARY_PATH, Bucket
from generator.regenerate.patterns import dims_text
from generator.regenerate.playing import Played
from generator.regenerate.standing import Known
from generator.regenerate.tasks import Setup, Task, Todo, events_of
from runtime.engine.selecting import as_table


def plan_data(setup: Setup, tasks: Sequence[Task], notes: Sequence[str]) -> dict[str, Any]:
    """What would be done, for ``--dry-run``."""
    return {**_about(setup), "notes": list(notes), "patterns": [_task_data(task) for task in tasks]}


def run_data(
    setup: Setup,
    played: Sequence[Played],
    buckets: Sequence[Bucket],
    notes: Sequence[str],
    *,
    begun: datetime,
    seconds: float,
) -> dict[str, Any]:
    """Everything about a run. ``begun``: when the regeneration began, of which this may be a later run."""
    spent = [_spent(p) for p in played]
    return {
        **_about(setup),
        "seconds": round(seconds, 1),
        "notes": list(notes),
        "patterns": [_played_data(p, s, begun) for p, s in zip(played, spent, strict=True)],
        "waiting": [f"{p.pattern.contract.id}: {p.waiting}" for p in played if p.waiting],
        "failed": [f"{p.pattern.contract.id}: {p.failed}" for p in played if p.failed],
        "cost": _total(spent).model_dump(mode="json"),
        "sites": as_table([b.choice for b in buckets]),
        "steps": [{"bucket": b.size, "library_us": b.choice.library_us, "step_us": b.choice.step_us} for b in buckets],
        "speeds": [row for b in buckets for row in _speeds(b)],
    }


def plan_markdown(data: Mapping[str, Any]) -> str:
    """The plan for a person."""
    lines = [f"# Plan: {data['model']} on {data['target']}", "", *_head(data), *_patterns(data), "", "## Prompts", ""]
    asked = [p for p in data["patterns"] if p["prompt"]]
    if not asked:
        lines.append("None would be written.")
    else:
        lines += ["| pattern | tokens | blocks | asked | search |", "|---|---|---|---|---|"]
    for p in asked:
        prompt = p["prompt"]
        when = "if no stored kernel is accepted" if p["todo"] == Todo.JUDGE else "yes"
        cells = (p["pattern"], f"{prompt['tokens']} (estimated)", prompt["blocks"], when, f"`{prompt['work']}`")
        lines.append(_row(*cells))
    return "\n".join(lines) + "\n"


def run_markdown(data: Mapping[str, Any]) -> str:
    """The report for a person."""
    lines = [f"# Kernels for {data['model']} on {data['target']}", "", *_head(data), *_patterns(data)]
    for title, key in (("Waiting", "waiting"), ("Failed", "failed")):
        if data[key]:
            lines += ["", f"## {title}", "", *(f"- {line}" for line in data[key])]
    lines += ["", "## Kernels", ""]
    rows = [k for p in data["patterns"] for k in p["kernels"]]
    if rows:
        lines += ["| pattern | kernel | how | dims | outcome |", "|---|---|---|---|---|"]
        for k in rows:
            dims = dims_text(k["dims"]) or "its sweep"
            lines.append(_row(k["pattern"], f"`{k['digest'][:12]}`", k["how"], dims, k["why"]))
    else:
        lines.append("None.")
    judged = [j["accepted"] for p in data["patterns"] for j in p["judged"]]
    if judged:
        lines += ["", f"{sum(judged)} of {len(judged)} judgements of stored kernels at dims new to them accepted."]
    lines += _measured(data)
    cost = data["cost"]
    money = "" if cost["usd"] is None else f", {cost['usd']:.2f} USD"
    word = "reply" if cost["replies"] == 1 else "replies"
    tokens = cost["input_tokens"] + cost["output_tokens"]
    lines += ["", f"{cost['replies']} {word}, {tokens} tokens{money}; this run took {data['seconds']:.0f} s."]
    return "\n".join(lines) + "\n"


def _measured(data: Mapping[str, Any]) -> list[str]:
    if not data["sites"]:
        return []
    lines = [
        "",
        "## Sites",
        "",
        "Every implementation replaces what runs at its site and the whole step is timed, interleaved.",
        "",
        "| batch | site | implementation | step µs | runs | why |",
        "|---|---|---|---|---|---|",
    ]
    for row in data["sites"]:
        step = f"{row['step_us']:.1f}" if row["step_us"] is not None else "-"
        runs = "yes" if row["chosen"] else ""
        lines.append(_row(row["bucket"], row["operation"], row["candidate"], step, runs, row["why"]))
    lines += [
        "",
        "## Speed",
        "",
        "| batch | path | ms a token | tokens/s | against the library |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {s['bucket']} | {s['path']} | {s['ms_per_token']:.3f} | {s['tokens_per_s']:.1f} | {s['speed_up']:.2f}x |"
        for s in data["speeds"]
    ]
    return lines


def _head(data: Mapping[str, Any]) -> list[str]:
    lines = [
        f"- Model: `{data['model_dir']}` ({data['family']}, {data['storage']})",
        f"- Batch: {', '.join(map(str, data['buckets']))}",
        f"- Machine: {data['device']} ({data['arch']})",
        f"- Author: `{data['provider']}`",
        *(f"- {note}" for note in data["notes"]),
    ]
    return [*lines, "", "## Patterns", ""]


def _patterns(data: Mapping[str, Any]) -> list[str]:
    lines = ["| pattern | dims | what is done | why |", "|---|---|---|---|"]
    for p in data["patterns"]:
        dims = "<br>".join(dims_text(d) for d in p["dims"]) or "-"
        lines.append(_row(p["pattern"], dims, _DONE[p["todo"]], p["why"]))
    return lines


def _row(*cells: object) -> str:
    return "| " + " | ".join(" ".join(str(c).split()).replace("|", "\\|") for c in cells) + " |"


_JUDGED = {True: "stored, accepted at these dims", False: "stored, rejected at these dims"}
_DONE = {
    Todo.NOTHING: "kept",
    Todo.JUDGE: "stored kernels judged",
    Todo.SEARCH: "search",
    Todo.RESUME: "search goes on",
    Todo.SKIP: "skipped",
}


def _about(setup: Setup) -> dict[str, Any]:
    return {
        "model": setup.model_dir.resolve().name,
        "model_dir": str(setup.model_dir),
        "family": setup.spec.family,
        "storage": setup.spec.dtype.value,
        "target": setup.target.value,
        "device": setup.device.name,
        "arch": setup.device.arch,
        "provider": setup.provider,
        "buckets": list(setup.buckets),
    }


def _task_data(task: Task) -> dict[str, Any]:
    prompt = task.prompt.manifest if task.prompt is not None else None
    return {
        "pattern": task.pattern.contract.id,
        "found": task.pattern.found,
        "dims": [dict(n.at) for n in task.pattern.needs],
        "todo": task.todo.value,
        "why": task.why,
        "stored": [
            {"digest": k.digest, "dims": dict(k.need.at), "stand": k.stand.value, "why": k.why} for k in task.known
        ],
        "prompt": {
            "tokens": prompt.prefix_tokens,
            "blocks": len(prompt.blocks),
            "digest": prompt.prompt_digest,
            "work": str(task.work),
        }
        if prompt is not None and task.todo not in (Todo.NOTHING, Todo.SKIP)
        else None,
    }


def _played_data(played: Played, spent: Spent, begun: datetime) -> dict[str, Any]:
    name = played.pattern.contract.id
    judged = [
        {"digest": j.known.digest, "dims": dict(j.known.need.at), "accepted": j.accepted, "why": j.why}
        for j in played.judged
    ]
    fresh = {(j["digest"], str(j["dims"])) for j in judged}
    kernels = [
        {
            "pattern": name,
            "digest": j.known.digest,
            "dims": dict(j.known.need.at),
            "how": _JUDGED[j.accepted],
            "why": j.why,
        }
        for j in played.judged
    ]
    kernels += [
        {"pattern": name, "digest": k.digest, "dims": dict(k.need.at), "how": _how(k, begun), "why": k.why}
        for k in played.reused
        if (k.digest, str(dict(k.need.at))) not in fresh
    ]
    for digest in played.admitted:
        attempt = next(a for a in played.attempts if a.candidate is not None and a.candidate.digest == digest)
        why = f"round {attempt.round}, {attempt.ratio:.2f}x the strongest baseline at the slowest shape"
        kernels.append({"pattern": name, "digest": digest, "dims": {}, "how": "admitted", "why": why})
    return {
        **_task_data(played.task),
        "covered": played.covered,
        "judged": judged,
        "kernels": kernels,
        "admitted": list(played.admitted),
        "rounds": max((a.round for a in played.attempts), default=0),
        "ended": played.ended,
        "waiting": played.waiting,
        "failed": played.failed,
        "spent": spent.model_dump(mode="json"),
    }


def _how(known: Known, begun: datetime) -> str:
    """How a kernel that may run at some dims came by that, seen from this regeneration."""
    manifest = known.entry.manifest
    if manifest.verdicts[0].judged_at >= begun:
        return "admitted in an earlier run"
    fresh = any(v.accepted and v.at == dict(known.need.at) and v.judged_at >= begun for v in manifest.verdicts)
    return f"{_JUDGED[True]} in an earlier run" if fresh else "stored, reused"


def _spent(played: Played) -> Spent:
    """What the pattern's search has cost so far, over all its resumptions."""
    return spent_in(events_of(played.task.work)) if played.task.work is not None else Spent()


def _total(spent: Sequence[Spent]) -> Spent:
    prices = [s.usd for s in spent]
    return Spent(
        replies=sum(s.replies for s in spent),
        input_tokens=sum(s.input_tokens for s in spent),
        cached_input_tokens=sum(s.cached_input_tokens for s in spent),
        output_tokens=sum(s.output_tokens for s in spent),
        usd=None if None in prices else sum(p for p in prices if p is not None),
        seconds=sum(s.seconds for s in spent),
    )


def _speeds(bucket: Bucket) -> list[dict[str, Any]]:
    base = bucket.speeds[LIBRARY_PATH]
    return [
        {
            "bucket": bucket.size,
            "path": path,
            "ms_per_token": round(m.ms_per_token, 4),
            "tokens_per_s": round(m.tokens_per_s, 2),
            "speed_up": round(base.ms_per_token / m.ms_per_token, 3),
            "same_tokens": m.tokens == base.tokens,
        }
        for path, m in bucket.speeds.items()
    ]
