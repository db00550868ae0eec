"""From models, contracts and principles to candidate kernels."""
