"""From an author's reply to a candidate: tolerant of prose around the three parts, strict about what is in them."""

from __future__ import annotations

import re
from typing import Any

from pydantic import ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from kb.candidate import Candidate, LaunchPlan
from kb.dtype import Target
from kb.manifest import Finding
from kb.text import ContractId

MAX_REPLY_BYTES = 1_000_000
_FENCE = re.compile(r"\A\s*```[A-Za-z+]*[ \t]*\n(.*?)\n?```\s*\Z", re.DOTALL)


class ReplyError(Exception):
    """A reply that holds no candidate; ``findings`` go back to its author."""

    def __init__(self, findings: list[Finding]) -> None:
        super().__init__("; ".join(f.message for f in findings))
        self.findings = findings


def parse_reply(text: str, contract: ContractId, target: Target) -> Candidate:
    """The candidate in ``text``. Raises ReplyError with one finding for each thing that is wrong."""
    if not text.strip():
        raise ReplyError([_finding("empty-reply", "the reply is empty")])
    if len(text.encode()) > MAX_REPLY_BYTES:
        raise ReplyError([_finding("reply-too-large", f"the reply is over {MAX_REPLY_BYTES} bytes")])
    findings: list[Finding] = []
    source = _part(text, "source", findings)
    plan_text = _part(text, "plan", findings)
    notes = _part(text, "notes", findings, optional=True)
    plan = _plan(plan_text, findings) if plan_text is not None else None
    if findings or source is None or plan is None:
        raise ReplyError(findings)
    try:
        return Candidate(contract=contract, target=target, source=source, plan=plan, notes=(notes or "")[:8000])
    except ValidationError as error:
        raise ReplyError(_pydantic_findings(error, "candidate")) from None


def _part(text: str, tag: str, findings: list[Finding], *, optional: bool = False) -> str | None:
    # Tags count only at the start of a line, so that an author may speak of `<source>` within a sentence.
    opened = [m.end() for m in re.finditer(rf"^[ \t]*<{tag}>", text, re.MULTILINE)]
    closed = [m.start() for m in re.finditer(rf"</{tag}>", text)]
    if not opened:
        if not optional:
            findings.append(_finding("part-missing", f"no <{tag}> part: write it on a line of its own"))
        return None
    if len(opened) > 1:
        findings.append(_finding("part-twice", f"{len(opened)} <{tag}> parts: give exactly one"))
        return None
    ends = [c for c in closed if c >= opened[0]]
    if not ends:
        findings.append(_finding("part-open", f"<{tag}> is never closed: the reply may have been cut off"))
        return None
    body = text[opened[0] : ends[-1] if tag == "source" else ends[0]]
    fenced = _FENCE.match(body)
    body = fenced[1] if fenced else body
    return body.strip("\n") + "\n"


def _plan(text: str, findings: list[Finding]) -> LaunchPlan | None:
    if re.search(r"^\s*<<:|(:|-)\s+[&*!][A-Za-z]", text, re.MULTILINE):
        findings.append(_finding("plan-yaml", "plan: anchors, aliases and tags are not allowed"))
        return None
    try:
        data: Any = YAML(typ="safe", pure=True).load(text)
    except (YAMLError, ValueError, RecursionError) as error:
        problem = " ".join(str(error).split())[:300]
        findings.append(_finding("plan-yaml", f"plan: not YAML: {problem}"))
        return None
    if not isinstance(data, dict):
        findings.append(_finding("plan-shape", "plan: expected a mapping with the key 'launches'"))
        return None
    try:
        return LaunchPlan.model_validate(_rejoined(data))
    except ValidationError as error:
        findings.extend(_pydantic_findings(error, "plan"))
        return None


def _rejoined(data: Any) -> Any:
    """Undo what YAML does to an unquoted ``[ceil_div(n, 8), 1]``: it splits the call at its comma."""
    if isinstance(data, dict):
        pieces: list[Any] = []
        for key, value in data.items():
            if pieces and value is None and _open(pieces[-1][1]):
                pieces[-1][1] = f"{pieces[-1][1]}, {key}"
            else:
                pieces.append([key, value])
        return {key: _rejoined(value) for key, value in pieces}
    if isinstance(data, list):
        joined: list[Any] = []
        for item in data:
            if joined and _open(joined[-1]):
                joined[-1] = f"{joined[-1]}, {item}"
            else:
                joined.append(_rejoined(item))
        return joined
    return data


def _open(value: Any) -> bool:
    return isinstance(value, str) and value.count("(") > value.count(")")


def _pydantic_findings(error: ValidationError, part: str) -> list[Finding]:
    found = []
    for problem in error.errors()[:10]:
        place = ".".join(str(p) for p in problem["loc"]) or part
        found.append(_finding("plan-invalid", f"{part}: {place}: {problem['msg']}"))
    return found


def _finding(code: str, message: str) -> Finding:
    return Finding(code=code, message=message)
