"""The sanitizer gate: compute-sanitizer on CUDA, the address and undefined-behaviour sanitizers on a CPU."""

from __future__ import annotations

from typing import ClassVar

from kb.dtype import Target
from kb.manifest import GateName, GateResult, Outcome
from validator.gates.context import Context, passed_or_failed
from validator.sanitizers import cpu, cuda


class SanitizerGate:
    """The smallest shape under every tool that is installed; skipped, and so recorded, where there is none."""

    name: ClassVar[GateName] = GateName.SANITIZER
    needs_run: ClassVar[bool] = True

    def run(self, context: Context) -> GateResult:
        module = cuda if context.target is Target.CUDA else cpu
        if (reason := module.missing()) is not None:
            return GateResult(gate=self.name, outcome=Outcome.SKIPPED, reason=reason)
        report = module.sanitize(context, lambda message, share: context.progress(self.name, message, share))
        return passed_or_failed(self.name, report.findings, tools=list(report.tools), **report.details)
