"""Where each page is, as a path below the site's sources, and how pages name each other."""

from __future__ import annotations

import posixpath

from kb.manifest import Manifest
from kb.site.text import inline
from kb.store import Entry

DIGEST_SHOWN = 12


def principle_page(entry_id: str) -> str:
    """Page of a principle."""
    return f"principles/{entry_id}.md"


def family_page(family: str) -> str:
    """Page of a family of principles."""
    return f"principles/{family}/index.md"


def contract_page(contract: str) -> str:
    """Page of a contract."""
    return f"contracts/{contract}.md"


def kernel_page(manifest: Manifest) -> str:
    """Page of a kernel."""
    return f"kernels/{manifest.contract}/{manifest.target.value}/{manifest.digest[:DIGEST_SHOWN]}.md"


def record_page(name: str) -> str:
    """Page of a benchmark record."""
    return f"records/{name}.md"


def relative(page: str, target: str) -> str:
    """``target`` as a link from ``page``."""
    return posixpath.relpath(target, posixpath.dirname(page) or ".")


def link(page: str, label: str, target: str) -> str:
    """A Markdown link on ``page`` to another page of the site."""
    return f"[{inline(label)}]({relative(page, target)})"


def link_html(page: str, label: str, target: str) -> str:
    """The same in an HTML block, where mkdocs rewrites nothing; ``label`` is HTML already."""
    return f'<a href="{relative(page, target).removesuffix(".md")}.html">{label}</a>'


def kernel_label(kernel: Entry) -> str:
    """How a kernel is called in a sentence."""
    return kernel.digest[:DIGEST_SHOWN]
