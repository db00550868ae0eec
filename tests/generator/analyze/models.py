"""Configs of small random models of every family the patterns must be found in."""

from __future__ import annotations

from typing import Any

_DECODER: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "dtype": "bfloat16",
}
_ENCODER: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
}
_IMAGES = {"image_size": 32, "patch_size": 8}

DECODERS: dict[str, dict[str, Any]] = {
    "qwen3": _DECODER | {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "tie_word_embeddings": True},
    "llama": _DECODER | {"model_type": "llama", "architectures": ["LlamaForCausalLM"]},
    # Falcon3 is a Llama whose heads are wider: one kv head here.
    "falcon3": _DECODER
    | {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "head_dim": 32,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
    },
    "mistral": _DECODER | {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": 8},
    "glm": _DECODER | {"model_type": "glm", "architectures": ["GlmForCausalLM"], "attention_bias": True},
    "glm4": _DECODER | {"model_type": "glm4", "architectures": ["Glm4ForCausalLM"], "attention_bias": True},
    "qwen3_vl": {
        "model_type": "qwen3_vl",
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "dtype": "bfloat16",
        "text_config": _DECODER
        | {
            "model_type": "qwen3_vl_text",
            "rope_scaling": {"rope_type": "default", "mrope_section": [4, 2, 2], "mrope_interleaved": True},
        },
        "vision_config": {
            "depth": 2,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_heads": 2,
            "out_hidden_size": 64,
            "patch_size": 4,
            "num_position_embeddings": 16,
            "deepstack_visual_indexes": [0],
            "dtype": "bfloat16",
        },
    },
}
ENCODERS: dict[str, dict[str, Any]] = {
    "bert": _ENCODER
    | {"model_type": "bert", "architectures": ["BertModel"], "vocab_size": 128, "max_position_embeddings": 64},
    "vit": _ENCODER | _IMAGES | {"model_type": "vit", "architectures": ["ViTModel"]},
    "siglip": _ENCODER
    | _IMAGES
    | {"model_type": "siglip_vision_model", "architectures": ["SiglipVisionModel"], "dtype": "float16"},
}
MODELS = DECODERS | ENCODERS
