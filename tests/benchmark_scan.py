"""Compare the scan of an Inductor cache with merely reading the same files, both warm.

    python tests/benchmark_scan.py [DIRECTORY] [--kernels N] [--rounds N]

Without a directory it makes a cache: kernels of every kind in tests/kernels_by_hand.py, one
wrapper module for two kernels, one file or two in a folder as torch spreads them. Each round
reads the bytes of every .py file in Python and scans the folder, one after the other. Prints the
medians and their ratio; the exit status is 1 where the ratio is above 4.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Callable

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import parse_kernel_metadata_csv as program
from tests import kernels_by_hand as hand

MOST = 4.0  # the scan may take so many times as long


def make_cache(root: str, kernels: int) -> None:
    """Write kernels, and wrapper modules that quote two each and are as large again."""
    sources = itertools.cycle(example.source for example in hand.EXAMPLES.values())
    for number in range(0, kernels, 2):
        pair = [next(sources), next(sources)]
        module = hand.wrapper_module(*pair) + "# the graph's own code\n" * 300
        for letter, source in zip("abw", [*pair, module]):
            path = os.path.join(root, f"{number * 7 % 1024:03x}", f"{letter}{number:06}.py")
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="utf-8") as file:
                file.write(source)


def read_all(paths: list[str]) -> int:
    """Read every file as bytes, and do nothing with them."""
    size = 0
    for path in paths:
        with open(path, "rb") as file:
            size += len(file.read())
    return size


def scan(root: str) -> int:
    """Scan the folder as the program does; the number of rows."""
    return len(program.read_directory(root, "", program.Reporter()).rows)


def seconds(work: Callable[[], int]) -> float:
    """How long a piece of work takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def compare(root: str, rounds: int) -> float:
    """Time both, alternately; print the medians and return their ratio."""
    paths = [str(path) for path in Path(root).rglob("*.py")]
    megabytes = read_all(paths) / 1e6
    rows = scan(root)
    times = [(seconds(lambda: read_all(paths)), seconds(lambda: scan(root))) for _ in range(rounds)]
    reading, scanning = (statistics.median(column) for column in zip(*times))
    print(f"{len(paths)} files, {megabytes:.1f} MB, {rows} kernels; median of {rounds} rounds")
    print(f"reading {reading * 1e3:8.1f} ms\nscan    {scanning * 1e3:8.1f} ms")
    print(f"ratio   {scanning / reading:8.2f} (at most {MOST:g})")
    return float(scanning / reading)


def main() -> int:
    """Compare on a folder given, or on one made for it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("directory", nargs="?", help="an Inductor cache (default: one is made)")
    parser.add_argument("--kernels", type=int, default=10000, help="to make (default 10000)")
    parser.add_argument("--rounds", type=int, default=7, help="of each (default 7)")
    options = parser.parse_args()
    if options.directory:
        return int(compare(options.directory, options.rounds) > MOST)
    with tempfile.TemporaryDirectory(prefix="benchmark-scan-") as root:
        make_cache(root, options.kernels)
        return int(compare(root, options.rounds) > MOST)


if __name__ == "__main__":
    sys.exit(main())
