"""Kernels in place of regions: the callable gives what the module gives, and falls back where it must."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from generator.analyze import Analysis
from generator.capture import Capture
from generator.compile.bound import BoundRegion, Fallbacks
from generator.compile.module import CompiledModule, Replacement, rewritten
from generator.compile.subject import Subject, SubjectError, load_subject
from generator.compile.survey import Kind, survey
from generator.compile.tournament import instantiate_plan
from generator.compile.whole import compare_whole
from generator.kernel_templates.specs import RowSpec
from generator.plan import hardware_of
from generator.plan.fusion import epilogue_of
from kb.dtype import Target
from runtime.compile_cache import CompileCache
from runtime.device import cpu_device


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> CompileCache:
    return CompileCache(tmp_path_factory.mktemp("images"))


def replacements(kind: Kind, captured: Capture, fallbacks: Fallbacks, cache: CompileCache) -> list[Replacement]:
    assert kind.plans is not None
    candidate = instantiate_plan(kind, kind.plans.plans[0], Target.CPU)
    return [
        Replacement(region.nodes, BoundRegion(region.id, contract, captured.graph, candidate, fallbacks, cache=cache))
        for region, contract in zip(kind.members, kind.contracts, strict=True)
    ]


@pytest.fixture
def compiled(subject: Subject, captured: Capture, kinds: tuple[Kind, ...], cache: CompileCache) -> CompiledModule:
    """The norms and the softmax by kernels, everything else by the framework."""
    fallbacks = Fallbacks()
    wanted = [k for k in kinds if isinstance(k.spec, RowSpec)]
    assert len(wanted) == 2
    made = [item for kind in wanted for item in replacements(kind, captured, fallbacks, cache)]
    assert captured.program is not None
    found = rewritten(captured.program, captured.graph, made)
    assert found.left_out == []
    return CompiledModule(subject.module, found, fallbacks)


def test_it_gives_what_the_module_gives(compiled: CompiledModule, subject: Subject) -> None:
    found = compare_whole(compiled, subject, Target.CPU, seconds=None)
    assert found.same
    assert found.difference is not None
    assert found.difference < 0.02
    assert compiled.fallbacks.total == 0


def test_new_inputs_of_the_same_sizes_run_on_the_kernels(compiled: CompiledModule, subject: Subject) -> None:
    x = torch.randn(2, 4, 64).bfloat16()
    with torch.no_grad():
        wanted = subject.module(x)
    for got, right in zip(compiled(x), wanted, strict=True):
        assert torch.allclose(got.float(), right.float(), atol=0.05)
    assert compiled.fallbacks.total == 0


def test_another_size_is_the_modules_business_with_a_warning_and_a_count(
    compiled: CompiledModule, subject: Subject
) -> None:
    x = torch.randn(3, 4, 64).bfloat16()
    with pytest.warns(UserWarning, match="falls back to the framework"):
        scores, _ = compiled(x)
    assert torch.equal(scores, subject.module(x)[0])
    compiled(x)
    assert compiled.fallbacks.counts == {"the module": 2}


def test_a_value_at_an_odd_address_is_computed_by_the_regions_own_operators(
    compiled: CompiledModule, subject: Subject
) -> None:
    x = torch.randn(2 * 4 * 64 + 1).bfloat16()[1:].view(2, 4, 64)
    with pytest.warns(UserWarning, match="multiple of 16"):
        scores, _ = compiled(x)
    assert torch.allclose(scores.float(), subject.module(x)[0].float(), atol=0.05)
    assert compiled.fallbacks.total == 1  # the first norm reads x; the second reads what a kernel wrote


def test_a_kernel_that_cannot_be_loaded_leaves_the_framework(
    captured: Capture, kinds: tuple[Kind, ...], subject: Subject, cache: CompileCache
) -> None:
    fallbacks = Fallbacks()
    kind = next(k for k in kinds if k.label == "LayerNorm")
    made = replacements(kind, captured, fallbacks, cache)
    broken = made[0].region
    broken._candidate = broken._candidate.model_copy(update={"source": "this is no C++"})
    assert captured.program is not None
    call = CompiledModule(subject.module, rewritten(captured.program, captured.graph, made), fallbacks)
    with pytest.warns(UserWarning, match="falls back"):
        scores, _ = call(*subject.args)
    call(*subject.args)
    assert torch.allclose(scores.float(), subject.module(*subject.args)[0].float(), atol=0.05)
    assert fallbacks.counts == {broken.name: 2}
    assert "CompileError" in fallbacks.reasons[broken.name]


def test_what_follows_a_product_runs_beside_the_frameworks_product(
    captured: Capture, analysis: Analysis, subject: Subject, cache: CompileCache
) -> None:
    rest = [r for region in analysis.regions if (r := epilogue_of(region, captured.graph)) is not None]
    kinds = survey(rest, captured.graph, hardware_of(cpu_device()), limit=1)
    assert sorted(k.label for k in kinds) == ["add, after linear", "gelu, after linear"]
    fallbacks = Fallbacks()
    made = [item for kind in kinds for item in replacements(kind, captured, fallbacks, cache)]
    assert captured.program is not None
    call = CompiledModule(subject.module, rewritten(captured.program, captured.graph, made), fallbacks)
    assert call.regions == 4
    assert compare_whole(call, subject, Target.CPU, seconds=None).same
    assert fallbacks.total == 0


def test_gradients_are_not_recorded(compiled: CompiledModule, subject: Subject) -> None:
    assert any(p.requires_grad for p in subject.module.parameters())
    assert not any(out.requires_grad for out in compiled(*subject.args))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no/such/folder", "neither a folder"),
        ("no.such.module:fn", "cannot be imported"),
        ("tests.generator.compile.modules:missing", "has no function"),
        ("tests.generator.compile.modules:nothing", "must return a module"),
        ("tests.generator.compile.modules:failing", "failed with ValueError: no weights here"),
    ],
)
def test_what_cannot_be_compiled_is_said_in_one_line(text: str, message: str) -> None:
    with pytest.raises(SubjectError, match=message):
        load_subject(text)


def test_a_folder_without_a_config_is_named(tmp_path: Path) -> None:
    with pytest.raises(SubjectError, match=r"config\.json"):
        load_subject(str(tmp_path))
