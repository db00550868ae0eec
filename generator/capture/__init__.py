"""From a PyTorch or Hugging Face module to the intermediate representation."""

from generator.capture.call import Capture, Part, capture
from generator.capture.checkpoint import CheckpointError, Example, capture_checkpoint, capture_config
from generator.capture.problem import Problem

__all__ = [
    "Capture",
    "CheckpointError",
    "Example",
    "Part",
    "Problem",
    "capture",
    "capture_checkpoint",
    "capture_config",
]
