"""Kernels for a whole model: what it needs, what the store already has, what is searched for, what it is worth."""
