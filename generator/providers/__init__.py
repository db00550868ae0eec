"""Where replies come from: an API, a folder that a person or agent answers, or a recording."""

from generator.providers.protocol import Ask, BatchProvider, Completion, PendingError, Provider, ProviderError, Usage

__all__ = ["Ask", "BatchProvider", "Completion", "PendingError", "Provider", "ProviderError", "Usage"]
