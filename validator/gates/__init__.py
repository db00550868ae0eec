"""The gates, in the order they run: static, compile, interface, numerics, sanitizer, performance."""

from __future__ import annotations

from collections.abc import Sequence

from validator.gates.compile import CompileGate
from validator.gates.context import Context, Event, Gate, Options
from validator.gates.interface import InterfaceGate
from validator.gates.numerics import NumericsGate
from validator.gates.performance import PerformanceGate
from validator.gates.sanitizer import SanitizerGate
from validator.gates.static import StaticGate

GATES: Sequence[Gate] = (
    StaticGate(),
    CompileGate(),
    InterfaceGate(),
    NumericsGate(),
    SanitizerGate(),
    PerformanceGate(),
)

__all__ = ["GATES", "Context", "Event", "Gate", "Options"]
