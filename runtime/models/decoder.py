"""The one decoder definition: a step as the list of calls it makes, in order.

Read ``Decoder.calls`` top to bottom: it is the model. Each call is a site (a contract at this model's dims) on the
step's static buffers, so the same definition serves a prefill that runs once and a decode step that is bound once
and replayed; who runs a call is decided elsewhere (``runtime.sites.Selection``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from kb.dtype import DType
from runtime.kv.pool import KVPool
from runtime.models.rope import cos_sin_table
from runtime.models.spec import DecoderSpec
from runtime.models.step import Step, StepBuffers
from runtime.models.weights import DecoderWeights, LayerWeights
from runtime.sites import Site, SiteCall


class Decoder:
    """A spec, its weights, its rotation table and the KV pool it writes.

    ``max_positions``: rows of the rotation table, the longest sequence there can be.
    """

    def __init__(self, spec: DecoderSpec, weights: DecoderWeights, pool: KVPool, max_positions: int) -> None:
        self.spec = spec
        self.weights = weights
        self.pool = pool
        self.storage = DType(str(weights.embed.dtype).removeprefix("torch."))
        self.cos_sin = cos_sin_table(spec.rope, max_positions, weights.embed.device)

    def calls(self, step: Step) -> Iterator[SiteCall]:
        """Everything from token ids to normalised rows, in the order it runs."""
        s, w, b = self.spec, self.weights, step.buffers
        decode_only = not step.segments
        d = b.sliced(step.num_decode, step.num_decode)
        if step.num_decode:
            yield self._op("fetch_tokens", d.input_ids, slots=d.request_slots, table=d.last_tokens, out=d.input_ids)
        yield self._op("embed", b.input_ids, input_ids=b.input_ids, table=w.embed, out=b.residual)
        yield self._norm(b, b.residual, w.layers[0].input_norm, out=b.x)
        for i, layer in enumerate(w.layers):
            yield self._prelude(b, layer, i)
            yield from self._attention(step, d, i)
            yield from self._attention_output(b, layer, i)
            yield self._call("gated_mlp_up", b.x, self._mlp_dims, i, x=b.x, w_gate_up=layer.w_gate_up, out=b.activated)
            last = i == s.num_layers - 1
            if last and not decode_only:  # only the rows whose next token is wanted go on
                yield from self._mlp_output(b, layer, i, next_norm=None)
                c = b.sliced(step.num_sampled, step.num_sampled)
                if step.num_sampled:
                    yield self._op("gather_rows", c.sample_rows, x=b.residual, rows=c.sample_rows, out=c.sampled_rows)
                    yield self._norm(c, c.sampled_rows, w.final_norm, out=c.x)
            else:
                next_norm = w.final_norm if last else w.layers[i + 1].input_norm
                yield from self._mlp_output(b, layer, i, next_norm)

    def argmax(self, b: StepBuffers) -> SiteCall:
        """The greedy end of a step: the most probable token of every row of ``x``."""
        dims = {"hidden_size": self.spec.hidden_size, "vocab_size": self.spec.vocab_size}
        x = b.x[: b.out_ids.shape[0]]
        return self._call("lm_head_argmax", x, dims, x=x, w=self.weights.lm_head, out_ids=b.out_ids, out_max=b.out_max)

    def logits(self, b: StepBuffers, out: torch.Tensor) -> SiteCall:
        """The sampled end: float32 logits of every row of ``x`` into ``out`` ``[sequences, vocab_size]``."""
        x = b.x[: b.out_ids.shape[0]]
        return self._op("lm_head_logits", x, x=x, w=self.weights.lm_head, out=out)

    def publish(self, b: StepBuffers) -> SiteCall:
        """Make the step's tokens the newest of their requests, for the next step to fetch."""
        return self._op("publish_tokens", b.out_ids, slots=b.request_slots, ids=b.out_ids, table=b.last_tokens)

    # What a layer is made of, in order.

    def _prelude(self, b: StepBuffers, layer: LayerWeights, i: int) -> SiteCall:
        s = self.spec
        dims = {
            "hidden_size": s.hidden_size,
            "num_heads": s.num_heads,
            "num_kv_heads": s.num_kv_heads,
            "head_dim": s.head_dim,
            "rotary_dim": s.rope.rotary_dim,
            "block_size": self.pool.block_size,
            "has_qkv_bias": int(s.qkv_bias),
            "has_qk_norm": int(s.qk_norm),
            "rope_interleaved": int(s.rope.interleaved),
            "num_blocks": self.pool.num_blocks,
            "max_positions": self.cos_sin.shape[0],
        }
        return self._call(
            "attention_prelude",
            b.x,
            dims,
            i,
            scalars={"eps": s.rms_norm_eps},
            x=b.x,
            w_qkv=layer.w_qkv,
            b_qkv=layer.b_qkv,
            q_norm=layer.q_norm,
            k_norm=layer.k_norm,
            cos_sin=self.cos_sin,
            positions=b.positions,
            slot_mapping=b.slot_mapping,
            q_out=b.q,
            k_cache=self.pool.keys(i),
            v_cache=self.pool.values(i),
        )

    def _attention(self, step: Step, d: StepBuffers, i: int) -> Iterator[SiteCall]:
        """``d``: the step's buffers cut to its decode rows."""
        s, b = self.spec, step.buffers
        dims = {
            "num_heads": s.num_heads,
            "num_kv_heads": s.num_kv_heads,
            "head_dim": s.head_dim,
            "block_size": self.pool.block_size,
            "sliding_window": s.layer_windows[i],
            "num_blocks": self.pool.num_blocks,
            "max_blocks_per_seq": b.block_table.shape[1],
        }
        keys, values = self.pool.keys(i), self.pool.values(i)
        if step.num_decode:
            yield self._call(
                "paged_decode_attention",
                d.q,
                dims,
                i,
                scalars={"scale": s.scale},
                q=d.q,
                k_cache=keys,
                v_cache=values,
                block_table=d.block_table,
                seq_lens=d.seq_lens,
                out=d.attention,
            )
        if step.segments:
            dims = {"num_tokens": b.q.shape[0], **dims}
            site = Site("prefill_attention", tuple(sorted(dims.items())), self.storage)
            tensors = {
                "q": b.q,
                "k_cache": keys,
                "v_cache": values,
                "block_table": b.block_table,
                "out": b.attention,
            }
            yield SiteCall(site, tensors, {"scale": s.scale}, i, step.segments, step.packed)

    def _attention_output(self, b: StepBuffers, layer: LayerWeights, i: int) -> Iterator[SiteCall]:
        s, rows = self.spec, b.attention.flatten(1)
        if layer.attention_out_norm is None and layer.b_o is None:
            dims = {"hidden_size": s.hidden_size, "in_features": s.num_heads * s.head_dim}
            yield self._call(
                "o_proj_residual_rmsnorm",
                rows,
                dims,
                i,
                scalars={"eps": s.rms_norm_eps},
                attn=rows,
                w_o=layer.w_o,
                residual=b.residual,
                weight=layer.post_attention_norm,
                out=b.x,
            )
            return
        if layer.attention_out_norm is None:
            yield self._op("linear", rows, x=rows, w=layer.w_o, b=layer.b_o, out=b.projected)
        else:  # x is free: a norm must not be given its input as its output
            yield self._op("linear", rows, x=rows, w=layer.w_o, b=layer.b_o, out=b.x)
            yield self._norm(b, b.x, layer.attention_out_norm, out=b.projected, layer=i)
        yield self._norm(b, b.projected, layer.post_attention_norm, out=b.x, add=True, layer=i)

    def _mlp_output(
        self, b: StepBuffers, layer: LayerWeights, i: int, next_norm: torch.Tensor | None
    ) -> Iterator[SiteCall]:
        """Down projection into the residual, then the next norm into ``x`` (none where ``next_norm`` is None)."""
        if layer.mlp_out_norm is None:
            yield self._call(
                "gated_mlp_down",
                b.activated,
                self._mlp_dims,
                i,
                x=b.activated,
                w_down=layer.w_down,
                residual=b.residual,
            )
            if next_norm is not None:
                yield self._norm(b, b.residual, next_norm, out=b.x, layer=i)
            return
        yield self._op("linear", b.activated, x=b.activated, w=layer.w_down, b=None, out=b.x)
        yield self._norm(b, b.x, layer.mlp_out_norm, out=b.projected, layer=i)
        if next_norm is not None:
            yield self._norm(b, b.projected, next_norm, out=b.x, add=True, layer=i)
        else:
            yield self._op("add", b.projected, x=b.projected, residual=b.residual)

    def _norm(
        self,
        b: StepBuffers,
        x: torch.Tensor,
        weight: torch.Tensor,
        *,
        out: torch.Tensor,
        add: bool = False,
        layer: int | None = None,
    ) -> SiteCall:
        dims = {"hidden_size": self.spec.hidden_size, "has_residual": int(add)}
        residual = b.residual if add else None
        return self._call(
            "residual_rmsnorm",
            x,
            dims,
            layer,
            scalars={"eps": self.spec.rms_norm_eps},
            x=x,
            residual=residual,
            weight=weight,
            out=out,
        )

    @property
    def _mlp_dims(self) -> dict[str, int]:
        return {"hidden_size": self.spec.hidden_size, "intermediate_size": self.spec.intermediate_size}

    def _call(
        self,
        operation: str,
        rows: torch.Tensor,
        dims: dict[str, int],
        layer: int | None = None,
        /,
        scalars: Mapping[str, float] | None = None,
        **tensors: torch.Tensor | None,
    ) -> SiteCall:
        """A call of a contract; ``num_tokens`` is the number of ``rows``."""
        site = Site(operation, tuple(sorted({**dims, "num_tokens": rows.shape[0]}.items())), self.storage)
        return SiteCall(site, tensors, scalars or {}, layer)

    def _op(self, operation: str, rows: torch.Tensor, /, **tensors: torch.Tensor | None) -> SiteCall:
        """A call only the library runs."""
        return SiteCall(Site(operation, (("num_tokens", rows.shape[0]),), self.storage), tensors, {})
