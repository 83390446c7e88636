"""The stub's torch.cuda.profiler."""

from .. import stand_in


def start() -> None:
    """Open ncu's window."""
    stand_in.STATE["profiling"] = True
    stand_in.report("start")


def stop() -> None:
    """Close ncu's window."""
    stand_in.STATE["profiling"] = False
    stand_in.report("stop")
