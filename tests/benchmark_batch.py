"""Compare --quick --batch 64 with the default, under an ncu with a real one's costs over 100.

    python tests/benchmark_batch.py [--kernels N] [--rounds N]

60 ms to start Python and torch, 15 ms for the first profiled kernel of a process, 0.3 ms a pass,
2 ms for the benchmark. Each round runs both, alternately, on a cold cache. Prints the medians and
their ratio; the exit status is 1 where the batch is less than 20 times as fast.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.benchmark_gpus import run, write_kernels
from tests.support import STAND_IN, STUB

LEAST = 20.0
COSTS = "start=0.06,first=0.015,pass=0.0003"
BENCHMARK = "import time\ntime.sleep(0.002)"


def main() -> int:
    """Compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--kernels", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=1, help="of each (default 1)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="benchmark-batch-") as folder:
        table = write_kernels(Path(folder), options.kernels, torch=True, main=BENCHMARK)
        path = os.pathsep.join(filter(None, (str(STUB), os.environ.get("PYTHONPATH"))))
        env = {"NCU_STAND_IN_COSTS": COSTS, "PYTHONPATH": path, "TMPDIR": folder}
        pairs = []
        for _ in range(options.rounds):
            default = run(table, "--ncu", str(STAND_IN), env=env)
            batched = run(table, "--ncu", str(STAND_IN), "--quick", "--batch", "64", env=env)
            pairs.append((default, batched))
    default, batched = (statistics.median(side) / options.kernels for side in zip(*pairs))
    print(f"{options.kernels} kernels; median of {options.rounds} rounds, each kernel")
    print(f"default            {default * 1e3:8.2f} ms\n--quick --batch 64 {batched * 1e3:8.2f} ms")
    print(f"ratio              {default / batched:8.2f} (at least {LEAST:g})")
    return int(default / batched < LEAST)


if __name__ == "__main__":
    sys.exit(main())
