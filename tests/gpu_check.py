"""Compare the ways to profile on a real GPU, kernel by kernel; some eight minutes.

    python tests/gpu_check.py [CACHE]

Compiles a few small models with the benchmark harness on (or takes the kernels of an Inductor
cache), then profiles them the first script's way (4 kernels), by this program as it is (8),
with --quick (8) and with --quick --batch 32 (all, and once more in reverse order), all with
--clock-control none. Prints seconds per kernel, how far the figures differ between the ways, and
what a place late in a batch does to the latency, and which --metric columns are filled (some by
label and by name, of a metric that a section collects anyway). Exit status 1 where the batch is
less than 10 times as fast as the first script, or its Duration is off by more than 5 % in the
median. Without GPU, torch or ncu, or where ncu cannot count, says so and exits 0.
"""

from __future__ import annotations

import csv
import importlib
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROGRAM = Path(__file__).resolve().parent.parent / "parse_kernel_metadata_csv.py"
KERNELS = 60
LEAST_RATIO = 10.0
MOST_DIFFERENCE = 0.05
CLOCKS = ("--clock-control", "none")
DURATION, BANDWIDTH, LATENCY = (
    "ncu_duration_us",
    "ncu_mem_bw_gbps",
    "latency_us_under_profiling",
)
METRICS = (
    "Duration",
    "gpu__time_duration.sum",
    "Memory Workload Analysis/Memory Throughput",
    "dram__bytes.sum.per_second",
    "Registers Per Thread",
    "launch__registers_per_thread",
    "Achieved Occupancy",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "lts__t_sectors.sum",
)
# Forward and backward of small models in several sizes: some 60 kernels of all the usual kinds.
MODELS = """
import torch
from torch import nn
from torch.nn import functional as F

class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.qkv = nn.LayerNorm(width), nn.Linear(width, 3 * width)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        scores = torch.softmax(q @ k.transpose(1, 2) / 8, -1)
        return x + F.gelu(scores @ v)

def mlp(width):
    return nn.Sequential(
        nn.Linear(width, 2 * width), nn.SiLU(), nn.LayerNorm(2 * width), nn.Dropout(0.1),
        nn.Linear(2 * width, width), nn.Tanh(),
    )

def convolution(width):
    return nn.Sequential(nn.Conv2d(8, width, 3), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2))

def elementwise(x, y):
    return (x.sin() * y.exp()).cumsum(-1), (x + y.t().contiguous()).sum(0), F.log_softmax(x * y, -1)

torch.manual_seed(0)
for width in (128, 320, 1024):
    for model, shape in (
        (Attention(width), (8, 256, width)),
        (mlp(width), (512, width)),
        (convolution(width // 4), (8, 8, 66, 66)),
    ):
        torch._dynamo.reset()
        x = torch.randn(shape, device="cuda", requires_grad=True)
        torch.compile(model.cuda(), dynamic=False)(x).square().mean().backward()
    torch._dynamo.reset()
    x, y = torch.randn(2, 2 * width, 2 * width, device="cuda")
    torch.compile(elementwise, dynamic=False)(x, y)
torch.cuda.synchronize()
"""

Rows = dict[str, dict[str, str]]


class Skip(Exception):
    """Why nothing can be checked here."""


def require_gpu() -> str:
    """Return the GPU's name and torch's version, once there is all that is needed."""
    try:
        torch = importlib.import_module("torch")
    except ImportError as error:
        raise Skip(f"no torch: {error}") from None
    if not torch.cuda.is_available():
        raise Skip("torch sees no GPU")
    if not shutil.which("ncu"):
        raise Skip("no ncu on PATH")
    name = getattr(torch.cuda, "get_device_name", lambda: "a stub")()
    return f"{name}, torch {torch.__version__}"


