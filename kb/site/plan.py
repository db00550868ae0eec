"""Every page of the site with its text, the navigation, and how many pages of each kind there must be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kb.lint import docs as lint_docs
from kb.site import browse, commands, contract_page, indexes, kernel_page, matrix, models, principle_page
from kb.site.content import Content
from kb.site.hand_written import SiteError
from kb.site.hand_written import pages as hand_written_pages
from kb.site.places import contract_page as contract_path
from kb.site.places import family_page, record_page
from kb.site.places import kernel_page as kernel_path
from kb.site.places import principle_page as principle_path
from kb.site.words import family_name

Nav = list[Any]
# Pages that only lists lead to have no place in the navigation to show.
_WITHOUT_NAVIGATION = "---\nhide: [navigation]\n---\n\n"


@dataclass(frozen=True, slots=True)
class Plan:
    """Page texts by path, and the navigation in mkdocs' form (pages that only lists lead to are not in it)."""

    pages: Mapping[str, str]
    nav: Nav


def plan(content: Content, hand_written: Path, commands: Mapping[str, Any]) -> Plan:
    """Render every page. Raises SiteError when two pages want one path or an entry has none."""
    pages: dict[str, str] = {}
    for path, text in (*hand_written_pages(hand_written, content), *_generated(content, commands)):
        if path in pages:
            raise SiteError(f"two pages want the path {path}; rename the one in {hand_written}")
        pages[path] = text
    _assert_complete(content, pages)
    return Plan(pages, _nav(content))


def _generated(content: Content, click_commands: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for principle in content.principles:
        yield principle_path(principle.id), principle_page.page(content, principle)
    yield "principles/index.md", browse.principles_index(content)
    for family in content.families:
        yield family_page(family), browse.family_index(content, family)
    for contract in content.library.contracts.values():
        yield contract_path(contract.id), contract_page.page(content, contract)
    yield indexes.CONTRACTS, indexes.contracts_index(content)
    for kernel in content.kernels:
        yield kernel_path(kernel.manifest), kernel_page.page(content, kernel)
    yield indexes.KERNELS, indexes.kernels_index(content)
    yield from models.pages(content)
    yield from browse.pages(content)
    yield matrix.PAGE, matrix.page(content)
    yield indexes.RECORDS, indexes.records_index(content)
    for record in content.records:
        yield record_page(record.name), _WITHOUT_NAVIGATION + record.text
    for name, text in lint_docs.pages():
        yield f"rules/{name}", text if name == lint_docs.INDEX else _WITHOUT_NAVIGATION + text
    yield commands.PAGE, commands.page(click_commands)


def _assert_complete(content: Content, pages: Mapping[str, str]) -> None:
    """One page an entry: a generator that silently skips is worse than one that fails."""
    wanted = {
        "principles": len(content.library.principles) + len(content.families) + 1,
        "contracts": len(content.library.contracts) + 1,
        "kernels": len(content.kernels) + 1,
    }
    for folder, number in wanted.items():
        found = sum(path.startswith(f"{folder}/") for path in pages)
        if found != number:
            raise SiteError(f"{found} pages under {folder}/ for {number} entries and lists; two entries share a path")


def _nav(content: Content) -> Nav:
    return [
        {"Home": "index.md"},
        {
            "Guide": [
                "guide/index.md",
                {"Write and review knowledge": "guide/author.md"},
                {"Browse it": "guide/browse.md"},
                {"Produce kernels": "guide/regenerate.md"},
                {"Regions and patterns": "guide/regions.md"},
                {"Compile a module": "guide/compiler.md"},
                {"Run models": "guide/run.md"},
                {"How the gates work": "guide/gates.md"},
                {"Architecture": "guide/architecture.md"},
                {"Contributing": "guide/contributing.md"},
                {"Decision records": "decisions/index.md"},
            ]
        },
        {
            "Browse": [
                browse.FILTER,
                {"By pattern": browse.PATTERN},
                {"By target": browse.TARGET},
                {"By architecture": browse.ARCH},
                {"By status": browse.STATUS},
                {"Freshest evidence": browse.FRESH},
                {"Dead ends": browse.DEAD},
                {"Decision matrix": matrix.PAGE},
            ]
        },
        {"Principles": ["principles/index.md", *({family_name(f): family_page(f)} for f in content.families)]},
        {"Contracts": [indexes.CONTRACTS, *({c: contract_path(c)} for c in sorted(content.library.contracts))]},
        {"Kernels": [indexes.KERNELS]},
        {"Models": [models.INDEX, *({f.name: models.page_of(f)} for f in models.FAMILIES)]},
        {
            "Reference": [
                {"Commands": commands.PAGE},
                {"Lint rules": "rules/index.md"},
                {"Benchmark records": indexes.RECORDS},
            ]
        },
    ]
