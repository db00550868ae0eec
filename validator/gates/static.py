"""The static gate: what the source may not contain, and the entries it must."""

from __future__ import annotations

from typing import ClassVar

from kb.manifest import Finding, GateName, GateResult
from validator.gates.context import Context, passed_or_failed
from validator.source.rules import problems_of

_MOST = 30


class StaticGate:
    """Rules over the source's tokens; nothing is compiled or run."""

    name: ClassVar[GateName] = GateName.STATIC
    needs_run: ClassVar[bool] = False

    def run(self, context: Context) -> GateResult:
        problems = problems_of(context.candidate, context.contract)
        findings = [Finding(code=p.code, message=p.message, line=p.line) for p in problems[:_MOST]]
        return passed_or_failed(self.name, findings, bytes=len(context.candidate.source.encode()), found=len(problems))
