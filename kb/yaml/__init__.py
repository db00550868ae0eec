"""Strict YAML 1.2 with positions: load, locate, edit in place."""

from __future__ import annotations

from kb.yaml.document import Document, Node, walk
from kb.yaml.loader import load_bytes, load_file, load_text
from kb.yaml.source import Problem

__all__ = ["Document", "Node", "Problem", "load_bytes", "load_file", "load_text", "walk"]