def compile_models(folder: Path) -> None:
    """Fill an Inductor cache; running the models also tunes their kernels."""
    done = subprocess.run([sys.executable, "-c", MODELS], stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"the models do not compile:\n{done.stderr[-3000:]}")
    if not any(folder.rglob("*.py")):
        raise SystemExit(f"compiling left no kernel in {folder}")


def run_program(*arguments: object) -> float:
    """Run the program, whose failures of single kernels are only shown; the seconds."""
    begin = time.monotonic()
    done = subprocess.run([sys.executable, str(PROGRAM), "-q", *map(str, arguments)])
    if done.returncode > 1:
        raise SystemExit(f"the program ends with {done.returncode}")
    return time.monotonic() - begin


def read_table(path: Path) -> list[dict[str, str]]:
    """Return a table's rows."""
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def write_table(path: Path, rows: list[dict[str, str]]) -> Path:
    """Write rows as a table."""
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def first_script(kernel: str, *options: str) -> str:
    """Run ncu as the first script does; what it printed."""
    command = ["ncu", *CLOCKS, "-k", "regex:triton", "-c", "1", *options, sys.executable, kernel]
    return subprocess.run(command, capture_output=True, text=True).stdout


def require_counters(kernel: str) -> None:
    """Check that ncu can count here."""
    said = first_script(kernel, "--metrics", "gpu__time_duration.sum")
    if not re.search(r"gpu__time_duration\.sum +\S+ +[0-9]", said):
        error = re.search("^==(?:ERROR|WARNING)== .*", said, re.M)
        raise Skip(f"ncu cannot count here: {error[0] if error else said[-300:]}")


def measure(folder: Path, rows: list[dict[str, str]], *options: str) -> tuple[float, Rows]:
    """Profile rows afresh with the program; seconds per kernel, and the rows by path."""
    table, out = write_table(folder / "in.csv", rows), folder / "out.csv"
    clocks = f"--ncu-args={' '.join(CLOCKS)}"
    seconds = run_program("-i", table, "-o", out, "--force", clocks, *options)
    return seconds / len(rows), by_path(out)


def measure_first(folder: Path, rows: list[dict[str, str]]) -> tuple[float, Rows]:
    """Profile rows as the first script does; the same."""
    begin = time.monotonic()
    for row in rows:
        path = row["kernel_path"]
        Path(path[:-3] + ".ncu").write_text(first_script(path, "--set", "full"))
    seconds = time.monotonic() - begin
    table, out = write_table(folder / "in.csv", rows), folder / "out.csv"
    run_program("-i", table, "-o", out, "--cached-only")
    return seconds / len(rows), by_path(out)


def by_path(table: Path) -> Rows:
    """Return the rows that have figures, by their kernel's path."""
    return {row["kernel_path"]: row for row in read_table(table) if row[DURATION]}


def differences(one: Rows, other: Rows, column: str) -> list[float]:
    """Return by what share a column of the other way differs, for the kernels of both."""
    pairs = [(one[path][column], other[path][column]) for path in one if path in other]
    return [float(b) / float(a) - 1 for a, b in pairs if a and b and float(a)]


def show_differences(ways: dict[str, tuple[float, Rows]]) -> dict[str, float]:
    """Print how far the figures differ, all against all; medians of Duration against the batch."""
    medians = {}
    names = list(ways)
    print("\nhow far figures differ, median (largest), in %")
    print(f"{'':44}{'Duration':>16}{'bandwidth':>16}{'latency':>16}")
    for at, name in enumerate(names):
        for other in names[at + 1 :]:
            cells = ""
            for column in (DURATION, BANDWIDTH, LATENCY):
                found = [abs(d) for d in differences(ways[name][1], ways[other][1], column)]
                middle = statistics.median(found) if found else float("nan")
                if column == DURATION:
                    medians[f"{name} / {other}"] = middle
                cells += f"{middle * 100:9.2f} ({max(found, default=0) * 100:4.0f})"
            print(f"{name + ' / ' + other:44}{cells}")
    return medians


