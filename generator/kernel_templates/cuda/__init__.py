"""CUDA sources of the templates: building blocks, and the bodies of entries made from them."""
