"""Compare a run over a warm cache with another script's, alternately, in time and peak memory.

    python tests/benchmark_warm_cache.py OTHER_SCRIPT [--kernels N] [--rows N] [--rounds N]

OTHER_SCRIPT takes `-i TABLE -o TABLE` too, and reads the same logs: 15 kB each, in the form of
ncu 2022. Two tables: one row for each kernel, and ten times as many. Also times a table that is
only a header against an interpreter that imports what any such program needs, and what --metric
costs beside no such option. Exit status 1 where a limit is missed.
"""

from __future__ import annotations

import argparse
import csv
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

TESTS = Path(__file__).resolve().parent
PROGRAM = str(TESTS.parent / "parse_kernel_metadata_csv.py")
IMPORTS = "import argparse, csv, dataclasses, hashlib, re, subprocess"
COLUMNS = (
    "model_name kernel_name kernel_path kernel_category size_hints reduction_hint line_of_code "
    "num_load num_store num_for_loop num_atomic_add num_args xnumel ynumel rnumel "
    "kernel_args_num_gb"
).split()

LOG = """\
==PROF== Connected to process 4242 (/usr/bin/python3.11)
==PROF== Profiling "{name}" - 0: 0%....50%....100% - 38 passes
{ms:.3f}ms    0.004GB    147.69GB/s
==PROF== Disconnected from process 4242
[4242] python3.11@127.0.0.1
  {name} (4096, 1, 1)x(256, 1, 1), Context 1, Stream 7, Device 0, CC 8.0
    Section: GPU Speed Of Light Throughput
    ----------------------- ------------- ------------
    Metric Name               Metric Unit Metric Value
    ----------------------- ------------- ------------
    Memory Throughput                   %        43.61
    Duration                      usecond {us:12.2f}
    SM Active Cycles                cycle      7497.79
    ----------------------- ------------- ------------

{filler}
    Section: Memory Workload Analysis
    ----------------- ------------ ------------
    Metric Name        Metric Unit Metric Value
    ----------------- ------------ ------------
    Memory Throughput Gbyte/second {gb:12.2f}
    Mem Busy                     %        27.54
    ----------------- ------------ ------------

{filler}"""
SECTION = """\
    Section: Section Number {number}
    ----------------------------- ----------- ------------
    Metric Name                   Metric Unit Metric Value
    ----------------------------- ----------- ------------
    Issued Instructions                  inst       174080
    Executed Ipc Active            inst/cycle         0.65
    Registers Per Thread      register/thread           16
    ----------------------------- ----------- ------------

    INF   A rule that explains at some length what the figures above could mean for the kernel's
          performance, and where in the documentation more of the kind is to be found.

"""
METRIC = "Mem Busy"


class Measured(NamedTuple):
    """What one process took."""

    seconds: float
    megabytes: float


def run(*command: str) -> Measured:
    """Run a command to its end."""
    begin = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"{command} exits with {child.returncode}")
    return Measured(time.perf_counter() - begin, usage.ru_maxrss / 1024)


def make_kernels(folder: str, count: int) -> list[list[str]]:
    """Write kernels with their logs; return a row for each."""
    chance = random.Random(7)
    filler = "".join(SECTION.format(number=number) for number in range(10))
    rows = []
    for number in range(count):
        name = f"triton_poi_fused_add_mul_{number}"
        stem = os.path.join(folder, f"{number % 256:02x}", f"c{number:051}")
        os.makedirs(os.path.dirname(stem), exist_ok=True)
        Path(stem + ".py").write_text(f"def {name}(): ...\n" * 60)
        us = chance.uniform(2, 900)
        text = LOG.format(name=name, ms=us / 1e3, us=us, gb=chance.uniform(1, 900), filler=filler)
        Path(stem + ".ncu").write_text(text)
        cells = f",{name},{stem}.py,pointwise,|,,13,2,1,0,0,5,1048576,,,0.012583".split(",")
        rows.append(["[1048576, 64]" if cell == "|" else cell for cell in cells])

    return rows


def write_table(path: str, rows: list[list[str]]) -> str:
    """Write a table."""
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([COLUMNS, *rows])
    return path


def compare(what: str, ours: list[str], other: list[str], rounds: int, limit: float) -> bool:
    """Run both alternately, print the medians and ratios; False where a limit is missed."""
    pairs = [(run(*ours), run(*other)) for _ in range(rounds)]
    seconds = [statistics.median(m.seconds for m in side) for side in zip(*pairs)]
    memory = [statistics.median(m.megabytes for m in side) for side in zip(*pairs)]
    ratio = statistics.median(a.seconds / b.seconds for a, b in pairs)
    print(
        f"{what:12} {seconds[0]:7.3f} s {seconds[1]:7.3f} s  ratio {ratio:.3f} (limit {limit:g})"
        f"  peak {memory[0]:.1f} MB {memory[1]:.1f} MB"
    )
    same_work = "rows" in what
    return ratio <= limit and (not same_work or memory[0] <= memory[1])


def main() -> int:
    """Make the kernels and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("other")
    parser.add_argument("--kernels", type=int, default=10_000)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = make_kernels(folder, options.kernels)
        many = [row for _ in range(options.rows // len(rows)) for row in rows]
        out = os.path.join(folder, "out.csv")

        def command(script: str, table: list[list[str]]) -> list[str]:
            path = write_table(os.path.join(folder, f"{len(table)}.csv"), table)
            return [sys.executable, script, "-i", path, "-o", out]

        good = [
            compare("header only", command(PROGRAM, []), [sys.executable, "-c", IMPORTS], 15, 1.5)
        ]
        for table, rounds, limit in ((rows, options.rounds, 0.40), (many, 2, 0.10)):
            what = f"{len(table)} rows"
            ours, other = command(PROGRAM, table), command(options.other, table)
            good.append(compare(what, ours, other, rounds, limit))
        plain = command(PROGRAM, rows)
        good.append(compare("--metric", [*plain, "--metric", METRIC], plain, options.rounds, 1.3))
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
