"""Element types, with their size and their name in C for each target."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field


class Target(StrEnum):
    """Where a kernel runs."""

    CUDA = "cuda"
    CPU = "cpu"


class DType(StrEnum):
    """Element type of a tensor or scalar. ``T`` is the storage type, chosen when a contract is instantiated."""

    T = "T"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
    FLOAT32 = "float32"
    INT32 = "int32"
    INT64 = "int64"

    @property
    def itemsize(self) -> int:
        """Bytes an element. Raises ValueError for ``T``, which has no size until it is bound."""
        if self is DType.T:
            raise ValueError("dtype T has no size before a storage dtype is chosen")
        return {"bfloat16": 2, "float16": 2, "float32": 4, "int32": 4, "int64": 8}[self.value]

    def bind(self, storage: DType) -> DType:
        """This type with ``T`` replaced by ``storage``."""
        return storage if self is DType.T else self


STORAGE_DTYPES = (DType.BFLOAT16, DType.FLOAT16, DType.FLOAT32)

# YAML gives names, not enum members; every other conversion stays strict.
DTypeName = Annotated[DType, Field(strict=False)]
TargetName = Annotated[Target, Field(strict=False)]
