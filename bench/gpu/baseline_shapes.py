"""Shapes the baselines are measured at: every contract's own, and those of a four-billion-parameter decoder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kb.contract import Contract

# (rows, columns) of the weights a decode step of such a model streams, as dims of the contracts that stream them.
_DECODER: Mapping[str, dict[str, int]] = {
    "attention_prelude": {
        "hidden_size": 2560,
        "num_heads": 32,
        "num_kv_heads": 8,
        "head_dim": 128,
        "rotary_dim": 128,
        "block_size": 16,
        "has_qkv_bias": 0,
        "has_qk_norm": 1,
        "rope_interleaved": 0,
        "num_blocks": 1024,
        "max_positions": 8192,
    },
    "o_proj_residual_rmsnorm": {"hidden_size": 2560, "in_features": 4096},
    "gated_mlp_up": {"hidden_size": 2560, "intermediate_size": 9728},
    "gated_mlp_down": {"hidden_size": 2560, "intermediate_size": 9728},
    "lm_head_argmax": {"hidden_size": 2560, "vocab_size": 151936},
    "residual_rmsnorm": {"hidden_size": 2560, "has_residual": 1},
}
_ATTENTION = {"num_heads": 32, "num_kv_heads": 8, "head_dim": 128, "block_size": 16, "sliding_window": 0}
# (sequences, context): short and long decoding, and one very long sequence.
_CONTEXTS = ((1, 640), (1, 32768), (8, 768), (64, 768), (64, 4096))
TOKENS = (1, 8, 64)
# Kernels whose tiles are a table's.
TUNED = ("attention_prelude", "o_proj_residual_rmsnorm", "gated_mlp_up", "gated_mlp_down", "lm_head_argmax")


def shapes(contract: Contract) -> Iterator[Mapping[str, int]]:
    """The contract's performance shapes, then the decoder's; none twice."""
    seen = []
    for dims in (*contract.sweep.performance, *decoder_shapes(contract.id)):
        if dims not in seen:
            seen.append(dict(dims))
            yield dims


def decoder_shapes(contract_id: str) -> Iterator[Mapping[str, int]]:
    """The decoder's dims for a contract at each row count."""
    if contract_id == "paged_decode_attention":
        for tokens, context in _CONTEXTS:
            columns = max(512, context // 16)
            # Room for a second set of sequences, so that two calls do not read the same blocks.
            blocks = max(4096, 2 * tokens * (context // 16))
            yield _ATTENTION | {
                "num_tokens": tokens,
                "num_blocks": blocks,
                "max_blocks_per_seq": columns,
                "context_len": context,
            }
        return
    for tokens in TOKENS if contract_id in _DECODER else ():
        yield _DECODER[contract_id] | {"num_tokens": tokens}
