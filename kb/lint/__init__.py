"""The linter: rules with their documentation and examples, and the engine that runs them."""
