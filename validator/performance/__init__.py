"""Timing a candidate against the library paths, with every timed output checked."""
