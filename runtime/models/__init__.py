"""Models: what a checkpoint is (spec), where its weights are (weights), and how a step goes through it (decoder)."""
