"""Hugging Face on the same GPU, the same sizes, random weights, in the same run: eager, and static cache compiled."""

from __future__ import annotations

import time
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from bench.gpu.report import Report


def time_peers(name: str, config: dict[str, Any], report: Report, *, prompt: int = 128, output: int = 512) -> None:
    """Add rows for eager decoding (fewer tokens: it is slow) and for ``torch.compile`` with a static cache."""
    model = _random_model(config)
    ids = torch.randint(1, config["vocab_size"], (1, prompt), device="cuda")
    eager = _ms_a_token(model, ids, 64, None)
    report.add(name, "Hugging Face eager", f"{eager:.2f} ms a token")
    compiled = _ms_a_token(model, ids, output, "static")
    report.add(name, "Hugging Face, static cache, compiled", f"{compiled:.2f} ms a token")
    report.record[name]["peers"] = {"hf_eager_ms": eager, "hf_compiled_ms": compiled}


def _random_model(config: dict[str, Any]) -> Any:
    parsed = AutoConfig.for_model(**config)
    with torch.device("cuda"):
        previous = torch.get_default_dtype()
        torch.set_default_dtype(torch.bfloat16)
        try:
            return AutoModelForCausalLM.from_config(parsed).eval()
        finally:
            torch.set_default_dtype(previous)


@torch.inference_mode()
def _ms_a_token(model: Any, ids: torch.Tensor, output: int, cache: str | None) -> float:
    settings: dict[str, Any] = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    if cache is not None:
        settings["cache_implementation"] = cache
    times = []
    for length in (output // 2, output, output // 2, output):  # the first pair compiles
        torch.cuda.synchronize()
        start = time.perf_counter()
        model.generate(ids, max_new_tokens=length, min_new_tokens=length, **settings)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return 1e3 * (times[3] - times[2]) / (output - output // 2)
