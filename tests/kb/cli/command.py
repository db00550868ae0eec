"""Runs ``agentcompile`` in this process, as the entry point would."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from dataclasses import dataclass
from typing import Any
from unittest import mock

from kb.cli.app import main


@dataclass(frozen=True, slots=True)
class Result:
    """What the command printed and its exit code."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def agentcompile(*arguments: object, stdin: str = "") -> Result:
    """Run one command; its standard input is never a terminal."""
    out, err = io.StringIO(), io.StringIO()
    code = 0
    with (
        mock.patch.object(sys, "argv", ["agentcompile", *map(str, arguments)]),
        mock.patch.object(sys, "stdin", io.StringIO(stdin)),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
    return Result(code, out.getvalue(), err.getvalue())
