"""Strict YAML 1.2 with positions: load, locate, edit in place."""

from __future__ import annotations

from kb.yaml.document import Document, Node, walk
from kb.yaml.edit import EditError, append, bump_version, save, set_field, set_modified, set_status
from kb.yaml.emit import emit_document
from kb.yaml.loader import load_bytes, load_file, load_text
from kb.yaml.source import Problem

__all__ = [
    "Document",
    "EditError",
    "Node",
    "Problem",
    "append",
    "bump_version",
    "emit_document",
    "load_bytes",
    "load_file",
    "load_text",
    "save",
    "set_field",
    "set_modified",
    "set_status",
    "walk",
]