def show_kernels(ways: dict[str, tuple[float, Rows]]) -> None:
    """Print Duration and latency of each kernel that more than one way measured."""
    print("\nmicroseconds: Duration, latency of each way: " + ", ".join(ways))
    paths = dict.fromkeys(path for _, rows in list(ways.values())[:-1] for path in rows)
    for path in paths:
        found = [rows.get(path) for _, rows in ways.values()]
        cells = [f"{r[DURATION]:>9} {r[LATENCY]:>8}" if r else f"{'-':>9} {'-':>8}" for r in found]
        name = next(row["kernel_name"] for row in found if row)
        print("  ".join(cells) + f"  {name[:50]}")


def show_places(order: list[str], forward: Rows, backward: Rows) -> None:
    """Print what a late place does to the latency: the same kernels, in both orders."""
    print("\nlatency by place in the batch, ratio to the same kernel in the reverse order")
    quarter = max(1, len(order) // 4)
    for at in range(0, len(order), quarter):
        part = [path for path in order[at : at + quarter] if path in forward]
        one = {path: backward[path] for path in part if path in backward}
        found = differences(one, forward, LATENCY)
        if found:
            middle = statistics.median(found) + 1
            print(f"  places {at + 1:3} to {at + len(part):3}: {middle:.3f}")


def show_metrics(found: Rows) -> None:
    """Print how many kernels have each --metric, and the first one's value."""
    print("\n--metric: kernels that have it, value of the first")
    for name in METRICS:
        values = [row[name] for row in found.values()]
        print(f"{sum(map(bool, values)):4} of {len(values)}  {name:50} {values[:1]}")


def check(folder: Path, cache: Path) -> int:
    """Measure each way, print the tables; the exit status."""
    run_program("-i", cache, "-o", folder / "all.csv", "--table-only")
    rows = read_table(folder / "all.csv")[:KERNELS]
    print(f"{len(rows)} kernels")
    require_counters(rows[0]["kernel_path"])
    some = rows[:: max(1, len(rows) // 8)][:8]  # of all kinds: the table is ordered by a hash
    batch = ("--quick", "--batch", "32")
    ways = {
        "first script": measure_first(folder, some[:4]),
        "plain": measure(folder, some, *(f"--metric={name}" for name in METRICS)),
        "--quick": measure(folder, some, "--quick"),
        "--quick --batch 32": measure(folder, rows, *batch),
    }
    first, batched = ways["first script"][0], ways["--quick --batch 32"][0]
    print(f"\n{'':20}{'kernels':>8}{'s/kernel':>10}{'ratio':>8}")
    for name, (seconds, found) in ways.items():
        print(f"{name:20}{len(found):8}{seconds:10.2f}{first / seconds:8.1f}")
    show_kernels(ways)
    show_metrics(ways["plain"][1])
    medians = show_differences(ways)
    _, backward = measure(folder, rows[::-1], *batch)
    show_places([row["kernel_path"] for row in rows], ways["--quick --batch 32"][1], backward)
    good = first / batched >= LEAST_RATIO and max(medians.values()) <= MOST_DIFFERENCE
    print(f"\nat least {LEAST_RATIO:g} x, Duration within 5 %: {'reached' if good else 'MISSED'}")
    return int(not good)


def main() -> int:
    """Check, or say why not."""
    try:
        print(require_gpu())
        with tempfile.TemporaryDirectory(prefix="gpu-check-") as folder:
            cache = Path(folder, "cache")
            if sys.argv[1:]:
                shutil.copytree(sys.argv[1], cache)
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(cache)
            os.environ["TORCHINDUCTOR_BENCHMARK_KERNEL"] = "1"
            os.environ["TORCHINDUCTOR_UNIQUE_KERNEL_NAMES"] = "1"
            if not sys.argv[1:]:
                compile_models(cache)
            return check(Path(folder), cache)
    except Skip as reason:
        print(f"skipped: {reason}")
        return 0


if __name__ == "__main__":
    sys.exit(main())
