"""The text of a new entry: what is known filled in, every other field there with a comment that says what it is for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

from kb.principle import Kind
from kb.yaml.emit import emit_block


@dataclass(frozen=True, slots=True)
class NewPrinciple:
    """What an author must say about a block before its file can exist."""

    id: str
    kind: Kind
    title: str
    patterns: Sequence[str]
    claim: str
    why: str
    evidence: str
    author: str
    reference: str | None = None
    value: tuple[float, str] | None = None
    retry_when: str | None = None


@dataclass(frozen=True, slots=True)
class NewContract:
    """What an author must say about a contract before its file can exist."""

    id: str
    title: str
    family: str
    summary: str
    semantics: str


def principle_text(new: NewPrinciple, today: date) -> str:
    """The file of a new block, a draft that loads."""
    evidence: dict[str, Any] = {"kind": "published" if new.reference else "reasoned", "what": _one(new.evidence)}
    if new.value is not None:
        evidence["value"] = {"number": new.value[0], "unit": new.value[1]}
    if new.reference:
        evidence["reference"] = new.reference
    lines = [
        "# yaml-language-server: $schema=../../site/schema/principle.json",
        "# The id is this file's place and never changes.",
        _field("id", new.id),
        _field("title", _one(new.title)),
        _field("kind", new.kind.value),
        "# draft, then accepted when a reviewer agrees; later superseded or retired, with status_reason.",
        _field("status", "draft"),
        "# Goes up by one with every change of meaning.",
        _field("version", 1),
        "# The contracts it speaks to.",
        _field("patterns", list(new.patterns)),
        "# Under which conditions it holds; {} is always. Such as:",
        "#   when: {target: [cuda], arch: {min: sm_90}, dtype: [bfloat16], batch: {max: 8}, bound: memory,",
        '#          dims: ["head_dim <= 128"], features: [qk_norm], without: [gqa]}',
        "when: {}",
        "# What to do: imperative prose. No source code, no model's name, no model's sizes."
        if new.kind is not Kind.DEAD_END
        else "# What not to do: imperative prose. No source code, no model's name, no model's sizes.",
        _field("claim", _one(new.claim)),
        "# The mechanism, so that a reader can tell where it stops being true.",
        _field("why", _one(new.why)),
        "# Expected ratio, above 1 is faster: {low: 1.02, high: 1.1, of: a decode step}; or unknown.",
        _field("effect", "unknown"),
        "# measured (hardware, software, measured_on, value, and kernel or record), published (reference) or reasoned.",
        _field("evidence", [evidence]),
    ]
    if new.kind is Kind.DEAD_END:
        lines += ["# What would have to change for another try.", _field("retry_when", _one(new.retry_when or ""))]
    lines += [
        "# Links, where there are any: refines, requires, alternative, or contradicts with a note.",
        "# related:",
        "#   - {id: family/slug, relation: refines}",
        _field("authors", [new.author]),
        f'created: "{today.isoformat()}"',
        f'modified: "{today.isoformat()}"',
    ]
    return "\n".join(lines) + "\n"


def contract_text(new: NewContract) -> str:
    """The file of a new contract: a draft that loads, for one tensor in and one out."""
    semantics = new.semantics.strip() + "\n"
    return f"""\
# yaml-language-server: $schema=../site/schema/contract.json
# The id is this file's name and never changes.
{_field("id", new.id)}
{_field("title", _one(new.title))}
{_field("family", new.family)}
# draft, then accepted when a reviewer agrees.
status: draft
# Goes up by one with every change of meaning.
version: 1
{_field("summary", _one(new.summary))}
# The mathematics, tensor by tensor; round_T marks every rounding to the storage type T.
{_field("semantics", semantics)}
# static: compile-time constant; flag: 0 or 1; runtime: int argument; workload: known to the inputs alone.
dims:
  num_tokens: {{kind: static, doc: Rows of the step, max: 256}}
  hidden_size: {{kind: static, doc: Width of a row, max: 32768}}
# What must hold for every shape.
constraints: ["hidden_size % 8 == 0"]
# In argument order. Optional: align, present_when, writes (inout), traffic.
tensors:
  - {{name: x, role: in, shape: [num_tokens, hidden_size], dtype: T, doc: Input rows}}
  - {{name: out, role: out, shape: [num_tokens, hidden_size], dtype: T, doc: Output rows}}
# scalars:
#   - {{name: eps, dtype: float32, doc: Added under the root, example: 1.0e-6}}
dtypes:
  storage: [bfloat16, float16, float32]
  accumulate: float32
  # Every point where a value is rounded; binding: true where leaving it out changes what a model says.
  rounding:
    - {{point: the output, to: T, binding: true, why: Storage}}
numerics:
  # Name of the float64 reference; it has to be written too.
  {_field("reference", new.id)}
  tolerance: {{kappa: 1.25, floor: 1.0}}
  distributions: [normal, outliers, tiny, zeros]
# Hard gates of the analyzer; with dims: where they are conditions on sizes.
preconditions:
  - {{name: vector-width, doc: Rows start on 16 bytes, dims: "hidden_size % 8 == 0"}}
# Regimes that deserve a kernel of their own; the first that holds counts.
variants:
  - {{id: gemv, when: num_tokens == 1, doc: One row}}
  - {{id: few-rows, when: num_tokens > 1, doc: Several rows}}
baselines:
  cuda: [torch_eager]
  cpu: [torch_eager]
# Shapes that are always tried; vary lists what the validator perturbs for the shapes it keeps to itself.
sweep:
  correctness:
    - {{num_tokens: 1, hidden_size: 1024}}
    - {{num_tokens: 3, hidden_size: 520}}
  performance:
    - {{num_tokens: 1, hidden_size: 4096}}
  vary: {{num_tokens: [2, 7], hidden_size: [64, 1032]}}
"""


def _field(name: str, value: Any) -> str:
    return f"{name}:{emit_block(value, 0)}"


def _one(text: str) -> str:
    return " ".join(text.split())
