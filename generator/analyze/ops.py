"""What every operator is, for merging: does it compute an element at a time, reduce rows, move elements, or more?"""

from __future__ import annotations

from enum import StrEnum

from generator.ir import Node


class OpClass(StrEnum):
    """How an operator reads and writes elements."""

    POINTWISE = "pointwise"  # one output element from one element of each input, broadcast
    ACTIVATION = "activation"  # pointwise, and a nonlinearity of a network
    CAST = "cast"  # pointwise: another element type
    REDUCTION = "reduction"
    SOFTMAX = "softmax"
    NORM = "norm"
    MATMUL = "matmul"
    ATTENTION = "attention"
    VIEW = "view"  # the same elements under another shape or strides; no work
    COPY = "copy"  # elements move, none is computed
    EMBEDDING = "embedding"  # rows of a table by index
    FACTORY = "factory"  # a tensor from numbers
    RANDOM = "random"
    EFFECT = "effect"  # done for what it does, not for what it returns
    UNKNOWN = "unknown"


def _table(groups: dict[OpClass, str]) -> dict[str, OpClass]:
    return {f"aten.{name}": kind for kind, names in groups.items() for name in names.split()}


_CLASSES = _table(
    {
        OpClass.POINTWISE: (
            "add sub rsub mul div pow sqrt rsqrt reciprocal exp exp2 expm1 log log2 log1p sin cos tan neg abs sign "
            "floor ceil round trunc maximum minimum clamp clamp_min clamp_max where eq ne lt le gt ge erf atan2 "
            "logical_and logical_or logical_not logical_xor bitwise_and bitwise_or bitwise_not bitwise_xor fmod "
            "remainder square masked_fill isnan isinf lerp addcmul addcdiv"
        ),
        OpClass.ACTIVATION: "relu gelu silu sigmoid tanh softplus elu leaky_relu hardtanh hardswish hardsigmoid mish",
        OpClass.CAST: "_to_copy to",
        OpClass.REDUCTION: "sum mean amax amin max min argmax argmin prod any all var var_mean std logsumexp norm",
        OpClass.SOFTMAX: "_softmax softmax _safe_softmax _log_softmax log_softmax",
        OpClass.NORM: "layer_norm native_layer_norm rms_norm _fused_rms_norm native_group_norm group_norm",
        OpClass.MATMUL: "linear matmul mm addmm bmm baddbmm",
        OpClass.ATTENTION: (
            "scaled_dot_product_attention _scaled_dot_product_flash_attention "
            "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_efficient_attention "
            "_scaled_dot_product_cudnn_attention"
        ),
        OpClass.VIEW: (
            "view _unsafe_view reshape unsqueeze squeeze permute transpose t expand slice select split "
            "split_with_sizes chunk unbind narrow unflatten flatten alias diagonal as_strided view_as"
        ),
        OpClass.COPY: (
            "clone contiguous cat stack copy slice_scatter select_scatter repeat repeat_interleave "
            "constant_pad_nd flip roll triu tril"
        ),
        OpClass.EMBEDDING: "embedding index_select index gather",
        OpClass.FACTORY: "arange full full_like zeros zeros_like ones ones_like scalar_tensor empty new_zeros new_ones",
        OpClass.RANDOM: "rand randn randint rand_like randn_like bernoulli native_dropout dropout multinomial normal",
        OpClass.EFFECT: "_assert_async _assert_scalar copy_",
    }
)
# Views that keep every element, once: only the shape, the order of dimensions or the strides change.
RESHAPES = frozenset(
    {
        "aten.view",
        "aten._unsafe_view",
        "aten.view_as",
        "aten.reshape",
        "aten.flatten",
        "aten.unflatten",
        "aten.unsqueeze",
        "aten.squeeze",
        "aten.permute",
        "aten.transpose",
        "aten.t",
        "aten.clone",
        "aten.contiguous",
        "aten.alias",
    }
)
# Views of a part of the elements.
SUBSETS = frozenset(
    {
        "aten.slice",
        "aten.select",
        "aten.split",
        "aten.split_with_sizes",
        "aten.chunk",
        "aten.narrow",
        "aten.unbind",
    }
)
EXPANDS = frozenset({"aten.expand", "aten.repeat", "aten.repeat_interleave"})
CASTS = frozenset({"aten._to_copy", "aten.to"})


def classify(node: Node) -> OpClass:
    """The operator's class; a name not in the table is UNKNOWN."""
    found = _CLASSES.get(node.target)
    if found is None:
        return OpClass.UNKNOWN
    if found is OpClass.CAST and any(key in ("device", "layout") and arg is not None for key, arg in node.kwargs):
        return OpClass.UNKNOWN  # it also moves the tensor elsewhere
    if found is OpClass.REDUCTION and node.op in ("aten.max.other", "aten.min.other"):
        return OpClass.POINTWISE
    return found


ELEMENTWISE = frozenset({OpClass.POINTWISE, OpClass.ACTIVATION, OpClass.CAST})
LAYOUT = frozenset({OpClass.VIEW, OpClass.COPY})
