"""Gates that judge candidates, in isolation, against float64 references."""
