"""From a hand-written reference and its measurements to drafted principle blocks in prose.

This is the one prompt that holds reference source, and it is kept apart from all others: it has its own template and
entry, its text is never journalled into a search or stored beside a kernel, and what comes back passes the leak check
before it is written. What an author of kernels later reads are principles that a person has accepted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from generator.leak import find_leaks
from generator.prompt import digest_of
from generator.providers.protocol import Ask, Provider
from kb.contract import Contract
from kb.principle import Principle

ATTEMPTS = 3
_BLOCK = re.compile(r"^[ \t]*<block>[ \t]*\n(.*?)^[ \t]*</block>", re.MULTILINE | re.DOTALL)

Lint = Callable[[Mapping[str, Any]], list[str]]


class DistillError(Exception):
    """No acceptable draft came back; the message says what was wrong with the last one."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A block in the form of its YAML file, validated as ``principle``."""

    data: Mapping[str, Any]
    principle: Principle


def distill(
    contract: Contract,
    reference: str,
    measurements: str,
    *,
    record: str,
    provider: Provider,
    author: str,
    today: date,
    lint: Lint,
) -> list[Draft]:
    """Ask for blocks until all are valid, lint-clean and free of the reference's tokens.

    ``lint`` takes a block in the form of its YAML file and returns one line for each finding.
    Raises DistillError after three attempts, ProviderError.
    """
    prefix = _prefix(contract, reference, measurements, record)
    history = ""
    problems: list[str] = []
    for attempt in range(1, ATTEMPTS + 1):
        ask = Ask(f"distill-{contract.id}-{attempt}", prefix, history, digest_of(prefix + history))
        text = provider.ask(ask).text
        drafts, problems = _read(text, contract, reference, author, today, lint)
        if drafts and not problems:
            return drafts
        problems = problems or ["no <block> was found; write each on lines of its own"]
        history = "\n# What was wrong with your last answer\n\n" + "\n".join(f"- {p}" for p in problems) + "\n"
    raise DistillError(f"no acceptable draft in {ATTEMPTS} attempts: {problems[0]}")


def _prefix(contract: Contract, reference: str, measurements: str, record: str) -> str:
    template = (Path(__file__).parent / "templates" / "distill.md").read_text(encoding="utf-8")
    filled = (
        template.replace("{family}", contract.family)
        .replace("{dims}", ", ".join(contract.dims))
        .replace("{record}", record)
    )
    parts = {
        "Contract": f"{contract.title}: {contract.summary.strip()}",
        "Reference": reference.strip(),
        "Measurements": measurements.strip(),
    }
    return filled + "".join(f"\n# {title}\n\n{body}\n" for title, body in parts.items())


def _read(
    text: str, contract: Contract, reference: str, author: str, today: date, lint: Lint
) -> tuple[list[Draft], list[str]]:
    drafts: list[Draft] = []
    problems: list[str] = []
    for number, body in enumerate(_BLOCK.findall(text), start=1):
        try:
            data = YAML(typ="safe", pure=True).load(body)
            if not isinstance(data, dict):
                raise TypeError("expected a mapping")
            fixed = _completed(data, contract, author, today)
            principle = Principle.model_validate(fixed)
        except (YAMLError, ValidationError, TypeError, ValueError) as error:
            problems.append(f"block {number}: {' '.join(str(error).split())[:400]}")
            continue
        leaks = find_leaks(reference, _prose(principle))
        problems += [
            f"block {number}: '{leak.shared[:80]}' stands in the reference too; say it otherwise" for leak in leaks
        ]
        problems += [f"block {number}: {line}" for line in lint(fixed)]
        drafts.append(Draft(fixed, principle))
    return drafts, problems


def _completed(data: dict[str, Any], contract: Contract, author: str, today: date) -> dict[str, Any]:
    """What a draft never decides for itself: status, version, patterns, dates and authors."""
    return {
        **{k: v for k, v in data.items() if k in ("id", "title", "kind")},
        "status": "draft",
        "version": 1,
        "patterns": [contract.id],
        "when": {},
        "effect": "unknown",
        **{k: v for k, v in data.items() if k in ("when", "claim", "why", "effect", "evidence", "retry_when")},
        "authors": [author],
        "created": today.isoformat(),
        "modified": today.isoformat(),
    }


def _prose(principle: Principle) -> str:
    parts = [principle.title, principle.claim, principle.why, principle.retry_when or ""]
    parts += [e.what for e in principle.evidence]
    return "\n".join(parts)
