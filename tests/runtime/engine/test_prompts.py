"""Steps with prompts in them: pieces, packing, and what runs their decode rows and their fused parts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from kb.dtype import DType
from runtime.engine.library_ops import Library
from runtime.engine.packed_attention import _plain, can_pack
from runtime.engine.prompt_ops import FusedLibrary, fused_candidates, has_triton, prompt_operations
from runtime.engine.request import Output, SamplingParams
from runtime.engine.staging import Staging
from runtime.models.step import Sizes, allocate_metadata
from runtime.sites import Segment, Site, SiteCall
from tests.runtime.engine.checkpoints import greedy
from tests.runtime.engine.conftest import Checkpoint
from tests.runtime.engine.virtual_time import Clock, Taking

ROOT = Path(__file__).resolve().parents[3]
CPU = torch.device("cpu")
PROMPTS = [[5, 9, 30, 7], [40, 3, 8, 2, 2, 17, 9], [6] * 13]
PARAMS = SamplingParams(max_tokens=12, ignore_eos=True)


@pytest.mark.parametrize("window", [0, 6])
def test_packed_segments_name_the_slots_of_every_token_in_order(window: int) -> None:
    heads, kv_heads, head_dim, size = 4, 2, 8, 4
    torch.manual_seed(0)
    k, v = torch.randn(12, size, kv_heads, head_dim), torch.randn(12, size, kv_heads, head_dim)
    metadata = allocate_metadata(Sizes(rows=32, sequences=4, blocks_per_sequence=5), CPU)
    segments = (Segment(2, 9, 9, 1), Segment(11, 5, 17, 2), Segment(16, 1, 4, 3))
    staging = Staging(Sizes(32, 4, 5), metadata, size)
    metadata.block_table.copy_(torch.randperm(11)[:10].add(1).repeat(2).view(4, 5))
    packed = staging.pack(segments)
    assert packed.row_starts.tolist() == [0, 9, 14, 15]
    assert packed.slot_starts.tolist() == [0, 9, 26, 30]
    assert (packed.longest_rows, packed.longest_sequence) == (9, 17)
    dims = {"block_size": size, "num_tokens": 17, "sliding_window": window}
    q, out = torch.randn(17, heads, head_dim), torch.zeros(17, heads, head_dim)
    tensors = {"q": q, "k_cache": k, "v_cache": v, "block_table": metadata.block_table, "out": out}
    site = Site("prefill_attention", tuple(sorted(dims.items())), DType.FLOAT32)
    call = SiteCall(site, tensors, {"scale": 0.3}, 0, segments, packed)
    assert not can_pack(call)  # flash attention is a GPU's
    Library().bind(call)()
    flat_k, flat_v = (t.flatten(0, 1)[packed.slots.long()] for t in (k, v))
    for i, segment in enumerate(segments):
        rows = slice(2 + int(packed.row_starts[i]), 2 + int(packed.row_starts[i + 1]))
        part = slice(int(packed.slot_starts[i]), int(packed.slot_starts[i + 1]))
        expected = _plain(q[rows], flat_k[part], flat_v[part], 0.3, window)
        torch.testing.assert_close(out[segment.row : segment.row + segment.length], expected)


@pytest.mark.parametrize("buckets", [(1, 2, 4, 8), (8,)])
def test_decode_rows_beside_prompts_run_on_what_was_chosen_for_their_bucket(
    buckets: tuple[int, ...], checkpoint: Callable[[str], Checkpoint]
) -> None:
    c = checkpoint("qwen3")
    for fast in (True, False):
        engine = c.engine(buckets=buckets, max_step_tokens=12, fast_prompts=fast)
        clock = Clock()
        for bucket in buckets:
            for call in engine.executor.build(bucket, greedy=True).calls:
                if call.site.operation == "paged_decode_attention":
                    engine.selection.choose(call.site, Taking(clock, 1.0, "chosen"))
        done: dict[str, list[int]] = {}

        def keep(output: Output, done: dict[str, list[int]] = done) -> None:
            done.setdefault(output.request_id, []).extend(output.token_ids)

        names = [engine.add_request(PROMPTS[0], PARAMS, on_output=keep)]
        engine.step()
        before = clock.now_ns
        names += [engine.add_request(prompt, PARAMS, on_output=keep) for prompt in PROMPTS[1:]]
        engine.step()  # the first one decodes beside their prompts
        assert (clock.now_ns > before) == fast
        for _ in engine.run():
            pass
        assert [done[name] for name in names] == [greedy(c.model, prompt, 12) for prompt in PROMPTS], fast


def test_fused_kernels_are_for_gpus_and_for_steps_of_several_rows() -> None:
    assert not isinstance(prompt_operations(CPU), FusedLibrary)

    def offered(operation: str, rows: int) -> list[str]:
        return [c.name for c in fused_candidates(Site(operation, (("num_tokens", rows),), DType.BFLOAT16))]

    assert offered("gated_mlp_up", 1) == []
    assert offered("residual_rmsnorm", 64) == []
    assert offered("attention_prelude", 64) == (["library, fused"] if has_triton() else [])


@pytest.mark.slow
@pytest.mark.skipif(not has_triton(), reason="needs the package 'triton' (the cuda extra); it is not installed")
def test_fused_kernels_do_what_the_library_does_under_the_interpreter() -> None:
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests/runtime/engine/interpreted_prompts.py")],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": path},
        timeout=200,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == []
