"""Commands of validator."""
