"""Configs at real sizes of the families the engine runs, for measuring with random weights."""

from __future__ import annotations

from typing import Any

_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def _config(model_type: str, architecture: str, sizes: tuple[int, ...], **more: Any) -> dict[str, Any]:
    hidden, layers, heads, kv_heads, head_dim, intermediate, vocab = sizes
    return {
        "model_type": model_type,
        "architectures": [architecture],
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "intermediate_size": intermediate,
        "vocab_size": vocab,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "max_position_embeddings": 16384,
        "tie_word_embeddings": False,
        "hidden_act": "silu",
        "torch_dtype": "bfloat16",
        "eos_token_id": 0,
        **more,
    }


CONFIGS: dict[str, dict[str, Any]] = {
    "qwen3-4b": _config(
        "qwen3",
        "Qwen3ForCausalLM",
        (2560, 36, 32, 8, 128, 9728, 151936),
        tie_word_embeddings=True,
        attention_bias=False,
    ),
    "llama3.2-3b": _config(
        "llama",
        "LlamaForCausalLM",
        (3072, 28, 24, 8, 128, 8192, 128256),
        tie_word_embeddings=True,
        rope_theta=5e5,
        rope_scaling=_LLAMA3,
        attention_bias=False,
        mlp_bias=False,
    ),
    "falcon3-7b": _config("llama", "LlamaForCausalLM", (3072, 28, 12, 4, 256, 23040, 131072), attention_bias=False),
    "mistral-7b": _config("mistral", "MistralForCausalLM", (4096, 32, 32, 8, 128, 14336, 32768), sliding_window=None),
    "glm4-9b": _config(
        "glm4",
        "Glm4ForCausalLM",
        (4096, 40, 32, 2, 128, 13696, 151552),
        attention_bias=True,
        partial_rotary_factor=0.5,
    ),
    "qwen3-vl-4b": {
        "model_type": "qwen3_vl",
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "tie_word_embeddings": True,
        "text_config": _config(
            "qwen3_vl_text",
            "Qwen3VLForConditionalGeneration",
            (2560, 36, 32, 8, 128, 9728, 151936),
            tie_word_embeddings=True,
            attention_bias=False,
            rope_theta=5e6,
            rope_scaling={"rope_type": "default", "mrope_section": [24, 20, 20], "mrope_interleaved": True},
        ),
    },
}

# For trying the scripts out on a machine without a GPU.
DRY_RUN: dict[str, dict[str, Any]] = {
    "tiny": _config("qwen3", "Qwen3ForCausalLM", (64, 2, 4, 2, 16, 96, 512), attention_bias=False),
}
