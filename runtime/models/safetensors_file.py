"""Reading safetensors: headers first, then one tensor's bytes straight into the memory it will live in.

The format is eight bytes of header length, a JSON header and raw little-endian data. Reading it here, instead of
mapping the file, keeps peak memory at the weights themselves: nothing is materialised twice.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from runtime.models.spec import ModelError

_DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32, "F64": torch.float64}
_MAX_HEADER = 100_000_000
STAGING_BYTES = 16 * 2**20


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where one tensor's bytes are. ``dtype`` is the format's own name, such as ``BF16``."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    path: Path
    offset: int
    nbytes: int


def stored_tensors(model_dir: Path) -> dict[str, StoredTensor]:
    """Every tensor of a checkpoint, sharded or not, by name; reads headers only. Raises ModelError."""
    index = model_dir / "model.safetensors.index.json"
    if index.exists():
        try:
            shards = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ModelError(f"{index}: no 'weight_map' from tensor names to files") from None
        paths = [model_dir / shard for shard in shards]
    else:
        paths = sorted(model_dir.glob("*.safetensors"))
    if not paths:
        raise ModelError(f"{model_dir}: no *.safetensors file; other weight formats are not read")
    tensors: dict[str, StoredTensor] = {}
    for path in paths:
        for name, tensor in _header(path).items():
            if name in tensors:
                raise ModelError(f"{path}: tensor '{name}' is also in {tensors[name].path.name}")
            tensors[name] = tensor
    return tensors


def read_into(stored: StoredTensor, out: torch.Tensor, staging: torch.Tensor | None = None) -> None:
    """Fill ``out`` (contiguous, any device, as many elements) with the stored tensor, converted to its dtype.

    ``staging`` is a reusable uint8 buffer for what cannot be read in place. Raises ModelError.
    """
    if stored.dtype not in _DTYPES:
        raise ModelError(f"{stored.path}: tensor '{stored.name}' is stored as {stored.dtype}, which is not read")
    source = _DTYPES[stored.dtype]
    flat = out.view(-1)
    with stored.path.open("rb", buffering=0) as file:
        file.seek(stored.offset)
        if out.device.type == "cpu" and out.dtype == source:
            _read_exactly(file, flat.view(torch.uint8), stored)
            return
        buffer = staging if staging is not None else torch.empty(STAGING_BYTES, dtype=torch.uint8)
        step = buffer.numel() // source.itemsize
        for start in range(0, flat.numel(), step):
            part = flat[start : start + step]
            raw = buffer[: part.numel() * source.itemsize]
            _read_exactly(file, raw, stored)
            part.copy_(raw.view(source))


def _read_exactly(file: object, out: torch.Tensor, stored: StoredTensor) -> None:
    view = memoryview(out.numpy())  # type: ignore[arg-type]
    while len(view):
        count = file.readinto(view)  # type: ignore[attr-defined]
        if not count:
            raise ModelError(f"{stored.path}: ends inside tensor '{stored.name}'; download it again")
        view = view[count:]


def _header(path: Path) -> Mapping[str, StoredTensor]:
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= min(_MAX_HEADER, size - 8):
                raise ModelError(f"{path}: not a safetensors file, or cut short")
            entries = json.loads(file.read(length))
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror})") from None
    except ValueError as error:
        if isinstance(error, ModelError):
            raise
        raise ModelError(f"{path}: the header is not JSON") from None
    data = 8 + length
    tensors = {}
    for name, entry in entries.items():
        if name == "__metadata__":
            continue
        try:
            start, end = entry["data_offsets"]
            stored = StoredTensor(name, entry["dtype"], tuple(entry["shape"]), path, data + start, end - start)
        except (KeyError, TypeError, ValueError):
            raise ModelError(f"{path}: the header's entry '{name}' is malformed") from None
        if start < 0 or end < start or data + end > size:
            raise ModelError(f"{path}: ends inside tensor '{name}'; download it again")
        tensors[name] = stored
    return tensors
