"""What counts as source, as a model's size or name, and as markup: and what good prose must be allowed to say."""

from __future__ import annotations

import pytest

from kb.lint import prose
from kb.lint.example import block
from kb.lint.known import MODEL_NAME
from tests.kb.lint.running import findings

ALLOWED = (
    "Give a warp eight weight rows when num_tokens == 1, and stay at four otherwise; the registers allow it.",
    "Accumulate in float32. Round the sum once, to T, before the residual is added (x + residual).",
    "The sum over k of w[n, k] * x[k] needs every w[n, k] once; out[n] is written once.",
    "Use ceil_div(rows, 8) blocks, so that rows <= 8 * blocks holds and the last block is ragged.",
    "If the batch is at most 8, for each chunk load the activations once; while loads fly, reduce the last chunk.",
    "Return to the caller; define the order; include the bias; a pragma is not needed.",
    "Use the m16n8k16 matrix instruction with float32 accumulators and cp.async with a depth of 3.",
    "Requires 16-byte aligned rows, 4 KB pages and 128 threads; takes 2.5 µs at 4.3 TB/s on sm_90.",
    "Shuffle with a full mask (0xffffffff) only where every lane takes part, i.e. never inside a branch.",
    "A float sum of 4096 terms loses 12 bits; an int index is fine; auto tuning is not needed here.",
    "Keep a < b, c > d and e <= f; x -> y is a map.",
    "Split at K >= 8192, N < 4096: clusters of 8 blocks; 2048 rows a block; 65536 entries at most.",
)
SOURCE = (
    "float4 v = w4[i]; then go on",
    "acc += w[i] * x[i]; for every i",
    "for (int i = 0; i < n; i += 32) do it",
    "if (lane == 0) { out[row] = sum; }",
    "combine with __shfl_xor_sync(0xffffffff, v, 16)",
    "mark it __restrict__ and go",
    "use atomicAdd(&sum, v) at the end",
    "start it with gemv<<<grid, block>>>(x)",
    "row = blockIdx.x * 8 + threadIdx.x / 32",
    "#pragma unroll is enough",
    "reinterpret_cast<const uint4*>(w)",
    "```\nx\n```",
    "std::vector of floats",
    'asm volatile ("ld.global")',
    "_mm512_dpbf16_ps(acc, a, b)",
    "x = tl.load(ptr + offsets)",
    "__nv_bfloat16 value;",
    "vfmaq_f32(acc, a, b) on arm",
    "def kernel(x): pass",
    "cudaMemcpyAsync(dst, src, n)",
)


@pytest.mark.parametrize("text", ALLOWED)
def test_prose_about_kernels_is_not_source(text: str) -> None:
    assert list(prose.findings(text, prose.TOKENS_AND_STATEMENTS)) == []


@pytest.mark.parametrize("text", SOURCE)
def test_source_is_found_where_it_stands(text: str) -> None:
    found = list(prose.findings(text, prose.TOKENS_AND_STATEMENTS))
    assert found
    for needle, index, what in found:
        assert text[index : index + len(needle)] == needle
        assert what


@pytest.mark.parametrize(
    "text",
    ["llama.cpp does so", "the ggml llama.cpp kernels", "gamma and phi", "a falconer", "options", "clip the value"],
)
def test_projects_and_words_are_not_models(text: str) -> None:
    assert MODEL_NAME.search(text) is None


@pytest.mark.parametrize(
    "text",
    ["Qwen3-4B", "Llama 3", "llama-like", "Mistral", "Falcon3", "GLM-4", "BERT", "DeepSeek-V3", "GPT-2", "Phi-3"],
)
def test_models_are_found_by_name(text: str) -> None:
    assert MODEL_NAME.search(f"as in {text} blocks") is not None


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a row of 9728 columns", ["9728"]),
        ("151,936 rows", ["151,936"]),
        ("from 6144 to 2560", ["6144", "2560"]),
        ("3072 bytes in flight", []),
        ("a step of 5120 tokens", []),
        ("reads 1536 B, then waits", []),
        ("4096, 8192 and 128 are powers of two", []),
        ("owner/name#2560", []),
        ("1.2560 of it", []),
    ],
)
def test_a_models_size_is_told_from_an_amount(text: str, found: list[str]) -> None:
    claim = f'"Read the row in pieces and keep the order of the sum fixed; {text}"'
    hits = [f for f in findings(block(claim=claim)) if f.code == "AC111"]
    assert [hit.message.split()[0] for hit in hits] == found


def test_the_finding_points_at_the_word_inside_a_folded_text() -> None:
    text = ">-\n  Every weight byte is used once, and a row of\n  9728 columns is long."
    (hit,) = findings(block(why=text))
    assert (hit.line, hit.column) == (11, 3)


def test_evidence_may_name_models_and_sizes() -> None:
    evidence = (
        "\n  - {kind: published, what: Qwen3-4B with 9728 columns, value: {number: 2, unit: ratio}, reference: a/b}"
    )
    assert findings(block(evidence=evidence)) == []
