"""Calls in every form the module takes, and state that the module changes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from generator.capture import capture
from generator.compile.bound import Fallbacks
from generator.compile.module import CompiledModule, rewritten


class Counting(nn.Module):
    """Counts its calls, overwrites an argument, takes nested arguments and a number."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(
        self, given: dict[str, torch.Tensor], *, factor: int = 2, bias: torch.Tensor
    ) -> dict[str, torch.Tensor | tuple[torch.Tensor, int]]:
        self.calls.add_(1)
        given["a"].mul_(factor)
        return {"y": given["a"] + bias, "z": (self.calls * 1.0, factor)}


def compiled(module: nn.Module) -> CompiledModule:
    example = {"a": torch.ones(4)}
    captured = capture(module, (example,), {"factor": 2, "bias": torch.ones(4)})
    assert captured.program is not None
    return CompiledModule(module, rewritten(captured.program, captured.graph, []), Fallbacks())


@pytest.fixture(scope="module")
def counting() -> CompiledModule:
    return compiled(Counting())


def test_keywords_in_any_order_and_nested_arguments_are_the_same_call(counting: CompiledModule) -> None:
    for number in (1, 2):
        given = {"a": torch.full((4,), 3.0)}
        result = counting(given, bias=torch.zeros(4), factor=2)
        assert torch.equal(result["y"], torch.full((4,), 6.0))
        assert torch.equal(given["a"], torch.full((4,), 6.0))  # the argument is overwritten as the module does
        assert result["z"][1] == 2
        assert float(result["z"][0]) == float(counting.module.calls) == number
    assert counting.fallbacks.total == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"factor": 3}, "3; 2 was captured"),
        ({"bias": torch.zeros(4, dtype=torch.float64)}, "float64"),
        ({"bias": torch.zeros(1)}, r"\[1\]"),
    ],
)
def test_another_call_is_the_modules_with_the_difference_named(change: dict[str, object], message: str) -> None:
    call = compiled(Counting())
    arguments = {"factor": 2, "bias": torch.zeros(4)} | change
    with pytest.warns(UserWarning, match=message):
        result = call({"a": torch.ones(4)}, **arguments)
    assert float(call.module.calls) == 1  # once, not twice
    assert result["y"].shape == (4,)
    assert call.fallbacks.counts == {"the module": 1}
