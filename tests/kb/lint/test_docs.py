"""Pages of the rules are written from the rules and are known to be stale when they differ."""

from __future__ import annotations

import re
from pathlib import Path

from kb.lint.docs import index, main, page, pages, stale, write
from kb.lint.registry import rule, rules


def test_every_rule_has_a_page_and_a_line_in_the_index() -> None:
    names = [name for name, _ in pages()]
    assert names == ["index.md", *(f"{r.code}.md" for r in rules())]
    for each in rules():
        assert f"[{each.code}]({each.code}.md)" in index()


def test_a_page_shows_what_is_bad_what_is_good_and_how_to_excuse_it() -> None:
    text = page(rule("AC111"))
    assert text.startswith("# AC111: The size of a known model in prose\n")
    assert text.index("## Bad") < text.index("9728 columns") < text.index("## Good") < text.index("# noqa: AC111")
    assert "## Excuse it" not in page(rule("AC011")), "a file that is not YAML cannot be excused"


def test_code_blocks_are_closed_and_show_no_invisible_character() -> None:
    for name, text in pages():
        fences = re.findall(r"^(`{3,})", text, re.MULTILINE)
        assert len(fences) % 2 == 0, name
        assert text.endswith("\n")
        assert all(c.isprintable() or c == "\n" for c in text), name


def test_writing_twice_changes_nothing_and_a_stale_page_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "rules"
    assert len(write(folder)) == len(rules()) + 1
    assert write(folder) == stale(folder) == []
    (folder / "AC101.md").write_text("old")
    (folder / "AC102.md").unlink()
    assert stale(folder) == ["AC101.md", "AC102.md"]
    assert main(["check", str(folder)]) == 1
    assert main(["write", str(folder)]) == 0
    assert main(["check", str(folder)]) == 0
    assert main(["wrong"]) == 2
