"""AC108 to AC115: the id, the title and the prose of an entry."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kb.diagnostic import Severity
from kb.digest import folded
from kb.library import EntryKind
from kb.lint import prose
from kb.lint.example import at, block, contract
from kb.lint.known import AMOUNT, DIMENSIONS, MODEL_NAME, NUMBER
from kb.lint.rule import EntryRule, Hit, PrincipleRule, Subject
from kb.principle import Principle


class IdIsNotPath(EntryRule):
    """An id does not equal the file's path.

    ``principles/<family>/<slug>.yaml`` holds ``<family>/<slug>``, ``contracts/<id>.yaml`` holds ``<id>``: who reads a
    link finds the file without a search. An id never changes, so move the file back; a new id is a new entry.
    """

    code = "AC108"
    companions = ("AC301",)
    bad = (
        at("principles/demo/narrow-loads.yaml", block()),
        at("contracts/gemm.yaml", contract()),
    )
    good = (block(), block(id="demo/other", title="Something else"))

    def check(self, subject: Subject) -> Iterator[Hit]:
        wanted = subject.entry.path.split("/", 1)[1].removesuffix(".yaml")
        found = subject.entry.id
        if found != wanted:
            yield subject.hit(
                ("id",), f"the id is '{found}', the path says '{wanted}'", f"id: {wanted}, or move the file"
            )


class SourceInProse(EntryRule):
    """Kernel source in prose.

    Principles carry knowledge, not code: source in a prompt is copied, source in a block goes stale unseen. Code
    fences, statements, intrinsics with arguments and CUDA or C++ tokens are refused in every prose field (in a
    contract, whose formulas may look like statements, only the tokens). Say what happens: *a barrier over the block*,
    *a butterfly over the lanes*.
    """

    code = "AC110"
    bad = (
        block(claim="Use `float4 v = reinterpret_cast<const float4*>(w)[i];` for every piece of the row."),
        block(why="Lanes combine with __shfl_xor_sync(mask, v, 16), so no shared memory is needed at all here."),
        block(claim='"for (int i = threadIdx.x; i < n; i += blockDim.x) sum += w[i] * x[i];"'),
    )
    good = (
        block(claim="Read the row in 16-byte pieces; combine lanes by a butterfly (five exchanges, fixed order)."),
        block(why="The sum over i of w[i] * x[i] needs each w[i] once, so bytes decide and not arithmetic."),
    )

    def check(self, subject: Subject) -> Iterator[Hit]:
        is_contract = subject.entry.kind is EntryKind.CONTRACT
        patterns = prose.TOKENS if is_contract else prose.TOKENS_AND_STATEMENTS
        for path, text in prose.prose_of(subject.document.value or {}, contract=is_contract):
            for found, index, what in prose.findings(text, patterns):
                yield subject.hit_in(path, found, index, f"'{_short(found)}' is {what}", "say in words what happens")


class KnownDimensionInProse(EntryRule):
    """The size of a known model in prose.

    A block holds for every model, so it speaks in symbols: ``hidden_size``, *rows of the weight*. A literal such as
    9728 ties it to one model and says nothing to the next. Evidence may name sizes; amounts with a unit are not
    sizes.
    """

    code = "AC111"
    bad = (
        block(claim="With 9728 columns, let four warps share one row and combine them in a fixed order."),
        block(when="{dims: [width == 2560]}"),
        contract(summary="A few rows times one weight of 151,936 rows."),
    )
    good = (
        block(claim="With many columns, let four warps share one row; keep 3072 bytes in flight."),
        block(when="{dims: [width >= 4096]}"),
    )

    def check(self, subject: Subject) -> Iterator[Hit]:
        value = subject.document.value or {}
        for path, text in prose.prose_of(value, contract=subject.entry.kind is EntryKind.CONTRACT):
            for found, index, size in _sizes(text):
                yield subject.hit_in(
                    path, found, index, f"{found} is a size of {DIMENSIONS[size]}", "name the dim instead"
                )
        model = subject.entry.model
        if isinstance(model, Principle):
            for i, condition in enumerate(model.when.dims):
                for found, index, size in _sizes(condition.text):
                    yield subject.hit_in(
                        ("when", "dims", i), found, index, f"{found} is a size of {DIMENSIONS[size]}", "use a threshold"
                    )


class ModelNameInProse(EntryRule):
    """A model's name in prose.

    Names of models belong into evidence. What makes the model special is a feature or a dim: ask for that in ``when``.
    """

    code = "AC112"
    bad = (
        block(why="Qwen3 normalises every head before the rotation, so one pass over the head serves both of them."),
        contract(summary="The projection of Llama-style decoders."),
    )
    good = (block(why="As in llama.cpp, every weight byte is used once, so bytes in flight decide the time of a row."),)

    def check(self, subject: Subject) -> Iterator[Hit]:
        for path, text in prose.prose_of(
            subject.document.value or {}, contract=subject.entry.kind is EntryKind.CONTRACT
        ):
            for match in MODEL_NAME.finditer(text):
                yield subject.hit_in(
                    path,
                    match.group(),
                    match.start(),
                    f"'{match.group()}' is a model",
                    "name the feature or the dim that matters",
                )


class MarkupInProse(EntryRule):
    """Markup in prose.

    Prose is shown in prompts, terminals and on the site. HTML, Markdown links, templates and include marks do something
    in one of them and are noise in the others; some run code in a reader's browser.
    """

    code = "AC113"
    bad = (
        block(claim="See <script>alert(1)</script> for how neighbouring lanes read neighbouring pieces of a row."),
        block(claim='"Read the row as [described here](https://example.org) and never in any other way at all."'),
    )
    good = (block(claim="Keep a < b and c > d where a is in [0, 1], and read the row in pieces of 16 bytes."),)

    def check(self, subject: Subject) -> Iterator[Hit]:
        for path, text in prose.prose_of(
            subject.document.value or {}, contract=subject.entry.kind is EntryKind.CONTRACT
        ):
            for found, index, what in prose.findings(text, prose.MARKUP):
                yield subject.hit_in(
                    path, found, index, f"'{_short(found)}' is {what}", "use plain words; links go to references"
                )


class PlaceholderInProse(EntryRule):
    """A placeholder in prose.

    An accepted entry is rendered into prompts, and a model takes *TBD* for content. Drafts may hold placeholders.
    """

    code = "AC114"
    bad = (block(why="TODO measure this on another device, then describe the mechanism in one or two sentences."),)
    good = (block(status="draft", why="TODO measure this on another device, then describe the mechanism here."),)

    def check(self, subject: Subject) -> Iterator[Hit]:
        model = subject.entry.model
        if model is None or model.status.value == "draft":
            return
        for path, text in prose.prose_of(
            subject.document.value or {}, contract=subject.entry.kind is EntryKind.CONTRACT
        ):
            for found, index in prose.placeholders(text):
                yield subject.hit_in(
                    path, found, index, f"'{found}' in an entry that is not a draft", "finish the text"
                )


class ThinProse(PrincipleRule):
    """A claim or a reason too thin to act on.

    A claim that repeats the title, or a reason that repeats the claim, gives a reader nothing to check. Say what to
    do in enough detail to do it, and by which mechanism it works or fails.
    """

    code = "AC115"
    severity = Severity.WARNING
    bad = (
        block(claim="Read weights with wide loads."),
        block(why="It is faster."),
    )
    good = (block(),)

    def check(self, block: Principle, subject: Subject) -> Iterator[Hit]:
        if block.status.value == "draft":
            return
        texts = {"title": folded(block.title), "claim": folded(block.claim), "why": folded(block.why)}
        for name, before in (("claim", ("title",)), ("why", ("title", "claim"))):
            same = next((b for b in before if texts[b] == texts[name]), None)
            if same:
                yield subject.hit((name,), f"'{name}' repeats '{same}'", "say more, or drop the repetition")
            elif len(texts[name].split()) < 6:
                yield subject.hit(
                    (name,), f"'{name}' has {len(texts[name].split())} words", "say what to do, or why it works"
                )


def _sizes(text: str) -> Iterator[tuple[str, int, int]]:
    for match in NUMBER.finditer(text):
        size = int(match[1].replace(",", ""))
        if size in DIMENSIONS and not AMOUNT.match(text, match.end()):
            yield match[1], match.start(1), size


def _short(text: str) -> str:
    text = re.sub(r"\s+", " ", text)
    return text if len(text) <= 40 else text[:37] + "..."
