"""The project's own contracts as specs, and the few launches no spec describes (rotation, scattered rows)."""

from __future__ import annotations

from generator.kernel_templates.program import indented
from generator.kernel_templates.specs import (
    GemvSpec,
    NormKind,
    NormSpec,
    Op,
    Step,
    Store,
    TensorArg,
    columns,
    dense,
)
from generator.kernel_templates.stage import Stage
from kb.dtype import DType, Target

_HIDDEN = ("num_tokens", "hidden_size")
_T = DType.T

GATED_MLP_UP = GemvSpec(
    "num_tokens",
    "intermediate_size",
    "hidden_size",
    "x",
    "w_gate_up",
    (Store(dense("out", ("num_tokens", "intermediate_size")), "y"),),
    parts=(0, "intermediate_size"),
    epilogue=(Step("g", Op.SILU, ("acc0",)), Step("y", Op.MUL, ("g", "acc1"))),
)


def _into_residual(x: str, weight: str, k: str) -> GemvSpec:
    """residual = round(residual + round(x @ weight^T)), in place."""
    residual = dense("residual", _HIDDEN)
    return GemvSpec(
        "num_tokens",
        "hidden_size",
        k,
        x,
        weight,
        (Store(residual, "sum"),),
        inputs=(residual,),
        epilogue=(Step("y", Op.ROUND, ("acc0",), _T), Step("sum", Op.ADD, ("y", "residual"))),
    )


GATED_MLP_DOWN = _into_residual("x", "w_down", "intermediate_size")
O_PROJ = _into_residual("attn", "w_o", "in_features")


def _rms(value: str, inputs: tuple[TensorArg, ...], prologue: tuple[Step, ...], more: tuple[Store, ...]) -> NormSpec:
    return NormSpec(
        NormKind.RMS,
        _HIDDEN,
        (*inputs, columns("weight", 2)),
        value,
        "eps",
        (*more, Store(dense("out", _HIDDEN), "normed")),
        weight="weight",
        prologue=prologue,
        round_normalised=_T,
        scalars=("eps",),
    )


O_PROJ_NORM = _rms("residual", (dense("residual", _HIDDEN),), (), ())
PLAIN_RMSNORM = _rms("x", (dense("x", _HIDDEN),), (), ())
RESIDUAL_RMSNORM = _rms(
    "s",
    (dense("x", _HIDDEN), dense("residual", _HIDDEN)),
    (Step("added", Op.ADD, ("x", "residual")), Step("s", Op.ROUND, ("added",), _T)),
    (Store(dense("residual", _HIDDEN), "s"),),
)

# The stores of an argmax are its winners; this one is never written.
LM_HEAD = GemvSpec(
    "num_tokens", "vocab_size", "hidden_size", "x", "w", (Store(TensorArg("out_max", DType.FLOAT32, (1, 0)), "acc0"),)
)

# --- encoders: rows between the launches lie in the workspace, in the storage type -----------------------------------

LAYER_NORM = NormSpec(
    NormKind.LAYER,
    _HIDDEN,
    (dense("x", _HIDDEN), columns("ln_weight", 2), columns("ln_bias", 2)),
    "x",
    "eps",
    (Store(dense("normed_rows", _HIDDEN), "normed"),),
    weight="ln_weight",
    bias="ln_bias",
    scalars=("eps",),
)
NORMED_ROWS = "T* const normed_rows = static_cast<T*>(workspace);"
INPUT_ROWS = "const T* const input_rows = has_pre_norm ? static_cast<const T*>(workspace) : x;"
_ACTIVATED = "activated = static_cast<T*>(workspace) + size_t(num_tokens) * hidden_size;"
ACTIVATED_OUT = f"T* const {_ACTIVATED}"
ACTIVATED_IN = f"const T* const {_ACTIVATED}"

ENCODER_QKV = GemvSpec(
    "num_tokens",
    "3 * num_heads * head_dim",
    "hidden_size",
    "input_rows",
    "w_qkv",
    (Store(dense("qkv", ("num_tokens", "3 * num_heads * head_dim")), "y"),),
    inputs=(columns("b_qkv", 2),),
    epilogue=(Step("y", Op.ADD, ("acc0", "b_qkv")),),
)
ENCODER_UP = GemvSpec(
    "num_tokens",
    "intermediate_size",
    "hidden_size",
    "input_rows",
    "w_up",
    (Store(dense("activated", ("num_tokens", "intermediate_size")), "y"),),
    inputs=(columns("b_up", 2),),
    epilogue=(
        Step("a", Op.ADD, ("acc0", "b_up")),
        Step("exact", Op.GELU, ("a",)),
        Step("approximate", Op.GELU_TANH, ("a",)),
        Step("y", Op.WHERE, ("gelu_tanh", "approximate", "exact")),  # the flag is a constant: one of them remains
    ),
    scalars=("gelu_tanh",),
)
ENCODER_DOWN = GemvSpec(
    "num_tokens",
    "hidden_size",
    "intermediate_size",
    "activated",
    "w_down",
    (Store(dense("out", _HIDDEN), "y"),),
    inputs=(columns("b_down", 2), dense("x", _HIDDEN)),
    epilogue=(
        Step("biased", Op.ADD, ("acc0", "b_down")),
        Step("rounded", Op.ROUND, ("biased",), _T),
        Step("y", Op.ADD, ("rounded", "x")),
    ),
)
ENCODER_QKV_BYTES = "num_tokens * hidden_size * 4"
ENCODER_MLP_BYTES = "num_tokens * (hidden_size + intermediate_size) * 4"

