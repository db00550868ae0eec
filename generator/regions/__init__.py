"""A region of a captured graph as a contract, with its reference, its baseline, and the spec a template computes."""

from generator.regions.contract import RegionContract, describe, region_contract
from generator.regions.lower import region_spec
from generator.regions.unsupported import UnsupportedRegionError

__all__ = ["RegionContract", "UnsupportedRegionError", "describe", "region_contract", "region_spec"]
