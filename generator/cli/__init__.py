"""Commands of generator."""
