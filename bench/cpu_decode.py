"""Decoding on a CPU beside Hugging Face eager, in one run, and the engine's peak memory.

    python bench/cpu_decode.py --size 0.6b --out bench/results/cpu-decode.json

The engine runs what its selection chooses among the library path and the kernels of the store; ``--library-path``
leaves it at the former. Weights are random and shared: the Hugging Face model's parameters are views of the engine's.
Both continue the same prompt, taking turns round by round, so that what else the machine does hits both. Hugging Face
runs its default attention (scaled_dot_product_attention) with its dynamic cache, one token a call, which is the faster
of its eager paths. Peak memory is that of a process of its own that loads the same weights and runs the engine alone.
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from kb.library import library_root
from kb.store import KernelStore
from runtime.engine.choosing import BucketChoice
from runtime.engine.config import EngineConfig
from runtime.engine.engine import Engine
from runtime.engine.request import SamplingParams
from runtime.engine.selecting import as_table, select
from runtime.engine.speed import floor_ms, peak_host_bytes
from runtime.models.spec import DecoderSpec, spec_from_config
from runtime.models.weights import DecoderWeights, random_weights

SIZES: dict[str, dict[str, int]] = {
    "0.6b": {
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
    },
    "small": {
        "hidden_size": 512,
        "intermediate_size": 1536,
        "num_hidden_layers": 6,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 64,
        "vocab_size": 16000,
    },
}


@dataclass(frozen=True)
class Settings:
    """What is measured."""

    size: str
    prompt: int
    tokens: int
    rounds: int
    threads: int
    library_path: bool = False


def qwen3_config(size: str) -> dict[str, Any]:
    """A Qwen3 config of this size, bfloat16, tied embeddings."""
    return {
        **SIZES[size],
        "model_type": "qwen3",
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 4096,
        "rope_theta": 1e6,
        "tie_word_embeddings": True,
        "dtype": "bfloat16",
    }


def engine_for(settings: Settings) -> tuple[Engine, list[BucketChoice]]:
    """The engine over random weights, its cache just large enough, and what was chosen for it."""
    spec = spec_from_config(qwen3_config(settings.size), {})
    weights = random_weights(spec, torch.device("cpu"), torch.bfloat16)
    context = settings.prompt + settings.tokens
    config = EngineConfig(max_batch=1, kv_blocks=2 + -(-context // 16), max_model_len=context, prefix_cache=False)
    engine = Engine(spec, weights, config)
    if settings.library_path:
        return engine, []
    root = library_root()
    folder = Path(tempfile.gettempdir()) / "agentcompile-selections"
    return engine, select(engine.executor, root, store=KernelStore(root / "kernels"), context=context, cache=folder)


def prompt_of(settings: Settings) -> list[int]:
    """Token ids without meaning."""
    return [(7 * i) % SIZES[settings.size]["vocab_size"] for i in range(settings.prompt)]


def engine_round(engine: Engine, settings: Settings) -> tuple[list[float], list[int]]:
    """Seconds of every decode step, and the tokens."""
    times: list[float] = []
    tokens: list[int] = []
    params = SamplingParams(max_tokens=settings.tokens, ignore_eos=True)
    engine.add_request(prompt_of(settings), params)
    for output in engine.run():
        times.append(time.perf_counter())
        tokens.extend(output.token_ids)
    return [b - a for a, b in itertools.pairwise(times)], tokens


def reference_model(spec: DecoderSpec, weights: DecoderWeights, settings: Settings) -> Any:
    """Hugging Face's model, its parameters views of ``weights``."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(**{k: v for k, v in qwen3_config(settings.size).items() if k != "model_type"})
    with torch.device("meta"):
        model = Qwen3ForCausalLM(config)
    heads, kv = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    state = {"model.embed_tokens.weight": weights.embed, "model.norm.weight": weights.final_norm}
    state["lm_head.weight"] = weights.lm_head
    for i, layer in enumerate(weights.layers):
        q, k, v = layer.w_qkv.split([heads, kv, kv])
        gate, up = layer.w_gate_up.chunk(2)
        parts = {
            "self_attn.q_proj": q,
            "self_attn.k_proj": k,
            "self_attn.v_proj": v,
            "self_attn.q_norm": layer.q_norm,
            "self_attn.k_norm": layer.k_norm,
            "self_attn.o_proj": layer.w_o,
            "mlp.gate_proj": gate,
            "mlp.up_proj": up,
            "mlp.down_proj": layer.w_down,
            "input_layernorm": layer.input_norm,
            "post_attention_layernorm": layer.post_attention_norm,
        }
        state |= {f"model.layers.{i}.{name}.weight": tensor for name, tensor in parts.items()}
    model.load_state_dict(state, assign=True)
    model.model.rotary_emb = type(model.model.rotary_emb)(config)  # its buffers are not weights
    return model.eval()


