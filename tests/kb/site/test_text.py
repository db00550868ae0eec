"""Whatever an author writes comes out of Python-Markdown as exactly that text, and as nothing else."""

from __future__ import annotations

import html
import re
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kb.site import text
from tests.kb.site.fabricate import HOSTILE_STRINGS

markdown = pytest.importorskip("markdown", reason="mkdocs is not installed (extra 'docs')")
EXTENSIONS = ["admonition", "tables", "toc", "pymdownx.highlight", "pymdownx.superfences"]
STRANGE = st.text(st.sampled_from(list("ab *_`~<>[](){}#!|\\&;:=+-.1\"'$^/@\n\t")), max_size=60)


class _Seen(HTMLParser):
    """Tags, attributes and text of a fragment."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [name for name, _ in attrs]

    def handle_data(self, data: str) -> None:
        self.text += data


def seen(source: str) -> _Seen:
    parser = _Seen()
    parser.feed(markdown.markdown(source, extensions=EXTENSIONS))
    parser.close()
    return parser


def folded(value: str) -> str:
    return " ".join(value.split())


@pytest.mark.parametrize("hostile", HOSTILE_STRINGS)
def test_a_hostile_paragraph_is_a_paragraph_of_text(hostile: str):
    found = seen(text.inline(hostile))
    assert found.tags == ["p"]
    assert folded(found.text) == folded(hostile)


@given(STRANGE)
@settings(max_examples=300, deadline=None)
def test_any_text_is_one_paragraph_that_says_it(value: str):
    found = seen(text.inline(value))
    assert found.tags == (["p"] if folded(value) else [])
    assert folded(found.text) == folded(value)


@given(STRANGE, STRANGE)
@settings(max_examples=150, deadline=None)
def test_any_text_stays_in_its_table_cell(first: str, second: str):
    found = seen(text.table(("a", "b"), [(text.inline(first), text.code(second)), ("x", "y")]))
    assert [t for t in found.tags if t not in ("code",)] == ["table", "thead", "tr", "th", "th", "tbody"] + [
        "tr",
        "td",
        "td",
    ] * 2
    assert found.attributes == []


@given(STRANGE)
@settings(max_examples=150, deadline=None)
def test_any_source_stays_in_its_fence(value: str):
    page = "before\n\n" + text.fence(value, "cpp") + "\n\n[after](x.md)"
    found = seen(page)
    assert found.tags.count("a") == 1
    assert found.tags.count("p") == 2
    assert {"script", "img", "b", "em", "h1"}.isdisjoint(found.tags)
    shown = re.sub(r"\s+", "", found.text)
    assert re.sub(r"\s+", "", value) in shown


@given(STRANGE)
@settings(max_examples=150, deadline=None)
def test_a_label_cannot_leave_its_link(label: str):
    found = seen(f"- {text.link(label or 'x', 'page.md')}")
    assert [t for t in found.tags if t not in ("ul", "li")] == ["a"]
    assert found.attributes == ["href"]


@pytest.mark.parametrize(
    ("reference", "address"),
    [
        ("https://example.org/a(b)?q=1", "https://example.org/a%28b%29?q=1"),
        ("vllm-project/vllm#52104", "https://github.com/vllm-project/vllm/issues/52104"),
        ("pegainfer-project/pegainfer", "https://github.com/pegainfer-project/pegainfer"),
        ("arXiv:2210.03052", "https://arxiv.org/abs/2210.03052"),
        ("javascript:alert(1)", None),
        ("JAVASCRIPT:alert(1)//https://example.org", None),
        ("data:text/html,x", None),
        ('https://example.org/"onclick=alert(1)', None),
        ("https://example.org/ https://example.org", None),
        ("file:///etc/passwd", None),
        ("a book, page 3", None),
    ],
)
def test_a_reference_is_a_link_only_to_the_web(reference: str, address: str | None):
    assert text.web_address(reference) == address
    assert ("](" in text.outward(reference)) == (address is not None)


def test_invisible_characters_are_shown_by_their_code():
    assert "\\u202e" in html.unescape(text.inline("a\u202eb"))
    assert "\\u0007" in text.fence("bell \x07")


def test_front_matter_strings_are_quoted_and_safe_in_a_template():
    page = text.page('no: "yes" # <b>{{ x }}', ["body"], description="on: [1]\n---\nnew: key")
    matter = page.split("---\n")[1]
    assert matter.count("\n") == 2
    assert "<b>" not in matter
