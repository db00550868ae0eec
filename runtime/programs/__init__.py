"""Programs: a computation of a framework's operators as plain data, and the contracts that are stated by one.

A contract of the library names its reference and its baselines, and both are written by hand. A contract that was
derived from a captured graph has neither: what it means is the graph. A program is that meaning in a form every
process can read. The judge interprets it in float64 for the truth, and operator by operator for the baseline.
"""

from runtime.programs.program import Argument, Content, Input, Layout, Output, Program, Ref, Size, Step
from runtime.programs.registry import find_program, register_program

__all__ = [
    "Argument",
    "Content",
    "Input",
    "Layout",
    "Output",
    "Program",
    "Ref",
    "Size",
    "Step",
    "find_program",
    "register_program",
]
