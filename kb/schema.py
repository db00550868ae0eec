"""JSON Schema of the two sorts of entries, for editors: draft 07, which every YAML language server understands."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel

from kb.contract import Contract
from kb.library import EntryKind
from kb.principle import Principle

_MODELS: dict[EntryKind, type[BaseModel]] = {EntryKind.PRINCIPLE: Principle, EntryKind.CONTRACT: Contract}
_DRAFT = "http://json-schema.org/draft-07/schema#"


def schema_text(kind: EntryKind) -> str:
    """The schema as it is written to ``site/schema/<kind>.json``: the same bytes for the same models."""
    schema = _convert(_MODELS[kind].model_json_schema(mode="validation"))
    title = f"AgentCompile {kind.value}"
    return json.dumps({"$schema": _DRAFT, **schema, "title": title}, indent=2, sort_keys=True, ensure_ascii=True) + "\n"


def _convert(node: Any, *, inside_map: bool = False) -> Any:
    """Draft 2020-12, which pydantic writes, to draft 07.

    ``inside_map``: the node's keys are names of properties or definitions, not keywords.
    """
    if isinstance(node, list):
        return [_convert(item) for item in node]
    if not isinstance(node, dict):
        return node
    if inside_map:
        return {key: _convert(value) for key, value in node.items()}
    found: dict[str, Any] = {}
    for key, value in node.items():
        if key in ("$defs", "properties", "patternProperties"):
            found["definitions" if key == "$defs" else key] = _convert(value, inside_map=True)
        elif key == "$ref":
            found[key] = value.replace("#/$defs/", "#/definitions/")
        elif key in ("default", "enum", "const", "examples"):
            found[key] = value
        elif key != "title":  # generated from the field's name, and noise in an editor's pop-up
            found[key] = _convert(value)
    if "$ref" in found and len(found) > 1:
        # Draft 07 ignores everything beside a $ref.
        found["allOf"] = [{"$ref": found.pop("$ref")}]
    return found
