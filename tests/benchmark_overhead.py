"""Compare a run over cold kernels with the same commands run by a bare loop.

    python tests/benchmark_overhead.py [--kernels N] [--rounds N]

The commands are those that --dry-run prints; the ncu is a shell script that prints a valid log.
Each round runs both, alternately. Prints the medians and what the program takes more for each
kernel; the exit status is 1 where that is above 10 ms.
"""

from __future__ import annotations

import argparse
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.benchmark_gpus import run, write_kernels, write_ncu
from tests.support import PROGRAM

MOST = 0.010


def list_commands(table: Path, ncu: str) -> list[list[str]]:
    """Return the commands that the program would run."""
    ask = [sys.executable, str(PROGRAM), "-i", str(table), "-o", str(table.parent / "out.csv")]
    said = subprocess.run(
        [*ask, "--ncu", ncu, "--dry-run", "-q"], capture_output=True, text=True, check=True
    )
    commands = [shlex.split(line) for line in said.stdout.splitlines()]
    return [command[command.index(ncu) :] for command in commands]


def run_bare(commands: list[list[str]]) -> float:
    """Run the commands one after the other; the seconds."""
    begin = time.perf_counter()
    for command in commands:
        subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=True)
    return time.perf_counter() - begin


def main() -> int:
    """Compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--kernels", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=7, help="of each (default 7)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="benchmark-overhead-") as folder:
        table = write_kernels(Path(folder), options.kernels)
        ncu = str(write_ncu(Path(folder), 0))
        commands = list_commands(table, ncu)
        pairs = [(run(table, "--ncu", ncu), run_bare(commands)) for _ in range(options.rounds)]
    ours, bare = (statistics.median(side) / options.kernels for side in zip(*pairs))
    print(f"{len(commands)} kernels; median of {options.rounds} rounds, each kernel")
    print(f"program  {ours * 1e3:8.2f} ms\nbare     {bare * 1e3:8.2f} ms")
    print(f"overhead {(ours - bare) * 1e3:8.2f} ms (at most {MOST * 1e3:g}), {ours / bare:.2f} x")
    return int(ours - bare > MOST)


if __name__ == "__main__":
    sys.exit(main())
