"""The rules, one module a subject. ``kb.lint.registry`` collects them."""
