"""What prose must not name: models, and the sizes that give a model away. And what evidence is too old to stand on.

A principle that says 9728 speaks of one model; one that says *rows times columns* speaks of all. Only sizes that are
unmistakable are listed: a power of two is a tile, a threshold or a page as often as it is a width.
"""

from __future__ import annotations

import re

_MODELS = (
    r"Qwen[\w.-]*",
    r"(?i:llama)(?!\.cpp|_cpp|cpp)[\w.-]*",
    r"TinyLlama",
    r"Falcon[\w.-]*",
    r"Mi[sx]tral[\w.-]*",
    r"(?:Chat)?GLM[\w.-]*",
    r"Gemma[\w.-]*",
    r"Phi-[0-9][\w.-]*",
    r"DeepSeek[\w.-]*",
    r"GPT-?(?:[0-9]|J|Neo|OSS|oss)[\w.-]*",
    r"(?:Ro|Distil|De|Modern|Al)?BERT(?:a)?[\w.-]*",
    r"OPT-[0-9][\w.-]*",
    r"BLOOM[\w.-]*",
    r"MPT-[0-9]+[\w.-]*",
    r"Yi-[0-9][\w.-]*",
    r"InternLM[\w.-]*",
    r"Baichuan[\w.-]*",
    r"StableLM[\w.-]*",
    r"Pythia[\w.-]*",
    r"OLMo[\w.-]*",
    r"SmolLM[\w.-]*",
    r"Vicuna[\w.-]*",
    r"Nemotron[\w.-]*",
    r"Kimi[\w.-]*",
    r"MiniCPM[\w.-]*",
    r"MiniMax[\w.-]*",
    r"Command-R[\w.-]*",
    r"Whisper[\w.-]*",
    r"CLIP[\w.-]*",
    r"T5[\w.-]*",
    r"ViT-[BLHGS][\w./-]*",
)
MODEL_NAME = re.compile(rf"(?<![\w/.-])(?:{'|'.join(_MODELS)})")

# Hidden, intermediate and vocabulary sizes, with a model each that has them.
DIMENSIONS: dict[int, str] = {
    576: "SmolLM 135M",
    768: "BERT base",
    896: "Qwen2.5 0.5B",
    960: "SmolLM 360M",
    1152: "Gemma 3 1B",
    1280: "Whisper large",
    1536: "Qwen2.5 1.5B",
    1600: "GPT-2 XL",
    2304: "Gemma 2 2B",
    2560: "Qwen3 4B",
    2880: "GPT-OSS",
    3072: "Llama 3.2 3B",
    3584: "Qwen2.5 7B",
    3840: "Gemma 3 12B",
    4544: "Falcon 7B",
    4608: "Gemma 2 27B",
    4864: "Qwen2.5 0.5B",
    5120: "Qwen3 14B",
    5376: "Gemma 3 27B",
    5504: "Qwen 1.8B",
    5632: "TinyLlama",
    6144: "Mixtral 8x22B",
    6656: "Llama 30B",
    6912: "Gemma 3 1B",
    7168: "DeepSeek V3",
    8960: "Qwen2.5 1.5B",
    9216: "Gemma 2 2B",
    9728: "Qwen3 4B",
    10240: "Gemma 3 4B",
    11008: "Llama 2 7B",
    12288: "GPT-3",
    13696: "GLM-4 9B",
    13824: "Llama 2 13B",
    14336: "Llama 3 8B",
    14784: "Phi-3 small",
    15360: "Gemma 3 12B",
    17408: "Qwen3 14B",
    17920: "Phi-3 medium",
    18176: "Falcon 7B",
    18432: "DeepSeek V3",
    18944: "Qwen2.5 7B",
    19456: "Qwen3 4B, gate and up",
    21504: "Gemma 3 27B",
    22016: "Llama 2 7B, gate and up",
    23040: "Falcon3 10B",
    24576: "Gemma 7B",
    25600: "Qwen3 32B",
    27392: "GLM-4 9B, gate and up",
    27648: "Qwen2.5 32B",
    28672: "Llama 3 70B",
    29568: "Qwen2.5 72B",
    30522: "BERT",
    32000: "Llama 2",
    32064: "Phi-3",
    36864: "Gemma 2 27B",
    49152: "SmolLM",
    50257: "GPT-2",
    50304: "GPT-NeoX",
    50265: "RoBERTa",
    51865: "Whisper",
    51866: "Whisper large v3",
    53248: "Llama 3.1 405B",
    64000: "Yi",
    65024: "ChatGLM",
    92544: "InternLM2",
    100352: "Phi-4",
    128256: "Llama 3",
    129280: "DeepSeek V3",
    151552: "GLM-4",
    151646: "Qwen2.5",
    151936: "Qwen3",
    152064: "Qwen2.5 7B",
    201088: "GPT-OSS",
    250002: "XLM-RoBERTa",
    250880: "BLOOM",
    256000: "Gemma 2",
    262208: "Gemma 3",
}
# Behind one of these a number is an amount of something, not a model's size.
_UNIT = (
    r"(?:[KMGT]?i?B(?:/s)?\b|bytes?|bits?|[µnm]?s\b|us\b|ms\b|seconds?|microseconds?|nanoseconds?|cycles?|instructions?|registers?"
    r"|threads?|warps?|lanes?|blocks?|tokens?|requests?|sequences?|runs?|pages?|times|launches|samples|steps?|MHz|GHz|W\b|%|GB|FLOPS?)"
)
NUMBER = re.compile(r"(?<![\w.,])(?<![#@])([0-9]{1,3}(?:,[0-9]{3})+|[0-9]{3,6})(?![\w])(?!\.[0-9])(?!,[0-9]{3})")
AMOUNT = re.compile(rf"[\s\-–]*{_UNIT}")

