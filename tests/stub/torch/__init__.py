"""A stub of torch: what kernel files and the batch driver touch, and no more.

It tells the stand-in ncu, if that runs it, what a GPU would see: profiler start and stop, NVTX
ranges, launches, synchronisation, and with each the number of tensors alive.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import stand_in

__version__ = "2.3.0+stub"

float16, bfloat16, float32, float64 = "float16", "bfloat16", "float32", "float64"
int8, int32, int64, bool_ = "int8", "int32", "int64", "bool"


class device:
    """A device by kind and index, written "cuda:1"."""

    def __init__(self, name: str | int | device, index: int = 0) -> None:
        kind, _, number = str(name).partition(":")
        self.type, self.index = kind, int(number or index)
        if kind.isdigit():
            self.type, self.index = "cuda", int(kind)

    def __str__(self) -> str:
        return self.type if self.type == "cpu" else f"{self.type}:{self.index}"

    def __repr__(self) -> str:
        return f"device(type={self.type!r}, index={self.index})"

    def __eq__(self, other: object) -> bool:
        return str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))


class Tensor:
    """A tensor without numbers, counted while it lives."""

    def __init__(self, size: Sequence[int], device_name: Any, dtype: Any) -> None:
        self.shape, self.dtype, self.device = tuple(size), dtype, device(device_name)
        self.is_cuda = self.device.type == "cuda"
        stand_in.LIVE.add(self)


def empty(*size: Any, device: Any = "cpu", dtype: Any = float32, **rest: Any) -> Tensor:
    """A tensor of that size, given as one sequence or as several numbers."""
    return Tensor(size[0] if size and not isinstance(size[0], int) else size, device, dtype)


randn = rand = zeros = ones = empty


def empty_strided(size: Any, stride: Any, device: Any = "cpu", dtype: Any = float32) -> Tensor:
    """A tensor of that size."""
    return Tensor(size, device, dtype)


def is_tensor(value: object) -> bool:
    """Whether a value is a tensor."""
    return isinstance(value, Tensor)


def manual_seed(seed: int) -> None:
    """Nothing here is random."""


from . import cuda  # noqa: E402, needs the names above

__all__ = ["Tensor", "cuda", "device", "empty", "is_tensor", "stand_in"]
