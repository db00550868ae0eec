"""Semantic diff: what changed in the knowledge base, in words a reviewer can act on."""

from kb.diff.library import diff_entry, diff_libraries
from kb.diff.model import Bump, ChangeClass, EntryChange, FieldChange, LibraryDiff, What
from kb.diff.scope import Relation
from kb.library import EntryKind

__all__ = [
    "Bump",
    "ChangeClass",
    "EntryChange",
    "EntryKind",
    "FieldChange",
    "LibraryDiff",
    "Relation",
    "What",
    "diff_entry",
    "diff_libraries",
]
