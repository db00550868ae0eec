"""Inputs for a contract: drawn, structural, edge cases and sets for timing. Everything is decided by a seed."""

from validator.inputs.call_inputs import CallInputs, allocate_outputs
from validator.inputs.edges import edge_inputs
from validator.inputs.make import make_inputs
from validator.inputs.timing import make_timing_inputs

__all__ = ["CallInputs", "allocate_outputs", "edge_inputs", "make_inputs", "make_timing_inputs"]
