"""The pages in a real browser: search, filter, themes, phone width, keyboard, accessibility, and nothing that runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kb.library import load_library
from kb.principle import Kind
from tests.kb.site.browser import FLAGS, find_chromium, served
from tests.kb.site.fabricate import HOSTILE

playwright_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (extra 'dev')")

PHONE = {"width": 390, "height": 844}
DESKTOP = {"width": 1280, "height": 800}
KINDS = {
    "landing": "index.html",
    "guide": "guide/architecture.html",
    "decision": "principles/decode-gemv/buy-bytes-in-flight.html",
    "dead end": "principles/decode-gemv/side-stream-l2-prefetch.html",
    "mandate": "principles/decode-gemv/reach-the-read-bandwidth.html",
    "hostile": f"principles/{HOSTILE}.html",
    "contract": "contracts/gated_mlp_up.html",
    "wide contract": "contracts/paged_decode_attention.html",
    "browse": "browse/index.html",
    "dead ends": "browse/dead-ends.html",
    "matrix": "browse/matrix.html",
    "model": "models/glm4.html",
    "commands": "reference/commands.html",
    "rule": "rules/AC109.html",
    "record": "records/h200-ceilings-2026-11-30.html",
    "kernels": "kernels/index.html",
}


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    path = find_chromium()
    if path is None:
        pytest.skip("no Chromium on this machine (Debian: apt-get install chromium)")
    with playwright_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    with served(site) as url:
        yield url


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[str, str]:
    """Main page kinds, with one kernel of the store."""
    kernel = sorted((site / "kernels" / "gated_mlp_up" / "cuda").glob("*.html"))[0]
    return {**KINDS, "kernel": kernel.relative_to(site).as_posix()}


@pytest.fixture
def page(chromium: Any, address: str) -> Iterator[Any]:
    """A page whose console errors, failed requests and requests to other hosts fail the test."""
    context = chromium.new_context(viewport=DESKTOP, color_scheme="light", base_url=address)
    opened = context.new_page()
    problems: list[str] = []
    opened.on("console", lambda m: problems.append(m.text) if m.type in ("error", "warning") else None)
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.on(
        "requestfailed",
        lambda r: problems.append(f"failed: {r.url}") if "net::ERR_ABORTED" not in str(r.failure) else None,
    )
    opened.on("request", lambda r: None if r.url.startswith((address, "blob:", "data:")) else problems.append(r.url))
    yield opened
    context.close()
    assert problems == []


def shown_items(page: Any) -> list[str]:
    return [
        str(t)
        for t in page.eval_on_selector_all("[data-ac-list] > li:not([hidden])", "all => all.map(e => e.dataset.kind)")
    ]


def test_search_finds_a_principle_by_a_word_in_its_body(page: Any):
    page.goto("index.html")
    page.keyboard.press("/")
    page.keyboard.type("critical path evicts")
    hit = page.locator(".md-search-result__link[href*='side-stream-l2-prefetch']").first
    hit.wait_for(state="visible", timeout=20_000)
    hit.click()
    page.wait_for_url("**/side-stream-l2-prefetch.html**")


def test_search_runs_nothing_of_a_hostile_entry(page: Any):
    page.goto("index.html")
    page.keyboard.press("/")
    page.keyboard.type("hacked")
    page.locator(".md-search-result__link[href*='hostile-entry']").first.wait_for(state="visible", timeout=20_000)
    page.wait_for_timeout(300)
    assert page.evaluate("window.hacked") is None


def test_the_filter_narrows_by_each_field_and_by_text(page: Any, library: Path):
    principles = load_library(library).principles.values()
    dead_ends = [p for p in principles if p.kind is Kind.DEAD_END]
    page.goto("browse/index.html")
    everything = len(shown_items(page))
    assert everything == len(principles)
    page.select_option("select[name=kind]", "dead_end")
    assert shown_items(page) == ["dead_end"] * len(dead_ends)
    page.select_option("select[name=contract]", "lm_head_argmax")
    speaking = [p for p in dead_ends if "lm_head_argmax" in p.patterns]
    assert len(shown_items(page)) == len(speaking)
    assert page.inner_text(".ac-count") == f"{len(speaking)} of {everything} principles"
    page.fill("input[name=text]", "no such words anywhere")
    assert shown_items(page) == []
    page.click(".ac-filter button[type=reset]")
    page.wait_for_function("document.querySelectorAll('[data-ac-list] > li[hidden]').length === 0")
    assert len(shown_items(page)) == everything


def test_the_address_keeps_the_filter(page: Any):
    page.goto("browse/index.html?kind=mandate&text=round")
    filtered = shown_items(page)
    assert filtered
    assert set(filtered) == {"mandate"}
    assert page.input_value("input[name=text]") == "round"
    page.fill("input[name=text]", "")
    assert page.url.endswith("?kind=mandate")


def test_the_theme_switches_and_is_kept(page: Any):
    page.goto("index.html")
    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert page.get_attribute("body", "data-md-color-scheme") == "default"
    page.locator("label[title='Switch to dark']").click()
    page.wait_for_function("document.body.dataset.mdColorScheme === 'slate'")
    after = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert before != after
    bar = page.evaluate("getComputedStyle(document.querySelector('.ac-plot text')).fill")
    page.goto("browse/index.html")
    assert page.get_attribute("body", "data-md-color-scheme") == "slate"
    assert bar != "rgb(0, 0, 0)"


def test_a_dark_system_gets_dark_pages(chromium: Any, address: str):
    context = chromium.new_context(color_scheme="dark", base_url=address)
    opened = context.new_page()
    opened.goto("index.html")
    assert opened.get_attribute("body", "data-md-color-scheme") == "slate"
    context.close()


def test_no_page_scrolls_sideways_on_a_phone_and_nothing_runs(page: Any, pages: dict[str, str]):
    page.set_viewport_size(PHONE)
    wide = {}
    for name, path in pages.items():
        page.goto(path)
        width = page.evaluate("document.documentElement.scrollWidth")
        if width > PHONE["width"]:
            wide[name] = width
        assert page.evaluate("window.hacked") is None
        # Handlers that an entry might have smuggled in would fire now.
        page.evaluate("document.querySelectorAll('article *').forEach(e => e.dispatchEvent(new Event('mouseover')))")
        assert page.evaluate("window.hacked") is None
    assert wide == {}


def test_what_scrolls_and_what_filters_is_reached_by_keyboard(page: Any):
    page.set_viewport_size(PHONE)
    page.goto("browse/matrix.html")
    page.wait_for_selector(".ac-matrix[tabindex='0']")
    page.goto("browse/index.html")
    page.focus("input[name=text]")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.name") == "kind"


# Kinds of pages that differ in their elements; the two runs cover both themes and both widths.
INSPECTED = ("landing", "guide", "dead end", "contract", "kernel", "browse", "matrix")


@pytest.mark.parametrize(("scheme", "viewport"), [("light", DESKTOP), ("dark", PHONE)], ids=["desktop", "phone"])
def test_axe_finds_no_serious_violation(
    chromium: Any, address: str, pages: dict[str, str], scheme: str, viewport: dict[str, int]
):
    pytest.importorskip("axe_playwright_python", reason="axe-playwright-python is not installed (extra 'dev')")
    from axe_playwright_python.sync_playwright import Axe

    context = chromium.new_context(viewport=viewport, color_scheme=scheme, base_url=address, reduced_motion="reduce")
    opened = context.new_page()
    found = []
    for name in INSPECTED:
        opened.goto(pages[name])
        opened.wait_for_timeout(150)
        response = Axe().run(opened, options={"resultTypes": ["violations"]}).response
        for violation in response["violations"]:
            if violation["impact"] in ("serious", "critical"):
                nodes = [
                    f"{n['target'][0]}: {n['failureSummary'].splitlines()[-1].strip()}" for n in violation["nodes"]
                ]
                found.append(f"{name}: {violation['id']}: {nodes[:4]}")
    context.close()
    assert found == [], "\n".join(found)
