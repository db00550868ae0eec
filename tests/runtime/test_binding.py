from __future__ import annotations

import ctypes
import struct

import pytest
import torch

from kb.dtype import DType, Target
from runtime.binding import WORKSPACE_ALIGN, Signature, addresses, check_workspace, make_workspace
from runtime.errors import LaunchError
from tests.runtime.kernels_on_hand import contracts

DIMS = {"num_tokens": 2, "hidden_size": 16, "has_residual": 1}
SIGNATURE = Signature(contracts()["residual_rmsnorm"], DIMS, DType.BFLOAT16, Target.CPU)
WITHOUT = Signature(contracts()["residual_rmsnorm"], {**DIMS, "has_residual": 0}, DType.BFLOAT16, Target.CPU)


def good() -> dict[str, torch.Tensor | None]:
    shapes = {"x": (2, 16), "residual": (2, 16), "weight": (16,), "out": (2, 16)}
    return {name: torch.zeros(shape, dtype=torch.bfloat16) for name, shape in shapes.items()}


def refused(message: str, signature: Signature = SIGNATURE, **changes: torch.Tensor | None) -> None:
    with pytest.raises(LaunchError, match=message):
        signature.check_tensors({**good(), **changes})


def test_arguments_as_the_contract_says_pass() -> None:
    SIGNATURE.check_tensors(good())
    WITHOUT.check_tensors({**good(), "residual": None})
    WITHOUT.check_tensors({name: t for name, t in good().items() if name != "residual"})


def test_a_tensor_of_another_dtype_shape_or_device_is_refused() -> None:
    refused(r"residual_rmsnorm\.x: dtype float32; bfloat16 is needed", x=torch.zeros(2, 16))
    refused(r"x: shape \[2, 8\]; \[2, 16\] is needed", x=torch.zeros(2, 8, dtype=torch.bfloat16))
    refused(r"x: shape \[32\]; \[2, 16\]", x=torch.zeros(32, dtype=torch.bfloat16))
    refused("x: lies on meta; cpu is needed", x=torch.zeros(2, 16, dtype=torch.bfloat16, device="meta"))


def test_a_tensor_that_is_not_dense_is_refused() -> None:
    refused(r"strides \[32, 2\]", x=torch.zeros(2, 32, dtype=torch.bfloat16)[:, ::2])
    refused("strides", x=torch.zeros(16, 2, dtype=torch.bfloat16).T)
    refused("strides", x=torch.zeros(1, 16, dtype=torch.bfloat16).expand(2, 16))


def test_a_tensor_that_is_not_aligned_is_refused() -> None:
    whole = torch.zeros(64, dtype=torch.bfloat16)
    refused("starts 2 bytes past a multiple of 16", x=whole[1:33].view(2, 16))
    SIGNATURE.check_tensors({**good(), "x": whole[8:40].view(2, 16)})


def test_missing_unknown_and_unwanted_tensors_are_refused() -> None:
    refused("residual: is missing", residual=None)
    refused(r"no tensor 'bias' \(it has out, residual, weight, x\)", bias=torch.zeros(1))
    refused(r"residual: must be absent \(None\) where not has_residual == 1", WITHOUT)


def test_a_written_tensor_may_share_memory_with_no_other() -> None:
    whole = torch.zeros(4, 16, dtype=torch.bfloat16)
    refused("share memory", x=whole[:2], out=whole[:2])
    refused("share memory", x=whole[0:2], residual=whole[1:3])
    SIGNATURE.check_tensors({**good(), "x": whole[:2], "out": whole[2:]})


def test_read_tensors_may_share_memory() -> None:
    contract = contracts()["kv_append"]
    dims = {"num_tokens": 1, "num_kv_heads": 1, "head_dim": 8, "block_size": 1, "num_blocks": 2}
    signature = Signature(contract, dims, DType.FLOAT32, Target.CPU)
    row, cache = torch.zeros(1, 1, 8), torch.zeros(2, 2, 1, 1, 8)
    slots = torch.zeros(1, dtype=torch.int32)
    signature.check_tensors({"k": row, "v": row, "k_cache": cache[0], "v_cache": cache[1], "slot_mapping": slots})


def test_scalars_are_all_there_and_no_others() -> None:
    SIGNATURE.check_scalars({"eps": 1e-6})
    with pytest.raises(LaunchError, match="the scalar 'eps' has no value"):
        SIGNATURE.check_scalars({})
    with pytest.raises(LaunchError, match=r"no scalar 'scale' \(it has eps\)"):
        SIGNATURE.check_scalars({"eps": 1e-6, "scale": 1.0})


def test_arguments_are_packed_in_the_order_of_the_signature() -> None:
    given = {**good(), "residual": None}
    x, weight, out = given["x"], given["weight"], given["out"]
    assert x is not None
    assert weight is not None
    assert out is not None
    values = WITHOUT.pack(given, {"eps": 1e-6}, None)
    assert [v.value for v in values if isinstance(v, ctypes.c_void_p)] == [
        x.data_ptr(),
        None,
        weight.data_ptr(),
        out.data_ptr(),
        None,
    ]
    eps = values[4]
    assert isinstance(eps, ctypes.c_float)
    assert eps.value == struct.unpack("f", struct.pack("f", 1e-6))[0]


def test_runtime_dims_come_after_the_scalars_as_int32() -> None:
    contract = contracts()["paged_decode_attention"]
    dims = dict.fromkeys(contract.dims, 1) | {"num_blocks": 7, "max_blocks_per_seq": 9}
    values = Signature(contract, dims, DType.FLOAT16, Target.CPU).pack({}, {"scale": 0.5}, None)
    assert [type(v) for v in values[-4:]] == [ctypes.c_float, ctypes.c_int32, ctypes.c_int32, ctypes.c_void_p]
    assert [v.value for v in values[-4:]] == [0.5, 7, 9, None]


def test_a_cuda_launch_gets_the_address_of_every_value() -> None:
    values = (ctypes.c_void_p(4096), ctypes.c_float(2.5), ctypes.c_int32(-3))
    array = addresses(values)
    assert ctypes.c_float.from_address(array[1] or 0).value == 2.5
    assert ctypes.c_int32.from_address(array[2] or 0).value == -3
    assert len(array) == 3


@pytest.mark.parametrize("size", [1, 127, 128, 4097])
def test_a_workspace_is_aligned_and_zero_where_asked(size: int) -> None:
    made = make_workspace(size, zeroed=True, device="cpu")
    assert made is not None
    assert made.numel() == size
    assert made.data_ptr() % WORKSPACE_ALIGN == 0
    assert not made.any()
    check_workspace(made, size, Target.CPU)


def test_no_workspace_is_needed_for_zero_bytes() -> None:
    assert make_workspace(0, zeroed=False, device="cpu") is None
    check_workspace(None, 0, Target.CPU)
    with pytest.raises(LaunchError, match="a workspace of 8 bytes is needed"):
        check_workspace(None, 8, Target.CPU)
    with pytest.raises(LaunchError, match="lies on meta"):
        check_workspace(torch.zeros(8, device="meta"), 8, Target.CPU)
