"""Regions, hard boundaries and contract patterns of a captured graph."""

from generator.analyze.analysis import Analysis, Boundary, Category, Match, PatternResult, Region, Skip
from generator.analyze.analyzer import analyze, patterns_of_checkpoint
from generator.analyze.report import report, report_data

__all__ = [
    "Analysis",
    "Boundary",
    "Category",
    "Match",
    "PatternResult",
    "Region",
    "Skip",
    "analyze",
    "patterns_of_checkpoint",
    "report",
    "report_data",
]
