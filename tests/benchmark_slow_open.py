"""Compare the reading of a warm cache by several threads with one, where opens are slow.

    python tests/benchmark_slow_open.py [--kernels N] [--rounds N]

Each open of a file of the cache takes 5 ms more, as on a network file system. For one thread those
5 ms are spent one after the other. Each round runs both, alternately. Prints the medians and their
ratio; the exit status is 1 where several threads are less than 8 times as fast.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.benchmark_gpus import SLEEPING_NCU, write_kernels
from tests.support import PROGRAM

LEAST = 8.0
SHIM = """\
import builtins, os, threading, time

one_at_a_time = threading.Lock()

def slow(function):
    def opens(path, *more, **named):
        if str(path).endswith((".ncu", ".py")) and str(path).startswith({cache!r}):
            if os.environ.get("ONE_AT_A_TIME"):
                with one_at_a_time:
                    time.sleep(0.005)
            else:
                time.sleep(0.005)
        return function(path, *more, **named)
    return opens

os.open, builtins.open = slow(os.open), slow(open)
"""


def write_logs(folder: Path) -> None:
    """Give each kernel a log that names the source it measured, as the program writes it."""
    text = SLEEPING_NCU.partition("END'\n")[2].replace("END\n", "")
    for kernel in folder.rglob("*.py"):
        digest = hashlib.sha256(kernel.read_bytes()).hexdigest()
        header = f"# source sha256: {digest}\n# launch: first launch\n# command: ncu\n"
        kernel.with_suffix(".ncu").write_text(header + text)


def run(table: Path, shim: Path, one_at_a_time: bool) -> float:
    """Read the warm cache; the seconds."""
    environment = {**os.environ, "PYTHONPATH": str(shim)}
    if one_at_a_time:
        environment["ONE_AT_A_TIME"] = "1"
    out = table.parent / "out.csv"
    command = [sys.executable, str(PROGRAM), "-i", str(table), "-o", str(out), "-q"]
    begin = time.perf_counter()
    status = os.spawnve(os.P_WAIT, sys.executable, [*command, "--cached-only"], environment)
    if status:
        raise SystemExit(f"the program ends with {status}")
    return time.perf_counter() - begin


def main() -> int:
    """Compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--kernels", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3, help="of each (default 3)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="benchmark-slow-open-") as folder:
        cache, shim = Path(folder, "cache"), Path(folder, "shim")
        cache.mkdir()
        shim.mkdir()
        table = write_kernels(cache, options.kernels)
        write_logs(cache)
        (shim / "sitecustomize.py").write_text(SHIM.format(cache=str(cache)))
        pairs = [[run(table, shim, one) for one in (True, False)] for _ in range(options.rounds)]
    one, several = (statistics.median(side) for side in zip(*pairs))
    print(f"{options.kernels} warm kernels, 5 ms more an open; median of {options.rounds} rounds")
    print(f"one thread {one:8.2f} s\nthreads    {several:8.2f} s")
    print(f"ratio      {one / several:8.2f} (at least {LEAST:g})")
    return int(one / several < LEAST)


if __name__ == "__main__":
    sys.exit(main())
