"""Commands of runtime."""
