"""The stub's torch.cuda."""

from __future__ import annotations

import os
from typing import Any

from .. import stand_in
from . import nvtx, profiler

__all__ = ["nvtx", "profiler"]


class device:
    """Makes a device current for a while."""

    def __init__(self, which: Any) -> None:
        self.index = getattr(which, "index", which)
        if isinstance(self.index, str):
            self.index = int(self.index.partition(":")[2] or 0)

    def __enter__(self) -> device:
        self.before = stand_in.STATE["device"]
        stand_in.STATE["device"] = self.index or 0
        return self

    def __exit__(self, *exception: object) -> None:
        stand_in.STATE["device"] = self.before


_DeviceGuard = device


def set_device(which: Any) -> None:
    """Make a device current."""
    stand_in.STATE["device"] = device(which).index


def current_device() -> int:
    """The current device's index."""
    return int(stand_in.STATE["device"])


def synchronize(which: Any = None) -> None:
    """Wait for the launches; raises once the context is lost."""
    stand_in.check()
    stand_in.report("synchronize")


def empty_cache() -> None:
    """Return unused memory."""
    stand_in.report("empty_cache")


def is_available() -> bool:
    """Whether there is a GPU: yes, unless all are hidden."""
    return os.environ.get("CUDA_VISIBLE_DEVICES", "0") not in ("", "-1")


def device_count() -> int:
    """How many GPUs there are."""
    return len([d for d in os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",") if d])


def memory_allocated(which: Any = None) -> int:
    """Bytes in tensors; here one for each."""
    return len(stand_in.LIVE)
