"""The one error of this package."""

from __future__ import annotations


class GitError(Exception):
    """Git cannot answer; the message is one line that says why and what to do."""