# Evidence from below these stands on something that is no longer current: kernels start at sm_80.
OLD_HARDWARE: dict[str, str] = {
    r"\b(?:Tesla )?K(?:20|40|80)\b": "Kepler",
    r"\b(?:Tesla )?M(?:40|60)\b": "Maxwell",
    r"\bGTX (?:9[0-9]{2}|10[0-9]{2}|16[0-9]{2})(?: ?Ti)?\b": "Maxwell, Pascal or Turing",
    r"\b(?:Tesla )?P(?:4|40|100)\b": "Pascal",
    r"\bTITAN (?:X|Xp|V|RTX)\b": "Pascal, Volta or Turing",
    r"\b(?:Tesla )?V100S?\b": "Volta",
    r"\b(?:Tesla )?T4G?\b": "Turing",
    r"\bRTX 20[0-9]{2}(?: ?(?:Ti|Super|SUPER))?\b": "Turing",
    r"\bsm_(?:[3-6][0-9]|7[0-5])\b": "older than sm_80",
}
# The oldest release that still behaves as today's: an older one has been overtaken by a change that is known.
CURRENT_SOFTWARE: dict[str, tuple[tuple[int, int], str]] = {
    "torch": ((2, 6), "older releases capture and compile differently"),
    "pytorch": ((2, 6), "older releases capture and compile differently"),
    "cuda": ((12, 0), "older toolkits have no clusters or bulk copies"),
    "nvcc": ((12, 0), "older toolkits have no clusters or bulk copies"),
    "nvrtc": ((12, 0), "older toolkits have no clusters or bulk copies"),
    "triton": ((3, 0), "the compiler's pipeline was rewritten"),
    "vllm": ((0, 8), "the engine was rewritten"),
    "sglang": ((0, 4), "the scheduler was rewritten"),
    "gcc": ((11, 0), "older compilers do not vectorise at -O2"),
    "clang": ((15, 0), "older compilers lack bfloat16 arithmetic"),
}
SOFTWARE_VERSION = re.compile(r"(?<![\w.])([A-Za-z]+)[ =:-]+v?([0-9]+)\.([0-9]+)")
