"""The command reference, from the commands' own help.

Commands are asked by duck typing: typer carries a copy of click of its own, whose classes are not click's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from kb.site import text

PAGE = "reference/commands.md"


def page(commands: Mapping[str, Any]) -> str:
    """One section a command, its arguments and options as tables. ``commands`` are click commands by name."""
    parts = [
        "Exit codes: 0 fine, 1 findings or a gate failed, 2 bad usage or unreadable input. An error is one line that "
        "says what is wrong and what to do; `agentcompile --debug COMMAND` adds the traceback."
    ]
    for name, command in commands.items():
        parts += _section(f"agentcompile {name}", command, 2)
    return text.page("Commands", parts)


def _section(path: str, command: Any, level: int) -> Iterator[str]:
    yield f"{'#' * level} {text.inline(path)}"
    yield from _help(command.help or command.short_help or "")
    context = command.context_class(command, info_name=path)
    if hasattr(command, "list_commands"):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            if below is not None and not below.hidden:
                yield from _section(f"{path} {name}", below, level + 1)
        return
    usage = " ".join(command.collect_usage_pieces(context))
    yield text.fence(f"{path} {usage}".strip(), "sh")
    rows = [_parameter(p, context) for p in command.params if not getattr(p, "hidden", False)]
    if rows:
        yield text.table(("argument or option", "value", "what it does", "default"), rows)


def _help(help_text: str) -> Iterator[str]:
    for paragraph in re.split(r"\n\s*\n", help_text.replace("\b", "").strip()):
        yield text.inline(paragraph)


def _parameter(parameter: Any, context: Any) -> tuple[str, str, str, str]:
    described = text.inline(getattr(parameter, "help", None) or "")
    if parameter.param_type_name != "option":
        return text.code(parameter.metavar or parameter.name), "", described, ""
    names = (*parameter.opts, *parameter.secondary_opts)
    value = "" if getattr(parameter, "is_flag", False) else parameter.metavar or _value(parameter, context, names)
    required = "required" if parameter.required else _default(parameter.default)
    return ", ".join(text.code(n) for n in names), text.code(value), described, required


def _value(parameter: Any, context: Any, names: tuple[str, ...]) -> str:
    """What stands behind the option in its own help line."""
    record = parameter.get_help_record(context)
    return "" if record is None else " ".join(w for w in record[0].replace(",", " ").split() if w not in names)


def _default(value: object) -> str:
    """A default worth showing. click marks a missing one with a sentinel whose name says so."""
    if value is None or value is False or value in ("", (), []) or callable(value) or "unset" in repr(value).lower():
        return ""
    return text.code(getattr(value, "value", value))
