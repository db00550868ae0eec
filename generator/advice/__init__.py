"""What a provider may say about a compilation: labels, an order of plans, hints. Never needed, never trusted."""

from generator.advice.advice import NO_ADVICE, Advice, take_advice

__all__ = ["NO_ADVICE", "Advice", "take_advice"]
