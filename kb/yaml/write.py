"""Data written as YAML by the program itself; a person's file is edited in place instead, by kb.yaml's editor."""

from __future__ import annotations

import io
from typing import Any

from ruamel.yaml import YAML


def dump_yaml(data: Any, *, flow_leaves: bool = False) -> str:
    """Block-style YAML 1.2 in the data's own key order. ``flow_leaves`` puts innermost collections on one line."""
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = None if flow_leaves else False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    yaml.width = 110
    yaml.allow_unicode = True
    stream = io.StringIO()
    yaml.dump(data, stream)
    return stream.getvalue()
