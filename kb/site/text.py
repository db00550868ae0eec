"""What an author wrote, as text on a page: nothing in it becomes markup, a link, a tag or an attribute.

Two ways out, both total. In Markdown every character that could mean something is written as a numeric entity, which
Python-Markdown and CommonMark both pass through; a backslash is no use, because Python-Markdown does not take one
before ``<``, ``|`` or ``~``. In HTML blocks, ``html`` escapes, and ``block`` joins lines so that no blank line can end
the block early.
"""

from __future__ import annotations

import html as _html
import json
import re
import unicodedata
from collections.abc import Iterable, Sequence

_INLINE = re.compile(r"[\\`*_{}\[\]<>&|~^=#$!\"]")
_LEADING = re.compile(r"[^\w\s&]")
_LEADING_NUMBER = re.compile(r"([0-9]+)([.)])")
_WEB = re.compile(r"https?://[A-Za-z0-9.-]+(:[0-9]+)?(/[^\s<>\"'`\\^{}|\[\]]*)?")
_THREAD = re.compile(r"([A-Za-z0-9-]+/[A-Za-z0-9._-]+)#([0-9]+)")
_REPOSITORY = re.compile(r"[A-Za-z0-9-]+/[A-Za-z0-9._-]+")
_ARXIV = re.compile(r"arXiv:([0-9]{4}\.[0-9]{4,5})(v[0-9]+)?")


def visible(value: str) -> str:
    """``value`` with control and format characters shown by their code, tabs and newlines kept."""
    return "".join(c if c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cf", "Cs") else _code(c) for c in value)


def inline(value: str) -> str:
    """``value`` on one line of Markdown, every character standing for itself, also at the start of a line."""
    line = " ".join(visible(value).split())
    escaped = _INLINE.sub(_entity, line)
    if match := _LEADING_NUMBER.match(escaped):
        return f"{match[1]}&#{ord(match[2])};{escaped[match.end() :]}"
    return _entity_at_start(escaped)


def paragraphs(value: str) -> str:
    """Prose as paragraphs of Markdown; a blank line in ``value`` starts a new one."""
    parts = re.split(r"\n[ \t]*\n", value.strip())
    return "\n\n".join(inline(part) for part in parts)


def html(value: object) -> str:
    """``value`` as text or as a quoted attribute in HTML."""
    return _html.escape(visible(str(value)), quote=True)


def code(value: object) -> str:
    """A code span, as HTML: no fence that the text could close."""
    line = " ".join(visible(str(value)).split())
    return f"<code>{_INLINE.sub(_entity, line)}</code>" if line else ""


def fence(value: str, language: str = "", *, numbers: bool = False) -> str:
    """A code block whose fence is longer than any run of backticks or tildes inside."""
    shown = visible(value.rstrip("\n"))
    longest = max((len(run) for run in re.findall(r"`+|~+", shown)), default=0)
    ticks = "`" * max(3, longest + 1)
    options = ' linenums="1"' if numbers else ""
    return f"{ticks}{language or 'text'}{options}\n{shown}\n{ticks}"


def link(label: str, target: str) -> str:
    """A Markdown link to a page of this site; ``target`` is made by our own code from ids."""
    return f"[{inline(label)}]({target})"


def outward(reference: str) -> str:
    """A reference as a link when it is a web address, a repository, a thread or an arXiv id, else as text."""
    url = web_address(reference)
    return inline(reference) if url is None else f"[{inline(reference)}]({url})"


def outward_html(reference: str) -> str:
    """The same as HTML."""
    url = web_address(reference)
    return html(reference) if url is None else f'<a href="{html(url)}">{html(reference)}</a>'


def web_address(reference: str) -> str | None:
    """The https address of a reference; None for what has none (other schemes included)."""
    reference = reference.strip()
    if _WEB.fullmatch(reference):
        return reference.replace("(", "%28").replace(")", "%29")
    if match := _THREAD.fullmatch(reference):
        return f"https://github.com/{match[1]}/issues/{match[2]}"
    if match := _ARXIV.fullmatch(reference):
        return f"https://arxiv.org/abs/{match[1]}{match[2] or ''}"
    if _REPOSITORY.fullmatch(reference):
        return f"https://github.com/{reference}"
    return None


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table of cells that are Markdown already."""
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(cell or " " for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def html_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, wide: str, unbroken: Sequence[str]) -> str:
    """An HTML table of cells that are HTML already, where a phone needs hints.

    Column ``wide`` keeps a readable width although the table scrolls; ``unbroken`` columns never break a line.
    """
    css = ["ac-wide" if c == wide else "ac-unbroken" if c in unbroken else "" for c in columns]
    classes = [f' class="{name}"' if name else "" for name in css]
    head = "".join(f'<th scope="col">{html(column)}</th>' for column in columns)
    body = "".join(
        "<tr>" + "".join(f"<td{c}>{cell}</td>" for c, cell in zip(classes, row, strict=True)) + "</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def bullets(items: Iterable[str]) -> str:
    """A list of items that are Markdown already, one line each."""
    return "\n".join(f"- {item}" for item in items)


def block(tag: str, content: str, css: str) -> str:
    """An HTML block of escaped or own content, on one line."""
    return f'<{tag} class="{css}">' + " ".join(content.split("\n")) + f"</{tag}>"


def page(title: str, body: Iterable[str], *, description: str = "", hide: Sequence[str] = ()) -> str:
    """A whole page: front matter with quoted strings, the heading, and the parts with blank lines between them."""
    matter = [f"title: {_quoted(title)}"]
    if description:
        matter.append(f"description: {_quoted(description)}")
    if hide:
        matter.append("hide: [" + ", ".join(hide) + "]")
    parts = [part for part in body if part]
    return "\n".join(["---", *matter, "---", "", f"# {inline(title)}", ""]) + "\n" + "\n\n".join(parts) + "\n"


def _quoted(value: str) -> str:
    # The theme puts both into its templates as they are, so they are HTML here. A JSON string is a quoted YAML string.
    return json.dumps(html(" ".join(visible(value).split())))


def _entity(match: re.Match[str]) -> str:
    return f"&#{ord(match[0])};"


def _entity_at_start(line: str) -> str:
    return _LEADING.sub(_entity, line[:1]) + line[1:]


def _code(character: str) -> str:
    return f"\\u{ord(character):04x}"