@torch.inference_mode()
def reference_round(model: Any, settings: Settings) -> tuple[list[float], list[int]]:
    """Seconds of every decode step of Hugging Face's model, and the tokens."""
    step = model(input_ids=torch.tensor([prompt_of(settings)]), use_cache=True)
    token = step.logits[:, -1:].argmax(-1)
    tokens, times = [int(token)], []
    for _ in range(settings.tokens - 1):
        start = time.perf_counter()
        step = model(input_ids=token, past_key_values=step.past_key_values, use_cache=True)
        token = step.logits[:, -1:].argmax(-1)
        tokens.append(int(token))
        times.append(time.perf_counter() - start)
    return times, tokens


def measure(settings: Settings) -> dict[str, Any]:
    """Both arms, alternating, after one round each that does not count."""
    from kb.dtype import Target
    from runtime.bandwidth import measure_bandwidth
    from runtime.device import device_for

    engine, choices = engine_for(settings)
    weights = engine.decoder.weights
    model = reference_model(engine.spec, weights, settings)
    engine_round(engine, settings), reference_round(model, settings)
    ours: list[list[float]] = []
    theirs: list[list[float]] = []
    agreed = 0
    for i in range(settings.rounds):
        arms = [("ours", lambda: engine_round(engine, settings)), ("theirs", lambda: reference_round(model, settings))]
        got = {name: run() for name, run in (arms if i % 2 else arms[::-1])}
        ours.append(got["ours"][0])
        theirs.append(got["theirs"][0])
        pairs = zip(got["ours"][1], got["theirs"][1], strict=True)
        agreed = next((n for n, (a, b) in enumerate(pairs) if a != b), settings.tokens)
    ratios = [statistics.median(b) / statistics.median(a) for a, b in zip(ours, theirs, strict=True)]
    gbps = measure_bandwidth(device_for(Target.CPU)).read_gbps
    floor = floor_ms(engine.spec, weights, 1, settings.prompt + settings.tokens / 2, gbps)
    return {
        "settings": asdict(settings),
        "machine": {"processor": _processor(), "threads": settings.threads, "python": platform.python_version()},
        "software": {"torch": str(torch.__version__), "transformers": _transformers()},
        "ms_per_token": {
            "engine": 1e3 * statistics.median(t for r in ours for t in r),
            "hugging_face_eager": 1e3 * statistics.median(t for r in theirs for t in r),
        },
        "ratio": {"median": statistics.median(ratios), "rounds": ratios},
        "tokens_equal_for": agreed,
        "floor_ms": floor,
        "read_gbps": gbps,
        "weight_bytes": weights.nbytes,
        "chosen": [row for row in as_table(choices) if row["chosen"]],
        "step_us": {"library": choices[0].library_us, "chosen": choices[0].step_us} if choices else None,
        "memory": _memory(settings),
    }


def _memory(settings: Settings) -> dict[str, int]:
    """Peak memory of a process that runs the engine alone."""
    arguments = ["--size", settings.size, "--prompt", settings.prompt, "--tokens", settings.tokens, "--alone"]
    arguments += ["--library-path"] if settings.library_path else []
    command = [sys.executable, __file__, *map(str, arguments), "--threads", str(settings.threads)]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    memory: dict[str, int] = json.loads(out)
    return memory


def alone(settings: Settings) -> dict[str, int]:
    """Run the engine once; what it needed. ``imported_bytes``: what Python and torch take before anything is done."""
    imported = peak_host_bytes()
    engine, _ = engine_for(settings)
    engine_round(engine, settings)
    pool = engine.decoder.pool.storage
    weights, kv = engine.decoder.weights.nbytes, pool.numel() * pool.itemsize
    peak = peak_host_bytes()
    rest = peak - weights - kv
    return {
        "peak_bytes": peak,
        "weight_bytes": weights,
        "kv_bytes": kv,
        "rest_bytes": rest,
        "imported_bytes": imported,
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []:
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def _transformers() -> str:
    import transformers

    return str(transformers.__version__)


def main() -> None:
    """Measure and print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=sorted(SIZES), default="0.6b")
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--library-path", action="store_true", help="use no kernels")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    a = parser.parse_args()
    settings = Settings(a.size, a.prompt, a.tokens, a.rounds, a.threads, a.library_path)
    torch.set_num_threads(settings.threads)
    record: dict[str, Any] = alone(settings) if a.alone else measure(settings)
    text = json.dumps(record, indent=2)
    print(text)
    if a.out is not None:
        a.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
