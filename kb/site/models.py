"""Model families: what their decoders ask for, and which contract covers which part of a step.

The table is written here because the knowledge base may not import the engine; a test holds it against the families
that the engine reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kb.dtype import Target
from kb.site import text
from kb.site.content import Content
from kb.site.places import contract_page, kernel_label, kernel_page, link
from kb.store import Entry

INDEX = "models/index.md"


@dataclass(frozen=True, slots=True)
class Family:
    """One ``model_type`` of a checkpoint's config. ``library_only``: sites that no contract covers, with the reason."""

    model_type: str
    name: str
    traits: tuple[str, ...]
    qk_norm: bool = False
    interleaved: bool = False
    partial_rotary: bool = False
    sandwich_norms: bool = False


FAMILIES = (
    Family(
        "qwen3", "Qwen3", ("RMSNorm on query and key heads", "windowed attention where the config asks"), qk_norm=True
    ),
    Family("llama", "Llama, Falcon3", ("scaled rotary embeddings", "optional projection biases")),
    Family("mistral", "Mistral", ("windowed attention",)),
    Family(
        "glm",
        "GLM-4",
        ("rotation of neighbouring elements over half of each head", "biases on query, key and value"),
        interleaved=True,
        partial_rotary=True,
    ),
    Family(
        "glm4",
        "GLM-4-0414",
        ("as GLM-4", "attention and MLP outputs are normalised before they are added"),
        interleaved=True,
        partial_rotary=True,
        sandwich_norms=True,
    ),
    Family("qwen3_vl", "Qwen3-VL, text", ("the decoder of the vision model", "as Qwen3"), qk_norm=True),
)
# Step of a layer, contract that covers it, contract used where the first one's preconditions do not hold.
_PRELUDE = "attention_prelude"
_NORM = "residual_rmsnorm"


def page_of(family: Family) -> str:
    """Path of a family's page."""
    return f"models/{family.model_type}.md"


def pages(content: Content) -> Iterator[tuple[str, str]]:
    """Path and text of the index and of every family's page."""
    yield INDEX, _index(content)
    for family in FAMILIES:
        yield page_of(family), _page(content, family)


def sites(family: Family) -> tuple[tuple[str, str | None, str], ...]:
    """Parts of a decode step in order: what, the covering contract (None: the library alone), and a remark."""
    features = [
        name
        for name, on in (
            ("head norms", family.qk_norm),
            ("neighbour rotation", family.interleaved),
            ("partial rotation", family.partial_rotary),
        )
        if on
    ]
    prelude = f"with {', '.join(features)}" if features else ""
    if family.sandwich_norms:
        output: tuple[tuple[str, str | None, str], ...] = (
            (
                "attention output projection",
                None,
                "its output is normalised before the residual, which no contract fuses",
            ),
            ("norm of the attention output", _NORM, "without a residual"),
            ("residual and norm before the MLP", _NORM, ""),
        )
        down: tuple[tuple[str, str | None, str], ...] = (
            ("down projection", None, "its output is normalised before the residual, which no contract fuses"),
            ("norm of the MLP output", _NORM, "without a residual"),
            ("residual and the next norm", _NORM, ""),
        )
    else:
        output = (
            ("attention output projection, residual and norm", "o_proj_residual_rmsnorm", "where it has no bias"),
        )
        down = (("down projection and residual", "gated_mlp_down", ""), ("the next norm", _NORM, "without a residual"))
    return (
        ("projection of queries, keys and values, rotation and cache write", _PRELUDE, prelude),
        ("attention over the paged cache", "paged_decode_attention", ""),
        *output,
        ("gate and up projections with their activation", "gated_mlp_up", ""),
        *down,
        ("vocabulary projection and greedy choice", "lm_head_argmax", "sampling runs on the library's logits"),
    )


def _index(content: Content) -> str:
    rows = []
    for family in FAMILIES:
        covered = [contract for _, contract, _ in sites(family) if contract]
        total = len(sites(family))
        rows.append(
            (
                link(INDEX, family.name, page_of(family)),
                text.code(family.model_type),
                text.inline("; ".join(family.traits)),
                f"{len(covered)} of {total}",
                str(len({k.digest for c in set(covered) for k in _admitted(content, c)})),
            )
        )
    parts = [
        "The engine reads a checkpoint's config into one typed description; a family is a value of its `model_type`. "
        "The encoder contracts are for bidirectional encoders and serve none of these decoders.",
        text.table(("family", "model_type", "what is special", "parts with a contract", "kernels that fit"), rows),
    ]
    return text.page("Model families", parts)


def _page(content: Content, family: Family) -> str:
    here = page_of(family)
    rows: list[tuple[str, ...]] = []
    for what, contract, remark in sites(family):
        if contract is None:
            rows.append((text.inline(what), "library only", "", "", text.inline(remark)))
            continue
        known = contract in content.library.contracts
        label = link(here, contract, contract_page(contract)) if known else text.code(contract)
        cells = [_best(here, content.kernels_of(contract, target)) for target in Target]
        rows.append((text.inline(what), label, *cells, text.inline(remark)))
    special = text.bullets(text.inline(t) for t in family.traits)
    parts = [
        "## What is special",
        special,
        "## Parts of a decode step",
        "At each of these the engine may run an admitted kernel instead of the library path; it measures before it "
        "does.",
        text.table(
            ("part of a layer or step", "contract", *(f"fastest on {t.value}" for t in Target), "remark"),
            rows,
        ),
        "The table says which contracts fit. Which kernel runs on a given machine is measured there and differs from "
        "machine to machine.",
    ]
    return text.page(f"{family.name} ({family.model_type})", parts)


def _best(here: str, kernels: tuple[Entry, ...]) -> str:
    admitted = [k for k in kernels if k.manifest.status == "admitted"]
    if not admitted:
        return "library"
    best = max(admitted, key=lambda k: (k.ratio, k.digest))
    return f"{link(here, kernel_label(best), kernel_page(best.manifest))} {best.ratio:.2f}×"


def _admitted(content: Content, contract: str) -> list[Entry]:
    return [k for k in content.kernels_of(contract) if k.manifest.status == "admitted"]
