"""The decision matrix: every principle against the situations people are in, evaluated, not read."""

from __future__ import annotations

from dataclasses import dataclass

from kb.condition import Situation, applies, describe
from kb.dtype import DType, Target
from kb.features import target_features
from kb.principle import Principle, Status
from kb.site import text, words
from kb.site.content import Content
from kb.site.places import link_html, principle_page

PAGE = "browse/matrix.md"


@dataclass(frozen=True, slots=True)
class Column:
    """A situation with its name."""

    name: str
    situation: Situation


def _cuda(name: str, arch: str, rows: int) -> Column:
    features = target_features(Target.CUDA, arch)
    situation = Situation(
        target=Target.CUDA,
        arch=arch,
        dtype=DType.BFLOAT16,
        dims={"num_tokens": rows},
        features=features,
        undecided=_MODEL,
    )
    return Column(name, situation)


def _cpu(name: str, rows: int) -> Column:
    return Column(name, Situation(target=Target.CPU, arch="x86_64", dtype=DType.BFLOAT16, dims={"num_tokens": rows}))


def _model_features() -> frozenset[str]:
    from kb.features import MODEL_FEATURES

    return frozenset(MODEL_FEATURES)


_MODEL = _model_features()
COLUMNS = (
    _cuda("sm_80, 1 row", "sm_80", 1),
    _cuda("sm_90, 1 row", "sm_90", 1),
    _cuda("sm_90, 8 rows", "sm_90", 8),
    _cuda("sm_90, 64 rows", "sm_90", 64),
    _cuda("sm_100, 1 row", "sm_100", 1),
    _cpu("x86-64, 1 row", 1),
    _cpu("x86-64, 16 rows", 16),
)
_CELLS = {True: ("yes", "●", "holds"), False: ("no", "", "does not hold"), None: ("open", "○", "depends on the model")}


def page(content: Content) -> str:
    """The matrix as one table a family; the first column stays in sight when a phone scrolls it."""
    parts = [
        "Each column is a situation with bfloat16 weights. ● holds there, ○ depends on what else the contract, the "
        "model or the machine has, empty does not hold. The last column has the conditions themselves."
    ]
    for family, principles in content.families.items():
        parts.append(f"## {text.inline(words.family_name(family))}")
        parts.append(_table([p for p in principles if p.status is not Status.RETIRED]))
    return text.page("Decision matrix", parts, hide=["navigation", "toc"])


def _table(principles: list[Principle]) -> str:
    head = "".join(f'<th scope="col">{text.html(c.name).replace(", ", ",<br>")}</th>' for c in COLUMNS)
    body = "".join(_row(p) for p in principles)
    return (
        '<div class="ac-matrix"><table><thead><tr><th scope="col">principle</th>'
        f'{head}<th scope="col">conditions</th></tr></thead><tbody>{body}</tbody></table></div>'
    )


def _row(p: Principle) -> str:
    cells = "".join(_cell(applies(p.when, column.situation).holds) for column in COLUMNS)
    mark = f'<span class="ac-mark ac-{p.kind.value.replace("_", "-")}">{words.MARKS[p.kind]}</span>'
    kind = f'<span class="ac-hidden">{words.KINDS[p.kind]}: </span>'
    title = link_html(PAGE, text.html(p.title), principle_page(p.id))
    conditions = text.html("; ".join(describe(p.when)) or "always")
    return f'<tr><th scope="row">{mark} {kind}{title}</th>{cells}<td class="ac-conditions">{conditions}</td></tr>'


def _cell(holds: bool | None) -> str:
    css, mark, meaning = _CELLS[holds]
    return f'<td class="ac-{css}"><span aria-hidden="true">{mark}</span><span class="ac-hidden">{meaning}</span></td>'
