"""How fast a generation was, against the fastest its memory allows."""

from __future__ import annotations

import resource
import sys
from dataclasses import dataclass
from pathlib import Path

from runtime.models.spec import DecoderSpec
from runtime.models.weights import DecoderWeights


@dataclass(frozen=True, slots=True)
class Speed:
    """One request's timing. ``first_token_s`` from submission; the rest from the first token to the last."""

    prompt_tokens: int
    output_tokens: int
    first_token_s: float
    decode_s: float

    @property
    def ms_per_token(self) -> float | None:
        """Milliseconds between tokens; None when there were fewer than two."""
        steps = self.output_tokens - 1
        return 1e3 * self.decode_s / steps if steps > 0 else None

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens a second while decoding."""
        return 1e3 / self.ms_per_token if self.ms_per_token else None

    @property
    def mean_context(self) -> float:
        """Tokens an average decode step attends to."""
        return self.prompt_tokens + self.output_tokens / 2


def floor_ms(spec: DecoderSpec, weights: DecoderWeights, batch: int, context: float, gbps: float) -> float:
    """Milliseconds a decode step of ``batch`` sequences takes at least: its bytes at the measured read bandwidth.

    Every weight is read once and every cached key and value of the ``context`` tokens of each sequence once.
    """
    cached = sum(min(context, window or context) for window in spec.layer_windows) / spec.num_layers
    kv = batch * cached * spec.kv_bytes_per_token(weights.embed.itemsize)
    return (weights.bytes_per_token + kv) / (gbps * 1e6)


def peak_host_bytes() -> int:
    """Most memory this process has had resident, shared libraries included.

    Linux's own record is asked first: ``getrusage`` reports the parent's peak to a child that was small.
    """
    try:
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
