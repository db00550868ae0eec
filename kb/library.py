"""Where principles, contracts and kernels live, and how they are loaded."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ruamel.yaml import YAML

from kb.contract import Contract
from kb.diagnostic import Diagnostic
from kb.principle import Principle


@dataclass(frozen=True, slots=True)
class Library:
    """Everything that could be read under ``root``; what could not is in ``findings``."""

    root: Path
    principles: Mapping[str, Principle]
    contracts: Mapping[str, Contract]
    findings: tuple[Diagnostic, ...] = ()


def library_root(explicit: Path | None = None) -> Path:
    """The library in use: ``explicit``, else AGENTCOMPILE_LIBRARY, else the checkout or wheel this package is in."""
    if explicit is not None:
        return explicit
    if "AGENTCOMPILE_LIBRARY" in os.environ:
        return Path(os.environ["AGENTCOMPILE_LIBRARY"])
    return Path(__file__).resolve().parent.parent


def load_library(root: Path) -> Library:
    """Load all blocks and contracts under ``root``."""
    yaml = YAML(typ="safe", pure=True)
    principles = {}
    for path in sorted((root / "principles").glob("*/*.yaml")):
        block = Principle.model_validate(yaml.load(path.read_text(encoding="utf-8")))
        principles[block.id] = block
    contracts = {}
    for path in sorted((root / "contracts").glob("*.yaml")):
        contract = Contract.model_validate(yaml.load(path.read_text(encoding="utf-8")))
        contracts[contract.id] = contract
    return Library(root, principles, contracts)
