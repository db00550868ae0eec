"""Launch plans at concrete dims: whatever expressions a candidate writes, sizes are possible or refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kb.dtype import Target
from runtime.device import DeviceInfo, assumed_cuda_device
from runtime.errors import LoadError
from runtime.kernel import kernel_dims, resolve_plan
from runtime.launch_cuda import check_launch
from tests.runtime.kernels_on_hand import candidate, contracts

NAMES = ("num_tokens", "hidden_size", "has_residual", "num_sms")
DEVICE = assumed_cuda_device("sm_90")
DIMS = st.fixed_dictionaries(
    {
        "num_tokens": st.integers(1, 8192),
        "hidden_size": st.integers(1, 4096).map(lambda n: 8 * n),
        "has_residual": st.integers(0, 1),
    }
)
ATOMS = st.sampled_from(NAMES) | st.integers(0, 70_000).map(str)


def _combine(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    operators = st.sampled_from(["+", "-", "*", "//", "%"])
    binary = st.tuples(parts, operators, parts).map(lambda t: f"({t[0]} {t[1]} {t[2]})")
    functions = st.sampled_from(["min", "max", "ceil_div"])
    return binary | st.tuples(functions, parts, parts).map(lambda t: f"{t[0]}({t[1]}, {t[2]})")


EXPRESSIONS = st.recursive(ATOMS, _combine, max_leaves=6)
TRIPLES = st.tuples(EXPRESSIONS, EXPRESSIONS | st.just("1"), st.just("1")).map(list)
LAUNCHES = st.fixed_dictionaries(
    {"entry": st.just("k"), "grid": TRIPLES, "block": TRIPLES, "shared_bytes": EXPRESSIONS, "cluster": TRIPLES},
    optional={"when": st.tuples(EXPRESSIONS, EXPRESSIONS).map(lambda t: f"{t[0]} < {t[1]}")},
)


def resolved(device: DeviceInfo, dims: dict[str, int], *launches: dict[str, Any], **workspace: Any) -> Any:
    made = candidate("residual_rmsnorm", Target.CUDA, "source", *launches, **workspace)
    return resolve_plan(made, kernel_dims(contracts()["residual_rmsnorm"], dims), device)


@given(DIMS, st.lists(LAUNCHES, min_size=1, max_size=3), EXPRESSIONS)
def test_a_plan_gives_possible_sizes_or_a_load_error(
    dims: dict[str, int], launches: list[dict[str, Any]], size: str
) -> None:
    try:
        found, workspace = resolved(DEVICE, dims, *launches, bytes=size)
    except LoadError:
        return
    assert 1 <= len(found) <= len(launches)
    assert 0 <= workspace <= 1 << 32
    for launch in found:
        assert all(1 <= g <= limit for g, limit in zip(launch.grid, (2**31 - 1, 65535, 65535), strict=True))
        assert 1 <= launch.block[0] * launch.block[1] * launch.block[2] <= 1024
        assert 0 <= launch.shared_bytes <= 232_448


@given(DIMS, LAUNCHES)
def test_a_launch_the_device_accepts_divides_into_clusters_and_fits(
    dims: dict[str, int], launch: dict[str, Any]
) -> None:
    try:
        (found,), _ = resolved(DEVICE, dims, {k: v for k, v in launch.items() if k != "when"})
        check_launch(found, DEVICE)
    except LoadError:
        return
    assert all(g % c == 0 for g, c in zip(found.grid, found.cluster, strict=True))
    assert found.cluster[0] * found.cluster[1] * found.cluster[2] <= 16


@given(DIMS)
def test_conditions_choose_among_launches(dims: dict[str, int]) -> None:
    launches = [{"entry": "few", "when": "num_tokens <= 64"}, {"entry": "many", "when": "num_tokens > 64"}]
    (found,), _ = resolved(DEVICE, dims, *launches)
    assert found.entry == ("few" if dims["num_tokens"] <= 64 else "many")


def test_plans_read_dims_and_the_device_and_nothing_else() -> None:
    dims = {"num_tokens": 3, "hidden_size": 64, "has_residual": 0}
    (launch,), size = resolved(
        DEVICE, dims, {"entry": "k", "grid": ["num_sms", "num_tokens", "1"]}, bytes="num_sms * 4"
    )
    assert (launch.grid, size) == ((132, 3, 1), 528)
    with pytest.raises(LoadError, match=r"launch plan: .*seq_len"):
        resolved(DEVICE, dims, {"entry": "k", "grid": ["seq_len", "1", "1"]})


def test_a_workload_dim_is_unknown_to_a_plan() -> None:
    contract = contracts()["paged_decode_attention"]
    dims = kernel_dims(contract, dict(contract.sweep.correctness[0]))
    assert "context_len" not in dims
    made = candidate("paged_decode_attention", Target.CUDA, "source", {"entry": "k", "grid": ["context_len", "1", "1"]})
    with pytest.raises(LoadError, match="context_len"):
        resolve_plan(made, dims, DEVICE)
