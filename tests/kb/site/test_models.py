"""The table of model families agrees with what the engine reads."""

from __future__ import annotations

import pytest

from kb.library import load_library
from kb.site.models import FAMILIES, sites
from tests.kb.site.fabricate import ROOT

pytest.importorskip("torch", reason="torch is not installed (extra 'run')")


def test_the_site_lists_the_families_the_engine_reads():
    from runtime.models.spec import _FAMILIES

    assert {f.model_type for f in FAMILIES} == set(_FAMILIES)
    for family in FAMILIES:
        known = _FAMILIES[family.model_type]
        assert family.qk_norm == known.qk_norm
        assert family.interleaved == known.interleaved
        assert family.partial_rotary == (known.partial_rotary < 1)
        assert family.sandwich_norms == known.sandwich_norms


def test_every_contract_a_family_names_exists_and_may_be_chosen():
    from runtime.sites import CONTRACT_OPERATIONS

    contracts = set(load_library(ROOT).contracts)
    for family in FAMILIES:
        named = {contract for _, contract, _ in sites(family) if contract}
        assert named <= contracts & CONTRACT_OPERATIONS
