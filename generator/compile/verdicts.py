"""Judgements kept on disk by candidate, so that a compilation that was stopped goes on where it was."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import ValidationError

from kb.manifest import Verdict
from kb.store.durable import replace_file

FORMAT = 1


class VerdictStore:
    """Verdicts under ``folder``, one file a candidate and effort. What cannot be read counts as absent.

    ``where`` says what a verdict depends on besides the candidate (device, library versions); another ``where`` is
    another verdict.
    """

    def __init__(self, folder: Path, where: str) -> None:
        self._folder = folder
        self._where = where

    def find(self, candidate: str, effort: str) -> Verdict | None:
        """The verdict on the candidate of this digest, None where there is none."""
        try:
            data = json.loads(self._path(candidate, effort).read_text(encoding="utf-8"))
            if data["format"] != FORMAT or data["where"] != self._where:
                return None
            verdict = Verdict.model_validate(data["verdict"])
        except (OSError, ValueError, KeyError, TypeError, ValidationError):
            return None
        return verdict if verdict.candidate == candidate else None

    def keep(self, verdict: Verdict, effort: str) -> None:
        """Write a verdict. Raises OSError."""
        self._folder.mkdir(parents=True, exist_ok=True)
        data = {"format": FORMAT, "where": self._where, "verdict": verdict.model_dump(mode="json")}
        replace_file(self._path(verdict.candidate, effort), json.dumps(data, indent=1).encode())

    def _path(self, candidate: str, effort: str) -> Path:
        return self._folder / f"{candidate[:24]}-{effort}.json"
