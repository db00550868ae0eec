"""Examples of rules: small libraries in memory. They are printed on a rule's page and run as its tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

BLOCK: Mapping[str, str] = {
    "id": "demo/wide-loads",
    "title": "Read weights with wide loads",
    "kind": "decision",
    "status": "accepted",
    "version": "1",
    "patterns": "[gemv]",
    "when": "{target: [cuda], batch: {max: 4}}",
    "claim": "Let neighbouring lanes read neighbouring 16-byte pieces of one weight row.",
    "why": "Every weight byte is used once, so the number of bytes in flight decides how fast the row is read.",
    "effect": "{low: 1.2, high: 1.6, of: time of one projection}",
    "evidence": """
  - kind: published
    what: Wide loads against narrow ones on one long weight.
    hardware: NVIDIA H200
    baseline: 4-byte loads
    value: {number: 3.8, unit: TB/s}
    baseline_value: {number: 2.1, unit: TB/s}
    reference: someone/kernels#12""",
    "authors": "[Ada]",
    "created": '"2026-11-30"',
    "modified": '"2026-11-30"',
}
DEAD_END: Mapping[str, str] = {
    **BLOCK,
    "id": "demo/scalar-tail",
    "title": "Do not walk a ragged row with a scalar loop",
    "kind": "dead_end",
    "claim": "Do not give the whole row to a scalar loop because its last piece is ragged.",
    "effect": "{low: 0.4, high: 0.9, of: time of one projection}",
    "retry_when": "Rows become so short that the tail is most of the row.",
}
CONTRACT: Mapping[str, str] = {
    "id": "gemv",
    "title": "Product of one weight and a few rows",
    "family": "demo",
    "status": "accepted",
    "version": "1",
    "summary": "A few rows times one weight.",
    "semantics": "out = round_T(x @ w^T), sums in float32.",
    "dims": """
  num_tokens: {kind: static, doc: Rows of the step, max: 64}
  width: {kind: static, doc: Length of the contraction, max: 32768}
  rows: {kind: static, doc: Rows of the weight, max: 65536}""",
    "constraints": '["width % 8 == 0"]',
    "tensors": """
  - {name: x, role: in, shape: [num_tokens, width], dtype: T, doc: Input rows}
  - {name: w, role: in, shape: [rows, width], dtype: T, doc: The weight}
  - {name: out, role: out, shape: [num_tokens, rows], dtype: T, doc: The products}""",
    "dtypes": """
  storage: [bfloat16, float16]
  accumulate: float32
  rounding:
    - {point: the output, to: T, binding: true, why: Storage}""",
    "numerics": """
  reference: gemv
  tolerance: {floor: 1.0}
  distributions: [normal, outliers, tiny, zeros]""",
    "variants": """
  - {id: one-row, when: num_tokens == 1, doc: Bandwidth decides}
  - {id: few-rows, when: num_tokens > 1, doc: Reuse decides}""",
    "baselines": """
  cuda: [torch_eager]
  cpu: [torch_eager]""",
    "sweep": """
  correctness:
    - {num_tokens: 1, width: 64, rows: 33}
    - {num_tokens: 5, width: 72, rows: 16}
  performance:
    - {num_tokens: 1, width: 4096, rows: 4096}""",
}


@dataclass(frozen=True, slots=True)
class Example:
    """Files of a small library, and what of them is worth showing.

    ``files`` go on top of the demo library (one contract, one block); ``base`` is the revision they are compared
    with, for rules about changes. ``beside`` are paths that exist besides the entries.
    """

    shown: str
    files: Mapping[str, bytes]
    base: Mapping[str, bytes] | None = None
    beside: frozenset[str] = field(default_factory=frozenset)

    def library(self) -> dict[str, bytes]:
        """All files of the example."""
        return {**DEMO, **self.files}

    def base_library(self) -> dict[str, bytes]:
        """All files of the base revision."""
        return {**DEMO, **(self.base or {})}


def _text(template: Mapping[str, str], changes: Mapping[str, str | None]) -> str:
    fields = {**template, **changes}
    return "".join(_field(k, v) for k, v in fields.items() if v is not None)


def _field(key: str, value: str) -> str:
    return f"{key}:{value}\n" if value.startswith(("\n", " ")) else f"{key}: {value}\n"


DEMO: Mapping[str, bytes] = {
    "principles/demo/wide-loads.yaml": _text(BLOCK, {}).encode(),
    "contracts/gemv.yaml": _text(CONTRACT, {}).encode(),
}


def block(template: Mapping[str, str] = BLOCK, /, **changes: str | None) -> Example:
    """The demo block with these fields written differently (None: left out)."""
    text = _text(template, changes)
    path = f"principles/{(changes.get('id') or template['id']).strip(chr(34))}.yaml"
    return Example(_shown(changes), {path: text.encode()})


def dead_end(**changes: str | None) -> Example:
    """The demo dead end with these fields written differently."""
    return block(DEAD_END, **changes)


def contract(**changes: str | None) -> Example:
    """The demo contract with these fields written differently."""
    text = _text(CONTRACT, changes)
    return Example(_shown(changes), {f"contracts/{changes.get('id') or 'gemv'}.yaml": text.encode()})


def raw(content: str | bytes, *, path: str = "principles/demo/wide-loads.yaml", shown: str = "") -> Example:
    """A file with exactly this content."""
    data = content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass")
    return Example(shown or data.decode("utf-8", "backslashreplace"), {path: data})


def at(path: str, example: Example) -> Example:
    """The example's file under another path."""
    (data,) = example.files.values()
    return Example(f"# {path}\n{example.shown}", {path: data})


def together(*examples: Example, beside: tuple[str, ...] = ()) -> Example:
    """Several files in one library."""
    files: dict[str, bytes] = {}
    for example in examples:
        files.update(example.files)
    shown = "\n".join(f"# {next(iter(e.files))}\n{e.shown}" for e in examples if e.shown)
    return Example(shown, files, beside=frozenset(beside))


def change(before: Example | None, after: Example | None) -> Example:
    """A file before and after; None: it is not there."""
    shown = "".join(
        f"# {label}\n{(example.shown or '(the demo entry)') if example is not None else '(no such file)'}\n"
        for label, example in (("before", before), ("after", after))
    )
    return Example(shown, after.files if after is not None else {}, base=before.files if before is not None else {})


def _shown(changes: Mapping[str, str | None]) -> str:
    lines = [_field(k, v).rstrip("\n") if v is not None else f"# no '{k}'" for k, v in changes.items()]
    return "\n".join(lines)
