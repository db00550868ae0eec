"""Running a candidate under the sanitizers of its target. Each module has ``missing`` and ``sanitize``."""