# --- rotation and caches ---------------------------------------------------------------------------------------------

_ROPE_PAIR = """
constexpr int half = rotary_dim / 2, heads = num_heads + num_kv_heads;
const auto rotate = [&](long long pair) {
  const int i = int(pair % half), h = int(pair / half % heads), t = int(pair / half / heads);
  T* const head = h < num_heads ? q + (size_t(t) * num_heads + h) * head_dim
                                : k + (size_t(t) * num_kv_heads + (h - num_heads)) * head_dim;
  T* const a = head + (rope_interleaved ? 2 * i : i);
  T* const b = rope_interleaved ? a + 1 : a + half;
  const float* const angles = cos_sin + size_t(positions[t]) * rotary_dim;
  const float c = angles[i], s = angles[half + i], va = LOAD(*a), vb = LOAD(*b);
  *a = STORE(va * c - vb * s);
  *b = STORE(vb * c + va * s);
};
"""

_KV_CUDA = """
constexpr int VECTOR = 16 / sizeof(T), packs = num_kv_heads * head_dim / VECTOR;
const long long index = blockIdx.x * {block}LL + threadIdx.x;
if (index >= (long long)num_tokens * packs) return;
const int t = int(index / packs);
const size_t from = size_t(index) * VECTOR;
const size_t to = (size_t(slot_mapping[t]) * packs + index % packs) * VECTOR;
const T* const source = blockIdx.y ? v : k;
T* const cache = blockIdx.y ? v_cache : k_cache;
*reinterpret_cast<Pack<T, VECTOR>*>(cache + to) = *reinterpret_cast<const Pack<T, VECTOR>*>(source + from);
"""

_KV_CPU = """
constexpr std::size_t row = std::size_t(num_kv_heads) * head_dim;
#pragma omp parallel for if (num_tokens > 16)
for (int t = 0; t < num_tokens; ++t) {
  const std::size_t to = std::size_t(slot_mapping[t]) * row;
  std::memcpy(k_cache + to, k + t * row, row * sizeof(T));
  std::memcpy(v_cache + to, v + t * row, row * sizeof(T));
}
"""


def rope_stage(target: Target, block: int) -> Stage:
    """A thread a pair of elements: both are read before either is written."""
    cuda = target is Target.CUDA
    text = _ROPE_PAIR.replace("LOAD", "float" if cuda else "to_float").replace(
        "STORE", "T" if cuda else "from_float<T>"
    )
    pairs = "num_tokens * (num_heads + num_kv_heads) * (rotary_dim // 2)"
    lines = text.strip("\n").split("\n")
    if cuda:
        lines += [
            f"const long long pair = blockIdx.x * {block}LL + threadIdx.x;",
            "if (pair < (long long)num_tokens * heads * half) rotate(pair);",
        ]
    else:
        lines += [
            "constexpr long long pairs = (long long)num_tokens * heads * half;",
            "#pragma omp parallel for if (pairs > 8192)",
            "for (long long pair = 0; pair < pairs; ++pair) rotate(pair);",
        ]
    return Stage(
        "rotate_heads", indented(lines, 1), grid=(f"ceil_div({pairs}, {block})", "1", "1"), block=str(block),
        threads=block,
    )  # fmt: skip


def kv_append_stage(target: Target, block: int) -> Stage:
    """A thread 16 bytes of a row; keys and values are two rows of blocks."""
    if target is Target.CPU:
        return Stage("append", indented(_KV_CPU.strip("\n").split("\n"), 1))
    # At least 4 elements are 16 bytes: with 8, half of the threads have nothing to do.
    grid = f"ceil_div(num_tokens * (num_kv_heads * head_dim // 4), {block})"
    lines = _KV_CUDA.strip("\n").replace("{block}", str(block)).split("\n")
    return Stage("append", indented(lines, 1), ("pack",), (grid, "2", "1"), str(block), block)
