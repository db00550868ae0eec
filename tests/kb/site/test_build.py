"""What the build promises: every entry has its page, no link is broken, one commit gives one output."""

from __future__ import annotations

import hashlib
import html
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kb.library import load_library
from kb.site.build import check_replaceable
from kb.site.content import read_content
from kb.site.hand_written import SiteError
from kb.site.links import broken_links
from kb.site.records import Record, read_records
from tests.kb.site.conftest import build_site
from tests.kb.site.fabricate import HOSTILE, HOSTILE_STRINGS, ROOT, copy_library


def digests(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def record_of(name: str) -> Record:
    return next(r for r in read_records(ROOT) if r.name == name)


def page(site: Path, path: str) -> str:
    return (site / path).read_text(encoding="utf-8")


def test_every_shipped_entry_has_its_page(shipped_site: Path):
    library = load_library(ROOT)
    for entry_id in library.principles:
        assert (shipped_site / "principles" / f"{entry_id}.html").is_file()
    for contract in library.contracts:
        assert (shipped_site / "contracts" / f"{contract}.html").is_file()
    counted = json.loads(page(shipped_site, "site.json"))["pages"]
    families = {p.family for p in library.principles.values()}
    assert counted["principles"] == len(library.principles) + len(families) + 1
    assert counted["contracts"] == len(library.contracts) + 1


def test_the_landing_page_shows_every_step_of_the_record(shipped_site: Path):
    rows = record_of("h200-engine-2026-11-30").table("Step by step, in one run")
    landing = page(shipped_site, "index.html")
    assert len(rows) >= 5
    for row in rows:
        [share] = (value for name, value in row.items() if name.startswith("share of the floor"))
        assert f"{float(row['ms a token']):#.3g} ms, {share}" in landing
        assert row["rung"] in landing


def test_a_contract_says_what_may_be_read_early(shipped_site: Path):
    text = page(shipped_site, "contracts/paged_decode_attention.html")
    assert "A dependent launch may read all but each sequence's last position before its wait." in html.unescape(text)


def test_a_shipped_page_tells_its_history_from_git(shipped_site: Path):
    content = read_content(ROOT)
    if not content.commit:
        pytest.skip("not in a git repository")
    changes = content.changes["rope"]
    assert changes
    assert changes[0].commit.hash[:8] in page(shipped_site, "contracts/rope.html")


def test_the_command_in_another_process_gives_the_same_bytes(library: Path, site: Path, tmp_path: Path):
    command = [
        sys.executable,
        "-m",
        "kb",
        "site",
        "build",
        "--library",
        str(library),
        "--output",
        str(tmp_path / "site"),
    ]
    # Another order of every set of strings.
    environment = os.environ | {"PYTHONHASHSEED": "4711", "TZ": "Pacific/Auckland"}
    done = subprocess.run([*command, "--json"], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["pages"]["kernels"] == 4
    assert digests(tmp_path / "site") == digests(site)


def test_no_page_fetches_from_elsewhere_and_no_link_is_broken(site: Path):
    assert broken_links(site) == []
    style = page(site, "assets/site.css")
    assert "http:" not in style
    assert "https:" not in style


def test_a_broken_link_in_html_is_found(site: Path, tmp_path: Path):
    copy = tmp_path / "copy"
    shutil.copytree(site, copy)
    damaged = copy / "browse" / "index.html"
    added = '<a href="../nowhere.html">x</a><a href="index.html#nothing">y</a><script src="https://cdn.example/x.js"></script>'
    damaged.write_text(damaged.read_text(encoding="utf-8") + added, encoding="utf-8")
    found = broken_links(copy)
    assert len(found) == 3
    assert any("nowhere.html leads to no file" in line for line in found)
    assert any("#nothing leads to no element" in line for line in found)
    assert any("fetches https://cdn.example/x.js" in line for line in found)


def test_a_hostile_entry_shows_as_text(site: Path):
    text = page(site, f"principles/{HOSTILE}.html")
    body = text.split("<article", 1)[1].split("</article>", 1)[0]
    assert "<script>window" not in text
    assert not re.search(r"<[^>]*\son\w+\s*=", body)
    assert not re.search(r"href=[\"']?(javascript|data):", text)
    assert "&lt;script&gt;window.hacked=1&lt;/script&gt;" in body
    for shown in ("onerror=window.hacked=1", "onclick=window.hacked=1", "--8&lt;--", "__shared__ and *p[i]"):
        assert shown in body.replace("&#95;", "_").replace("&#42;", "*")
    assert "build-backend" not in text


def test_a_hostile_kernel_shows_as_text(site: Path):
    for path in sorted((site / "kernels").rglob("*.html")):
        text = path.read_text(encoding="utf-8")
        assert "<script>window" not in text
        assert not re.search(r"<[^>]*\son(error|click|mouseover)\s*=", text)
    revoked = next(p for p in (site / "kernels").rglob("*.html") if "is revoked" in p.read_text(encoding="utf-8"))
    assert "&lt;script&gt;" in revoked.read_text(encoding="utf-8")
    assert HOSTILE_STRINGS[0] not in revoked.read_text(encoding="utf-8")


def test_a_kernel_page_has_gates_timings_rounds_and_source(site: Path):
    texts = [path.read_text(encoding="utf-8") for path in (site / "kernels" / "gated_mlp_up" / "cuda").glob("*.html")]
    text = next(t for t in texts if "the 1. way" in t)
    for expected in (
        "compute-sanitizer is not installed",
        "error-too-large",
        "Round 2: stopped at gate numerics",
        "Round 3: accepted",
        "9,000 input tokens",
        "1.310",
        "Show the prompt",
        "__shared__",
        "ac-plot",
    ):
        assert expected.lower() in text.lower(), expected


def test_a_contract_ranks_its_kernels_and_an_entry_names_those_that_used_it(library: Path, site: Path):
    text = page(site, "contracts/gated_mlp_up.html")
    ratios = re.findall(r"<td>(1\.\d\d)×</td>\s*<td>\d\.\d\d×</td>", text)
    assert ratios == sorted(ratios[:2], reverse=True) + ratios[2:]
    assert len(ratios) == 3
    assert "revoked" in text
    content = read_content(library)
    used = next(p for p in content.principles if p.id in content.users)
    shown = page(site, f"principles/{used.id}.html")
    assert "Kernels whose prompt carried it" in shown
    assert f"version {used.version}" in shown


def test_relations_are_told_from_both_sides(shipped_site: Path):
    content = read_content(ROOT)
    principle = next(p for p in content.principles if any(r.relation == "refines" for r in p.related))
    related = next(r for r in principle.related if r.relation == "refines")
    assert "is refined by" in page(shipped_site, f"principles/{related.id}.html")


def test_an_unreadable_entry_fails_the_strict_build(tmp_path: Path):
    library = copy_library(tmp_path / "library", ("gated-mlp",))
    (library / "principles" / "gated-mlp" / "broken.yaml").write_text("id: [", encoding="utf-8")
    with pytest.raises(SiteError, match="cannot be read"):
        build_site(library, tmp_path / "site")
    assert not (tmp_path / "site").exists()


def test_a_folder_that_holds_something_else_is_never_replaced(tmp_path: Path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years", encoding="utf-8")
    with pytest.raises(SiteError, match="no site built by this command"):
        check_replaceable(tmp_path / "mine")
    with pytest.raises(SiteError, match="sources"):
        check_replaceable(ROOT / "site" / "built")
