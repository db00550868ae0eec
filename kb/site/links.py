"""A look at the built pages: every address inside the site leads to a file, and every anchor to an element.

mkdocs checks Markdown links only; this also sees the links in HTML blocks, the theme's own, scripts and styles.
"""

from __future__ import annotations

import html
import posixpath
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

_ADDRESS = re.compile(r"<(?:a|link|script|img|source)\b[^>]*?\s(?:href|src)=(\"[^\"]*\"|'[^']*'|[^\s>\"']+)")
_ID = re.compile(r"\s(?:id|name)=(\"[^\"]*\"|'[^']*'|[^\s>\"']+)")


def broken_links(folder: Path) -> list[str]:
    """One line for each address that leads nowhere, and for each file the pages would fetch from another host."""
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    texts = {name: (folder / name).read_text(encoding="utf-8") for name in sorted(files) if name.endswith(".html")}
    anchors = {name: {_unquoted(m) for m in _ID.findall(text)} for name, text in texts.items()}
    broken: list[str] = []
    for name, text in texts.items():
        if name == "404.html":  # served at any depth; its addresses start at the host's root
            continue
        for raw in dict.fromkeys(_ADDRESS.findall(text)):
            problem = _problem(name, _unquoted(raw), files, anchors)
            if problem:
                broken.append(f"{name}: {problem}")
        broken += [f"{name}: fetches {address} from elsewhere" for address in _foreign(text)]
    return broken


def _problem(page: str, address: str, files: set[str], anchors: dict[str, set[str]]) -> str:
    parts = urlsplit(address)
    if parts.scheme in ("http", "https", "mailto") or (parts.scheme == "data" and not parts.netloc):
        return ""
    if parts.scheme or parts.netloc:
        return f"{address} has a scheme that no link here may have"
    path = unquote(parts.path)
    target = posixpath.normpath(posixpath.join(posixpath.dirname(page), path)) if path else page
    if path.endswith("/") or target == ".":
        target = posixpath.normpath(posixpath.join(target, "index.html"))
    if target not in files:
        return f"{address} leads to no file"
    fragment = unquote(parts.fragment)
    if fragment and target in anchors and fragment not in anchors[target] and fragment != "__top":
        return f"{address} leads to no element"
    return ""


_FETCHING = re.compile(
    r"<(?:script|img|iframe|source|video|audio|embed|object)\b[^>]*?\s(?:src|data)=[\"']?((?:https?:)?//[^\s\"'>]+)"
    r"|<link\b(?=[^>]*rel=[\"']?(?:stylesheet|preload|preconnect|icon|modulepreload))[^>]*href=[\"']?((?:https?:)?//[^\s\"'>]+)"
)


def _foreign(text: str) -> list[str]:
    return [first or second for first, second in _FETCHING.findall(text)]


def _unquoted(raw: str) -> str:
    value = raw[1:-1] if raw[:1] in "\"'" else raw
    return html.unescape(value)
