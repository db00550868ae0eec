"""What ``BASE..HEAD`` means, in the three forms people type."""

from __future__ import annotations

from dataclasses import dataclass

from kb.git.repository import Repository

WORKING_TREE = "working tree"


@dataclass(frozen=True, slots=True)
class Endpoints:
    """The two states to compare, by full hash; ``head`` is None for the working tree, untracked files included."""

    base: str
    head: str | None

    def labels(self) -> tuple[str, str]:
        """Short names for a report."""
        return self.base[:10], WORKING_TREE if self.head is None else self.head[:10]


def endpoints(repository: Repository, text: str) -> Endpoints:
    """Resolve ``text``. Raises GitError when a side names no commit.

    ``A..B`` compares A with B, ``A...B`` compares their common ancestor with B (what a pull request adds), and ``A``
    alone compares A with the working tree. An empty side is HEAD, as in git.
    """
    for separator in ("...", ".."):
        left, found, right = text.partition(separator)
        if found:
            base, head = (repository.resolve(side or "HEAD") for side in (left, right))
            return Endpoints(repository.merge_base(base, head) if separator == "..." else base, head)
    return Endpoints(repository.resolve(text), None)
