"""Compare eight workers with one: 64 kernels under an ncu that takes half a second.

    python tests/benchmark_gpus.py [--kernels N] [--rounds N]

The ncu is a shell script that sleeps and prints a valid log, so that what is measured is how the
work is divided. Each round runs both, alternately, on a cold cache. Prints the medians and their
ratio; the exit status is 1 where eight are less than 7.5 times as fast.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.support import COLUMNS, PROGRAM, kernel_source

WORKERS = 8
LEAST = 7.5
SLEEPING_NCU = """\
#!/bin/sh
sleep {seconds}
cat <<'END'
==PROF== Connected to process 7 (/usr/bin/python3.11)
==PROF== Profiling "triton_poi_fused_add_0" - 0: 0%....50%....100% - 1 pass
0.027ms    0.004GB    148.15GB/s
==PROF== Disconnected from process 7
[7] python3.11@127.0.0.1
  triton_poi_fused_add_0 (8, 1, 1)x(128, 1, 1), Context 1, Stream 7, Device 0, CC 9.0
    Section: Command line profiler metrics
    -------------------------- ----------- -------------
    Metric Name                Metric Unit  Metric Value
    -------------------------- ----------- -------------
    dram__bytes.sum.per_second byte/second 1227906976.74
    gpu__time_duration.sum         nsecond          6880
    -------------------------- ----------- -------------

END
"""


def write_ncu(folder: Path, seconds: float) -> Path:
    """Write the ncu that only takes time."""
    path = folder / "ncu"
    path.write_text(SLEEPING_NCU.format(seconds=seconds))
    path.chmod(0o755)
    return path


def write_kernels(folder: Path, count: int, **options: Any) -> Path:
    """Write kernels and the table that names them; returns the table."""
    rows = [",".join(COLUMNS)]
    for number in range(count):
        name = f"triton_poi_fused_add_{number}"
        path = folder / f"{number:02x}"[-2:] / f"c{number:051}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(kernel_source(name, **options))
        rows.append(f",{name},{path},pointwise,[1024],,7,1,1,0,0,4,1000,,,0.004000")
    table = folder / "table.csv"
    table.write_text("\n".join(rows) + "\n")
    return table


def forget(folder: Path) -> None:
    """Make the cache cold."""
    for path in folder.rglob("*.ncu"):
        path.unlink()


def run(table: Path, *options: str, env: dict[str, str] | None = None) -> float:
    """Run the program on a cold cache to its good end; its seconds."""
    forget(table.parent)
    out = table.parent / "out.csv"
    command = [sys.executable, str(PROGRAM), "-i", str(table), "-o", str(out), "-q", *options]
    begin = time.perf_counter()
    subprocess.run(command, stdin=subprocess.DEVNULL, env={**os.environ, **(env or {})}, check=True)
    return time.perf_counter() - begin


def main() -> int:
    """Compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--kernels", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3, help="of each (default 3)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="benchmark-gpus-") as folder:
        table = write_kernels(Path(folder), options.kernels)
        ncu = ("--ncu", str(write_ncu(Path(folder), 0.5)))
        gpus = [",".join(map(str, range(count))) for count in (1, WORKERS)]
        pairs = [[run(table, *ncu, "--gpus", spec) for spec in gpus] for _ in range(options.rounds)]
    one, all_of_them = (statistics.median(side) for side in zip(*pairs))
    ratio = one / all_of_them
    print(f"{options.kernels} kernels of 0.5 s; median of {options.rounds} rounds")
    print(f"1 worker  {one:8.2f} s\n{WORKERS} workers {all_of_them:8.2f} s")
    print(f"ratio     {ratio:8.2f} (at least {LEAST:g})")
    return int(ratio < LEAST)


if __name__ == "__main__":
    sys.exit(main())
