"""A git repository with a small library in it, made for one test."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

from kb.contract import Contract
from kb.principle import Principle
from kb.skeleton import NewContract, contract_text
from kb.yaml import load_text
from kb.yaml.emit import emit_document

# Nothing of the machine's or the user's configuration may decide a test.
ENVIRONMENT = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "Ann Author",
    "GIT_AUTHOR_EMAIL": "ann@example.org",
    "GIT_COMMITTER_NAME": "Ann Author",
    "GIT_COMMITTER_EMAIL": "ann@example.org",
}


def git(folder: Path, *arguments: str, **environment: str) -> str:
    """Run git in ``folder``; its output."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    done = subprocess.run(
        ["git", "-C", str(folder), "-c", "protocol.file.allow=always", *arguments],
        env={**inherited, **ENVIRONMENT, **environment},
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip()


def principle_fields(entry_id: str = "demo/slug", **changes: Any) -> dict[str, Any]:
    """The fields of a decision that loads; ``changes`` replace, None removes."""
    fields: dict[str, Any] = {
        "id": entry_id,
        "title": "Read the weights once",
        "kind": "decision",
        "status": "accepted",
        "version": 1,
        "patterns": ["op"],
        "when": {"target": ["cuda"], "batch": {"max": 8}},
        "claim": "Keep the row in registers and read every weight once.",
        "why": "Bandwidth decides at one row, so a second pass costs its full time.",
        "effect": {"low": 1.05, "high": 1.2, "of": "the kernel"},
        "evidence": [{"kind": "reasoned", "what": "A second pass doubles the traffic."}],
        "authors": ["Ann Author"],
        "created": "2026-01-01",
        "modified": "2026-01-01",
    }
    fields.update(changes)
    return {name: value for name, value in fields.items() if value is not None}


def principle_yaml(entry_id: str = "demo/slug", **changes: Any) -> str:
    return emit_document(principle_fields(entry_id, **changes))


def principle(entry_id: str = "demo/slug", **changes: Any) -> Principle:
    return Principle.model_validate(principle_fields(entry_id, **changes))


def contract_yaml(entry_id: str = "op") -> str:
    """A contract with num_tokens and hidden_size, x in and out out; accepted."""
    new = NewContract(entry_id, "An operation", "demo", "Maps rows to rows.", "out = round_T(2 * x)")
    return contract_text(new).replace("status: draft", "status: accepted")


def contract(entry_id: str = "op") -> Contract:
    return Contract.model_validate(load_text(contract_yaml(entry_id)).value)


class Checkout:
    """A repository at ``root`` with a library in its folder ``library`` (the root itself unless named)."""

    def __init__(self, root: Path, library: str = ".") -> None:
        root.mkdir(parents=True, exist_ok=True)
        self.root = root
        self.library = root / library
        git(root, "init", "-q", "-b", "main")

    def write(self, path: str, text: str) -> None:
        """Write a file of the library without committing it."""
        place = self.library / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")

    def put(self, entry_id: str = "demo/slug", **changes: Any) -> None:
        """Write a principle to its place."""
        self.write(f"principles/{entry_id}.yaml", principle_yaml(entry_id, **changes))

    def commit(self, message: str, **environment: str) -> str:
        """Commit everything; the new commit's hash."""
        git(self.root, "add", "-A")
        git(self.root, "commit", "-q", "--allow-empty", "-m", message, **environment)
        return git(self.root, "rev-parse", "HEAD")

    def start(self) -> str:
        """One contract and one principle, committed."""
        self.write("contracts/op.yaml", contract_yaml())
        self.put()
        return self.commit("start")
