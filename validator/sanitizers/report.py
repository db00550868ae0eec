"""What a sanitizer run found."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kb.manifest import Finding

Progress = Callable[[str, float], None]


@dataclass(frozen=True, slots=True)
class Report:
    """``tools`` are those that ran to the end; ``findings`` come from them."""

    tools: tuple[str, ...]
    findings: tuple[Finding, ...]
    details: Mapping[str, Any] = field(default_factory=dict)
