"""The stub's torch.cuda.nvtx."""

from collections.abc import Iterator
from contextlib import contextmanager

from .. import stand_in


def range_push(label: str) -> int:
    """Open a range."""
    stand_in.report("push", label=label)
    return 0


def range_pop() -> int:
    """Close the innermost range."""
    stand_in.report("pop")
    return 0


@contextmanager
def range(label: str) -> Iterator[None]:
    """A range as a context."""
    range_push(label)
    try:
        yield
    finally:
        range_pop()
