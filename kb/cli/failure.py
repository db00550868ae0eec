"""The one error a command raises: one line that says what is wrong, where, and what to do."""

from __future__ import annotations


class Failure(Exception):  # noqa: N818 - the noun the commands use
    """Ends a command with ``exit_code`` and its message on one line of stderr."""

    def __init__(self, message: str, exit_code: int = 2) -> None:
        super().__init__(message)
        self.exit_code = exit_code
