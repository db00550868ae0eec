"""Values of the command line that several commands take: what is refused, in one line."""

from __future__ import annotations

import pytest

from generator.cli.arguments import check_also, check_arch
from kb.cli.failure import Failure
from kb.dtype import Target


@pytest.mark.parametrize("arch", ["sm_90a", "hopper", "sm_9", "sm_090", ""])
def test_an_architecture_that_is_none_is_refused(arch: str) -> None:
    with pytest.raises(Failure, match=f"--arch {arch}: expected a compute capability such as sm_90"):
        check_arch(Target.CUDA, arch)


@pytest.mark.parametrize(
    ("target", "arch"), [(Target.CUDA, "sm_80"), (Target.CUDA, "sm_120"), (Target.CUDA, None), (Target.CPU, "x86_64")]
)
def test_what_names_one_or_leaves_it_open_is_taken(target: Target, arch: str | None) -> None:
    assert check_arch(target, arch) == arch


def test_another_architecture_to_compile_for_is_one_of_a_gpu() -> None:
    assert check_also(Target.CUDA, ["sm_80", "sm_86"]) == ("sm_80", "sm_86")
    assert check_also(Target.CPU, None) == ()
    with pytest.raises(Failure, match="--also sm_80: only for --target cuda"):
        check_also(Target.CPU, ["sm_80"])
    with pytest.raises(Failure, match="--also newer: expected a compute capability"):
        check_also(Target.CUDA, ["sm_80", "newer"])
