"""The knowledge base: principles, contracts, their linter and history, the kernel store and the command line."""
