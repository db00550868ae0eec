"""Why a region has no contract or no kernel."""

from __future__ import annotations


class UnsupportedRegionError(Exception):
    """The framework keeps the region; the message is the reason, one line."""
