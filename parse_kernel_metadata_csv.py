#!/usr/bin/env python3
"""Add to TorchInductor's kernel table what the GPU really did.

Each kernel that the table names is run under NVIDIA's Nsight Compute (`ncu`), and the table is
written back with four more columns:

    latency_us_under_profiling   the kernel's own benchmark, in microseconds
    ncu_duration_us              ncu's Duration, in microseconds
    ncu_mem_bw_gbps              ncu's DRAM throughput, in 1e9 bytes per second
    ncu_mem_accessed_gb          bandwidth x duration, in 1e9 bytes

What ncu printed is kept beside each kernel, as <kernel>.ncu, and is never measured again: a run
that was stopped, by whatever, goes on when the same command is given again. A kernel that fails
leaves its figures blank, its output in <kernel>.ncu.err, and the others alone.
"""

from __future__ import annotations

import argparse
import builtins
import contextlib
import csv
import enum
import errno
import functools
import gc
import io
import itertools
import os
import re
import signal
import stat
import sys
import threading
import time
import types
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import itemgetter, length_hint, mul

# Modules that only profiling needs (subprocess, hashlib and their like) are imported where they
# are used, and typing by type checkers alone: filling a table from the cache starts faster.
TYPE_CHECKING = False
if TYPE_CHECKING:
    import selectors
    from typing import IO, Any, BinaryIO, Callable, NoReturn, TextIO

__version__ = "1.0.0"

EPILOG = """\
exit status:
  0  every row has its figures
  1  the output is complete, but rows were left out as torn, kernels failed, or
     (with --cached-only) had no log
  2  wrong usage, input or environment; the output is as it was
  129, 130, 143  stopped by HUP, INT or TERM: logs are kept, the output is as it was, and the
     same command goes on; a second INT kills at once

example:
  %(prog)s -i metric_table_kernel_metadata.csv -o augmented.csv
  %(prog)s -i /tmp/torchinductor_$USER -o table.csv --table-only
  %(prog)s -i table.csv -o augmented.csv --quick --batch 32 --gpus all
"""

# ---------------------------------------------------------------------------------------------
# Constants and tables
# ---------------------------------------------------------------------------------------------

# The columns of torch's kernel_metadata table (torch 2.3), in its order.
TABLE_COLUMNS = (
    "model_name",
    "kernel_name",
    "kernel_path",
    "kernel_category",
    "size_hints",
    "reduction_hint",
    "line_of_code",
    "num_load",
    "num_store",
    "num_for_loop",
    "num_atomic_add",
    "num_args",
    "xnumel",
    "ynumel",
    "rnumel",
    "kernel_args_num_gb",
)
REQUIRED_COLUMNS = ("kernel_name", "kernel_path", "kernel_category")
FIGURE_COLUMNS = (
    "latency_us_under_profiling",
    "ncu_duration_us",
    "ncu_mem_bw_gbps",
    "ncu_mem_accessed_gb",
)

# What takes a unit to microseconds. ncu spells units out up to about 2024.2.
TIME_UNITS = {
    b"nsecond": b"e-3",
    b"usecond": b"e0",
    b"msecond": b"e3",
    b"second": b"e6",
    b"ns": b"e-3",
    b"us": b"e0",
    b"ms": b"e3",
    b"s": b"e6",
}
# What takes a unit to 1e9 bytes per second; ncu's factors are of 1000.
BANDWIDTH_UNITS = {
    prefix + b"byte" + per: exponent
    for prefix, exponent in (
        (b"", b"e-9"),
        (b"K", b"e-6"),
        (b"M", b"e-3"),
        (b"G", b"e0"),
        (b"T", b"e3"),
    )
    for per in (b"/second", b"/s")
}
# --print-units base: whole nanoseconds, bytes per second. Only here can a dot group digits alone.
BASE_UNITS = frozenset((b"nsecond", b"ns", b"byte/second", b"byte/s"))

DURATION_METRIC = "gpu__time_duration.sum"
BANDWIDTH_METRIC = "dram__bytes.sum.per_second"

# ncu's options. Base units because two decimals of others cost up to 0.5 %; application-only
# because `all` waits for every descendant, daemons too, and injects into compilers.
NCU_OPTIONS: dict[str, str | None] = {
    "--kernel-name": "regex:triton",
    "--launch-count": "1",
    "--set": "full",
    "--print-units": "base",
    "--target-processes": "application-only",
}
# A batch turns the profiler on for the launches that count, and labels each by an NVTX range.
NCU_BATCH_OPTIONS: dict[str, str | None] = {
    "--profile-from-start": "off",
    "--nvtx": None,
    "--print-nvtx-rename": "kernel",
}
SHORT_OPTIONS = {"--kernel-name": "-k", "--launch-count": "-c"}

# What ncu says, mostly behind ==ERROR==, when every kernel will fail the same way; the remedy.
LOCK_REMEDY = "the lock file belongs to another user: set TMPDIR to a folder of your own"
CLOCKS_REMEDY = "add --ncu-args=--clock-control=none"
INTERPRETER_REMEDY = "correct --python"
FATAL_TEXTS = (
    (
        "ERR_NVGPUCTRPERM",
        "run as root or with CAP_SYS_ADMIN or CAP_PERFMON (a container: --cap-add=SYS_ADMIN), "
        "or load the driver with NVreg_RestrictProfilingToAdminUsers=0",
    ),
    ("Cuda driver is not compatible with Nsight Compute", "use an ncu that matches the driver"),
    (
        "Nsight Compute failed to connect to the CUDA driver",
        "run on a node with an NVIDIA driver, with an ncu that is not newer than the driver",
    ),
    (
        "Failed to initialize the profiler: LibraryNotLoaded",
        "use an ncu that knows this GPU, and a container that holds the counter library",
    ),
    ("Profiling is not supported on device", "use another GPU or driver"),
    ("Insufficient driver version to profile on device", "use another GPU or driver"),
    ("Failed to open/create lock file", LOCK_REMEDY),
    ("InterprocessLockFailed", LOCK_REMEDY),
    ("Failed to create temporary file", "set TMPDIR to a folder that exists and has room"),
    ("Failed to lock GPU clock frequencies", CLOCKS_REMEDY),
    ("Cannot lock GPU clock frequencies on MIG", CLOCKS_REMEDY),
    ("did not match any section", "correct --ncu-args"),
    ("does not exist or is not an executable", INTERPRETER_REMEDY),
    ("The target application is not an executable binary", INTERPRETER_REMEDY),
)
FATAL_TEXT = rb"(?m)^==ERROR== .*(%s).*" % b"|".join(
    re.escape(text.encode()) for text, _ in FATAL_TEXTS
)
# What ncu says before it starts anything; ncu 2022 prints option errors on stderr without a prefix.
START_ERROR = (
    rb"(?m)^(?:==ERROR== )?(?:(Nsight Compute failed to connect to the CUDA driver)"
    rb"|unrecognised option|option is ambiguous|option '|the argument (?:for|\()).*"
)
# Another profiler (DCGM) holds the counters for a moment. Comes in a variant that goes on
# "... or the user does not have permission", so this is looked for first.
PASSING_TEXT = rb"(?m)^==ERROR== .*driver resource was unavailable.*"
PASSING_PAUSES = (2.0, 4.0)
# GPUs without DRAM counters (Jetson, GB10) refuse the bandwidth metric when asked by name.
METRIC_REFUSED = (
    rb"(?m)^==ERROR== .*(?:Failed to find metric|Failed to access the following).*dram__bytes.*"
)
# Why one kernel failed, the most telling first. What the application said is added.
KERNEL_TROUBLES = (
    (rb"(?m)^==ERROR== (Failed to (?:find|access).*metric.*)", "ncu refused a metric"),
    (rb"(?m)^==ERROR== .*(LaunchFailed)", "the launch failed"),
    (
        rb"(?m)^==ERROR== (The application returned an error code \(\d+\))",
        "the kernel's process failed",
    ),
    (rb"(?m)^==WARNING== No kernels were profiled", "no kernel was profiled"),
)

ASK_SECONDS = 120.0  # for what --python and nvidia-smi answer
GRACE_SECONDS = 2.0  # between TERM and KILL
BATCH_GRACE_SECONDS = 10.0  # ncu prints the results of a batch when it ends
FOR_EVER = float("inf")
POLL_SECONDS = 0.25
READABLE = 1  # selectors.EVENT_READ
# How a run ended that was not the kernel's fault
STOPPED = "stopped"
CANNOT_START = "cannot be started"
OUTPUT_LIMIT = 64 << 20  # bytes of one run's output; a kernel that prints without end is stopped
TRIAL_KERNELS = 10  # when the first so many all fail, it is the set-up
HELD_PAUSE = 0.25  # seconds until a kernel that another run holds is looked at again
BATCH_LIMIT = 500
SPARE_DESCRIPTORS = 40  # files that are open besides the locks of batches
BATCHES_IN_COMPANY = 3  # batches that end before its turn, until a kernel gets one of its own
ERROR_TEXT_LIMIT = 20_000
LABEL = "kernel-"  # of the NVTX range of a launch, with the kernel's place in its batch
LISTED_WARNINGS = 10
SLOW_OPEN = 0.001  # seconds a look-up; slower is a network file system
WARM_UP = 8  # look-ups before the speed is judged
READERS = 32  # threads that read ahead there

HARNESS_REMEDY = "compiled without TORCHINDUCTOR_BENCHMARK_KERNEL=1, or of a kind that has none"


class UsageError(Exception):
    """A mistake of the user's, or of the environment: one line on stderr, exit status 2."""


# ---------------------------------------------------------------------------------------------
# Values
# ---------------------------------------------------------------------------------------------


@dataclass(eq=False)
class LogLine:
    """One row: torch's sixteen cells as text, exactly as read, further cells, four figures.

    Cells of columns that the table does not have are empty. The figures are those that the row
    came with, None where it has none: the table is written with those of the kernel's log.
    """

    model_name: str
    kernel_name: str
    kernel_path: str
    kernel_category: str
    size_hints: str
    reduction_hint: str
    line_of_code: str
    num_load: str
    num_store: str
    num_for_loop: str
    num_atomic_add: str
    num_args: str
    xnumel: str
    ynumel: str
    rnumel: str
    kernel_args_num_gb: str
    further_cells: tuple[str, ...] = ()
    latency_us_under_profiling: float | None = None
    ncu_duration_us: float | None = None
    ncu_mem_bw_gbps: float | None = None
    ncu_mem_accessed_gb: float | None = None


@dataclass(eq=False, repr=False)
class Log:
    """What a valid log says."""

    __slots__ = ("bandwidth", "compute_capability", "figures", "source_hash", "tuned")

    figures: str  # the four cells, as they are written
    bandwidth: bool  # False: the GPU has no DRAM counters
    compute_capability: str  # "9.0"; empty where ncu (2022 and older) does not print it
    tuned: bool  # the tuned launch was profiled, not the first one
    source_hash: str  # of the kernel file that was measured; empty: not known


@dataclass(eq=False, repr=False)
class Failure:
    """Why there is no log of a kernel."""

    kind: str  # few words, the same for like failures: what the summary counts
    detail: str = ""
    remedy: str = ""  # set when every kernel would fail this way

    def __str__(self) -> str:
        return f"{self.kind}: {self.detail}" if self.detail else self.kind


class Kernel:
    """One kernel file, and what is known of it so far."""

    log: Log | None = None
    failure: Failure | None = None
    profiled = False  # by this run
    claims = 0  # rows whose kernel_args_num_gb is suspiciously large
    claimed_gb = ""  # what the first of them says
    had_figures = 0  # rows that came with figures
    misread_gb = False  # torch misread that figure's exponent
    failed_before = False
    # How to go on with a kernel that was put back
    due = 0.0  # time.monotonic() before which it is not tried again
    pauses = 0  # passing failures so far
    batches = 0  # batches that ended before this kernel had its turn
    alone = False  # in a batch of its own
    plain = False  # not in a batch at all

    def __init__(self, name: str, path: str) -> None:
        self.name = name
        self.path = path  # absolute, of the .py

    @property
    def log_path(self) -> str:
        return self.path[:-3] + ".ncu"

    @property
    def error_path(self) -> str:
        return self.log_path + ".err"


@dataclass(eq=False, repr=False)
class Source:
    """A kernel file as it is about to be measured."""

    kernel: Kernel
    sha256: str
    function: str  # the Triton function, "triton_" with plain names
    batchable: bool  # has get_args() and call()
    other_device: bool  # names a GPU other than the first


@dataclass(eq=False, repr=False)
class Run:
    """What one ncu printed, and how it ended."""

    command: str  # as pasted into a shell
    stdout: bytes
    stderr: bytes
    seconds: float
    ended: str = ""  # why we ended it; empty when it ended by itself
    status: int = 0
    started: bool = False  # a batch's first kernel: from then on stderr is the kernels' own

    @property
    def begun(self) -> bool:
        """Whether the application has come as far as to use the GPU."""
        return self.started or b"==PROF== Connected" in self.stdout

    @property
    def said(self) -> bytes:
        """What can be ncu's own words: on stderr only before the application has begun."""
        return self.stdout if self.begun else self.stdout + b"\n" + self.stderr


# ---------------------------------------------------------------------------------------------
# Parsing ncu's text
# ---------------------------------------------------------------------------------------------

# Thousands are grouped by the locale's separator (en 1,234.50; de 1.234,50; fr 1 234,50 with any
# of three spaces; ch 1'234.50) or in lakhs (en_IN 12,34,567.89). \udca0: a Latin-1 no-break space.
GROUPED = (
    "(?P<whole>[1-9][0-9]{0,2}(?P<group>[., '’\u00a0\u2009\u202f\udca0])[0-9]{3}"
    "(?:(?P=group)[0-9]{3})*)(?:(?!(?P=group))[.,](?P<decimals>[0-9]{1,2}))?"
)
LAKHS = "(?P<whole>[1-9][0-9]?(?:,[0-9]{2})*,[0-9]{3})(?:[.](?P<decimals>[0-9]{1,2}))?"
PLAIN = re.compile(rb"[0-9]+(?:[.,][0-9]{1,2}|[.]([0-9]{3,}))?")


def parse_number(text: bytes, base_units: bool) -> bytes | None:
    """Return a number that ncu printed, in whatever locale, as float() reads it.

    ncu prints integers or two decimals. Three digits after a lone dot are a group in base units
    (16.448 ns under de_DE), else decimals. None: not a number, or not surely one.
    """
    plain = PLAIN.fullmatch(text)
    if plain:
        more = plain[1]
        if not (more and base_units and len(more) == 3 and text[:2] != b"0."):
            return text.replace(b",", b".")
    decoded = text.decode("utf-8", "surrogateescape")
    match = re.fullmatch(GROUPED, decoded) or re.fullmatch(LAKHS, decoded)
    if not match:
        return None
    return f"{re.sub('[^0-9]', '', match['whole'])}.{match['decimals'] or 0}".encode()


def parse_quantity(row: tuple[bytes, bytes], units: dict[bytes, bytes]) -> float | None:
    """Return a row's value in the unit that `units` leads to, scaled exactly in decimal."""
    unit, text = row
    number = parse_number(text, unit in BASE_UNITS)
    if number is None or unit not in units:
        return None
    value = float(number + units[unit])
    return value if value < FOR_EVER else None


LINE_LIMIT = 1000
BENCHMARK_LINE = re.compile(
    # ncu's progress line can end in the middle, and the benchmark's then goes on in it
    rb"(?:(?!==STDERR== ).*[0-9]%)?([0-9]+(?:\.[0-9]+)?)ms[ \t]+[0-9.]+GB[ \t]*[0-9.]+GB/s[ \t\r]*"
)


def find_benchmark_line(text: bytes) -> tuple[bytes, bytes] | None:
    """Return the first benchmark line, `0.027ms    0.004GB    147.69GB/s`, and its milliseconds."""
    at = text.find(b"GB/s")
    while at >= 0:
        # Bounded, for a progress bar can print a long line with many of them
        begin = text.rfind(b"\n", max(at - LINE_LIMIT, 0), at) + 1
        end = text.find(b"\n", at, at + LINE_LIMIT)
        if end < 0:
            end = min(len(text), at + LINE_LIMIT)
        if begin or at < LINE_LIMIT:
            match = BENCHMARK_LINE.fullmatch(text, begin, end)
            if match:
                return text[match.start(1) : end].rstrip(), match[1]
        at = text.find(b"GB/s", at + 4)
    return None


KERNEL_LINE = re.compile(
    rb", Context [0-9]+, Stream [0-9]+(?:, Device [0-9]+, CC ([0-9]+\.[0-9]+))?[^\n]*\n"
)


@dataclass(eq=False, repr=False)
class Result:
    """One profiled launch on ncu's details page."""

    name: bytes  # label (where ncu was told to print it) and function, arguments, grid or date
    compute_capability: str
    begin: int  # of the kernel line, in the text
    end: int  # where the next one begins


def find_results(text: bytes) -> list[Result]:
    """Split ncu's details page into its results.

    ncu prints them when the application is gone; what an application prints that looks like
    them comes before.
    """
    page = text.find(b", Context ")
    # A page rarely holds a `=` at all, and to look for one is far cheaper than for the mark
    if page >= 0 and text.find(b"=", page) >= 0:
        page = max(text.rfind(b"==PROF==", page), page)
    page = max(text.rfind(b"\n", 0, max(page, 0)), 0)
    last = text.find(b"\n", max(text.rfind(b", Context "), 0)) + 1  # rfind is the faster scan
    last = last or len(text)  # cut short within that line: those before it are whole
    results: list[Result] = []
    for line in KERNEL_LINE.finditer(text, page, last):
        begin = text.rfind(b"\n", 0, line.start()) + 1
        if results:
            results[-1].end = begin
        name = text[begin : line.start()].lstrip()
        results.append(Result(name, (line[1] or b"").decode(), begin, len(text)))
    return results


# A table is complete when the rule that opened it closes it. Three columns: --print-summary
# prints five. Before 2022.3 there is no header row.
@functools.cache
def table_of(section: str) -> re.Pattern[bytes]:
    """Match a section's table: its rows. The pattern begins with a literal, which is fast."""
    return re.compile(
        rb"Section: " + section.encode() + rb"[ \t\r]*"
        rb"(?P<rule>\n[ \t]*-+ -+ -+)[ \t\r]*"
        rb"(?:\n[ \t]*Metric Name[^\n]*(?P=rule)[ \t\r]*)?"
        rb"(?P<rows>(?:\n(?![ \t]*(?:-|Section:|Metric Name))[^\n]*)*)"
        rb"(?P=rule)[ \t\r]*(?:\n|\Z)"
    )


SPEED_SECTION = "GPU Speed Of Light(?: Throughput)?"
MEMORY_SECTION = "Memory Workload Analysis"
METRICS_SECTION = "Command line profiler metrics"


@functools.cache
def row_of(name: str) -> re.Pattern[bytes]:
    """Match a metric's row: its unit, its value. Columns can be one space apart."""
    return re.compile(
        rb"\n[ \t]*" + re.escape(name.encode()) + rb"[ \t]+(\S+)[ \t]+(\S[^\n]*?)[ \t\r]*(?=\n|\Z)"
    )


def parse_result(text: bytes, result: Result) -> tuple[float, float | None] | Failure:
    """Return a result's duration in microseconds and bandwidth in 1e9 bytes/s (None: no counters).

    A full log has them in two tables; a quick one as two metrics in one, where ncu prints
    "(!) n/a" for a metric that the GPU does not have. A failed launch prints "(!) nan".
    """
    speed = table_of(SPEED_SECTION).search(text, result.begin, result.end)
    memory = table_of(MEMORY_SECTION).search(text, result.begin, result.end)
    if speed and memory:
        durations = row_of("Duration").findall(speed["rows"])
        bandwidths = row_of("Memory Throughput").findall(memory["rows"])
    else:
        metrics = table_of(METRICS_SECTION).search(text, result.begin, result.end)
        if not metrics:
            return Failure("no figures", "ncu's tables are missing or cut short")
        durations = row_of(DURATION_METRIC).findall(metrics["rows"])
        rows = row_of(BANDWIDTH_METRIC).findall(metrics["rows"])
        bandwidths = [row for row in rows if b"n/a" not in row[1]]
    if len(durations) != 1 or len(bandwidths) > 1:
        return Failure("no figures", "ncu's tables hold no single Duration and Memory Throughput")
    duration = parse_quantity(durations[0], TIME_UNITS)
    bandwidth = parse_quantity(bandwidths[0], BANDWIDTH_UNITS) if bandwidths else None
    if duration is None or (bandwidths and bandwidth is None):
        value = b" ".join(durations[0] if duration is None else bandwidths[0])
        return Failure("no figures", f"ncu printed {printable(value)!r} for one")
    return duration, bandwidth


# The lines that this program puts before ncu's text.
HEADER = re.compile(rb"# source sha256: ([0-9a-f]{64})\n# launch: (first|tuned) launch\n")


TRITON_ANNOUNCED = rb'==PROF== Profiling "[^"\n]*triton'


def parse_log(text: bytes) -> Log | Failure:
    """Return what a log says, or why it is not valid.

    Of several results the first whose kernel name contains "triton" counts, else the first.
    """
    results = find_results(text)
    if not results:
        return Failure("no figures", "ncu printed no result")
    result = results[0]
    if b"triton" not in result.name:
        result = next((other for other in results if b"triton" in other.name), result)
    if b"triton" not in result.name and re.search(TRITON_ANNOUNCED, text[: result.begin]):
        return Failure("no figures", "ncu's text ends before the result of the Triton kernel")
    values = parse_result(text, result)
    if isinstance(values, Failure):
        return values
    benchmark = find_benchmark_line(text)
    latency = float(benchmark[1] + b"e3") if benchmark else FOR_EVER
    if latency == FOR_EVER:
        return Failure("no benchmark line")
    duration, bandwidth = values
    measured = f"{bandwidth!r},{bandwidth * duration / 1e6!r}" if bandwidth is not None else ","
    header = HEADER.match(text)
    return Log(
        f"{latency!r},{duration!r},{measured}",
        bandwidth is not None,
        sys.intern(result.compute_capability),
        bool(header and header[2] == b"tuned"),
        header[1].decode() if header else "",
    )


def last_line(text: bytes) -> bytes:
    """Return the last line that says something: of a traceback, the error."""
    return text.rstrip().rpartition(b"\n")[2]


def encode(text: str) -> bytes:
    """Return text for a log, whatever is in it."""
    return text.encode("utf-8", "backslashreplace")


def printable(text: bytes, limit: int = 300) -> str:
    """Return bytes as one line for a person."""
    line = " ".join(text.decode("utf-8", "replace").split())
    return "".join(c if c.isprintable() else "?" for c in line)[:limit]


def find_fatal(run: Run) -> Failure | None:
    """Return what ncu said if every other kernel would fail the same way."""
    if run.ended.startswith(CANNOT_START):
        return Failure(
            f"ncu {run.ended}", remedy="correct --ncu, or have fewer kernels in a --batch"
        )
    match = re.search(FATAL_TEXT, run.said)
    if match:
        remedy = dict(FATAL_TEXTS)[match[1].decode()]
        return Failure("ncu cannot profile here", printable(match[0]), remedy)
    match = None if run.begun else re.search(START_ERROR, run.said)
    if match:
        remedy = dict(FATAL_TEXTS)[match[1].decode()] if match[1] else "correct --ncu-args"
        return Failure("ncu refused to start", printable(match[0]), remedy)
    return None


def find_trouble(run: Run) -> Failure | None:
    """Return why this kernel failed, where ncu or we ourselves say so."""
    last_words = printable(last_line(run.stderr))
    if run.ended:
        return Failure(run.ended, last_words)
    for pattern, kind in KERNEL_TROUBLES:
        match = re.search(pattern, run.stdout)
        if match:
            said = match[1].decode() if match.lastindex else ""
            return Failure(kind, ": ".join(filter(None, (said, last_words))))
    return None


# ---------------------------------------------------------------------------------------------
# The table
# ---------------------------------------------------------------------------------------------

# Cells that are paths are looked up as they stand, so they are decoded as file names are.
ENCODING = sys.getfilesystemencoding()
BYTE_ORDER_MARK = b"\xef\xbb\xbf".decode(ENCODING, "surrogateescape")


class Layout:
    """The columns of a table, and how its cells make a LogLine."""

    def __init__(self, header: list[str]) -> None:
        """Find the columns by name; of two with one name, the second is a further one."""
        missing = [column for column in REQUIRED_COLUMNS if column not in header]
        if missing:
            raise UsageError(f"the input has no column {' and no '.join(missing)}")
        places = {column: at for at, column in reversed(list(enumerate(header)))}
        absent = len(header)  # where parse() puts an empty cell
        own = [places.get(column, absent) for column in TABLE_COLUMNS]
        self._own = itemgetter(*own)
        self._figures = [places.get(column, absent) for column in FIGURE_COLUMNS]
        self._further = [
            at for at, column in enumerate(header) if at not in own and column not in MARKS
        ]
        # Has the table our columns already? Then each stays where it stands, and is filled anew.
        self.marked = any(column in header for column in FIGURE_COLUMNS)
        self.header = header + [column for column in FIGURE_COLUMNS if column not in header]

    def parse(self, cells: list[str]) -> LogLine:
        """Make a row of its cells, one for each column."""
        cells = [*cells, ""]
        values: Any = self._own(cells)
        if self._further or self.marked:
            further = tuple([cells[at] for at in self._further])
            figures = [parse_float(cells[at]) for at in self._figures] if self.marked else ()
            values = (*values, further, *figures)
        return LogLine(*values)

    def keep(self, text: str, cells: list[str]) -> str:
        """Return a row's text: as it was read, or with marks where our columns stand."""
        if not self.marked:
            return text
        pairs = itertools.zip_longest(self.header, cells, fillvalue="")
        return join_cells(MARKS.get(column, cell) for column, cell in pairs)


# Stand for a figure in the text of a row. Nothing that is decoded can hold this surrogate: what is
# no text becomes \udc80 to \udcff.
MARKS = {column: f"\ud800{at}" for at, column in enumerate(FIGURE_COLUMNS)}


LINE_END = "\r\n"


def parse_float(text: str) -> float | None:
    """Return a figure that a row came with."""
    try:
        return float(text)
    except ValueError:
        return None


def join_cells(cells: Iterable[str]) -> str:
    """Return cells as CSV, without an end of line."""
    text = io.StringIO()
    # Before Python 3.13 csv quotes a line end only where it is the terminator's
    csv.writer(text, lineterminator=LINE_END).writerow(cells)
    return text.getvalue()[: -len(LINE_END)]


class Table:
    """The rows that are worked on, as text, and what was left out."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.rows: list[str] = []  # some with their line end
        self.row_kernels: list[Kernel] = []  # the kernel of each row
        self.kernels: dict[str, Kernel] = {}  # by kernel_path
        self.torn: list[int] = []  # line numbers
        self.foreach = 0

    def add(self, line: LogLine, text: str, folder: str) -> bool:
        """Keep a row, unless it is foreach, which has no benchmark harness; False: no kernel."""
        if line.kernel_category == "foreach":
            self.foreach += 1
        elif not line.kernel_path.endswith(".py"):
            return False
        else:
            self.rows.append(text)
            self.row_kernels.append(find_kernel(line, folder, self.kernels))
        return True


def read_records(lines: list[str]) -> Iterator[tuple[int, int, list[str] | None]]:
    """Yield the places of each record's first line and of the next one's, and its cells.

    None for the cells of a torn record: not as wide as the first, or oddly quoted. A tear can open
    a quote that takes in the good lines behind it, so it is torn in its first line only.
    """
    at = width = 0
    has_nul = any("\0" in line for line in lines)
    while at < len(lines):
        begin = at
        reader = csv.reader(map(lines.__getitem__, range(at, len(lines))), strict=True)
        try:
            for cells in reader:
                end = begin + reader.line_num
                width = width or len(cells)
                if cells and len(cells) != width:
                    break
                if has_nul and any("\0" in line for line in lines[at:end]):
                    break
                if cells:
                    yield at, end, cells
                at = end
            else:
                return
        except csv.Error:  # a quote that is never closed, say; before Python 3.11 a NUL
            pass
        yield at, at + 1, None
        at += 1


def read_table(stream: Iterable[str], folder: str) -> Table:
    """Read a table; a header line that comes again (tables are concatenated) is passed over."""
    csv.field_size_limit(sys.maxsize)
    lines = list(stream)
    if lines and lines[0].startswith(BYTE_ORDER_MARK):
        lines[0] = lines[0][len(BYTE_ORDER_MARK) :]
    records = read_records(lines)
    _, _, header = next(records, (0, 0, None))
    if not header:
        raise UsageError("the input has no header")
    layout = Layout(header)
    table = Table(layout)
    again = [BYTE_ORDER_MARK + header[0], *header[1:]]
    for begin, end, cells in records:
        if cells in (header, again):
            continue
        if cells is not None:
            text = lines[begin] if end == begin + 1 else "".join(lines[begin:end])
            if table.add(layout.parse(cells), layout.keep(text, cells), folder):
                continue
        table.torn.append(begin + 1)
    return table


def open_table(path: str) -> TextIO:
    """Open the input, "-" for stdin. Bytes that are no text survive in the cells."""
    if path == "-" and sys.stdin is None:
        raise UsageError("cannot read stdin: it is closed")
    try:
        stream = sys.stdin.buffer if path == "-" else open(path, "rb")  # noqa: SIM115
        return io.TextIOWrapper(stream, ENCODING, "surrogateescape", newline="")
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None


def write_table(stream: BinaryIO, table: Table, figures: bool = True) -> None:
    """Write the table with its figures: what its rows say stays as it was read."""
    text = io.TextIOWrapper(stream, ENCODING, "surrogateescape", newline="")
    try:
        header = table.layout.header if figures else table.layout.header[: -len(FIGURE_COLUMNS)]
        text.write(join_cells(header) + "\n")
        for row, kernel in zip(table.rows, table.row_kernels):
            row = row.rstrip(LINE_END)
            if figures:
                known = kernel.log.figures if kernel.log else ",,,"
                row = fill_marks(row, known) if table.layout.marked else f"{row},{known}"
            text.write(row + "\n")
        text.flush()
    finally:
        text.detach()


def fill_marks(row: str, figures: str) -> str:
    """Put figures where a row has marks."""
    cells = figures.split(",")
    return re.sub("\ud800([0-3])", lambda mark: cells[int(mark[1])], row)


# ---------------------------------------------------------------------------------------------
# An Inductor cache directory as input
# ---------------------------------------------------------------------------------------------


class NoRow(enum.Enum):
    """Why a Python file of an Inductor cache gives no row; the value is for people."""

    OTHER = "not a kernel file"
    WRAPPER = "wrapper module"
    USER = "user-written kernel"
    FOREACH = "foreach kernel"
    CANDIDATE = "candidate that torch only benchmarked"
    NO_HARNESS = "kernel without a benchmark harness"
    DAMAGED = "cut short or damaged"


DECORATOR = "\n@triton_heuristics."
DECORATOR_BYTES = DECORATOR.encode()
HARNESS_IMPORT = b"\nfrom torch._dynamo.testing import rand_strided"
HARNESS_START = "\ndef get_args("
HARNESS_MAIN = "\nif __name__ == '__main__':"
HARNESS_END = 'GB/s")'  # of the print that ends the harness, the same in torch 2.2 to 2.15

# torch's get_kernel_category_by_source_code knows these and foreach; any other is "unknown",
# such as cooperative_reduction (whose kernels it therefore names triton_unk_...).
CATEGORIES = frozenset(("persistent_reduction", "pointwise", "reduction", "split_scan", "template"))
# torch asserts that these say their hints; a template has no size_hints.
WITH_SIZE_HINTS = frozenset(("persistent_reduction", "pointwise", "reduction", "split_scan"))
WITH_REDUCTION_HINT = frozenset(("persistent_reduction", "reduction"))

KERNEL_NAME = re.compile(r"'kernel_name': '([\w.]+)'")
# A list up to torch 2.5, a dict since 2.6.
SIZE_HINTS = re.compile(r"size_hints=(\[[0-9, ]*\]|\{[^{}]*\}),")
REDUCTION_HINT = re.compile(r"reduction_hint=ReductionHint\.(\w+),")
# Python prints floats below 1e-4 (kernels under 100 kB) with an exponent of two digits.
NUM_GB = re.compile(r"'kernel_num_gb': (?:([0-9]+(?:\.([0-9]+))?)(?:e-([0-9]{2}))?|None)[,}]")
DEF = "\ndef triton_"  # also with plain names, where the function is called triton_
ARGUMENTS = re.compile(r"def \w+\(.*?\):")
# The name is looked for backwards: a pattern that starts with a literal is searched fast.
NUMEL = re.compile(r"(numel) = ([0-9]{1,19})$", re.MULTILINE)
# What ends the function: the harness, or (flex attention) a helper that follows the kernel.
NEXT_STATEMENT = re.compile(r"\n(?=[@\w])")
# Not a line of the function that has lost its indentation: an indented one would follow.
AFTER_FUNCTION = re.compile(r"def |@|[^\n]*\n(?![ \t]+\S)")
# inspect.getsource, which torch counts in, drops such lines after the last statement.
NOT_OF_BODY = re.compile(r"\s*$| {0,3}#")


def parse_kernel_file(source: bytes, path: str) -> dict[str, str] | NoRow:
    """The row of torch's kernel_metadata table for a kernel's source, or why there is none.

    By the definitions of torch/_inductor/metrics.py (the same in torch 2.3 to 2.15), without
    running the file. Never raises.
    """
    # The cheap tests come first: half of the bytes of a cache are in wrapper modules.
    start = source.find(DECORATOR_BYTES)
    if start < 0:
        return judge_without_kernel(source)
    if source.find(b"AsyncCompile", 0, start) >= 0:
        return NoRow.WRAPPER
    try:
        text = source.decode()
    except UnicodeDecodeError:
        return NoRow.DAMAGED
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    return judge_with_kernel(text, path)


def judge_without_kernel(source: bytes) -> NoRow:
    """What a source without a kernel's decorator is."""
    if b"AsyncCompile" in source:
        return NoRow.WRAPPER  # of a graph without generated kernels, or for the CPU
    return NoRow.DAMAGED if HARNESS_IMPORT in source else NoRow.OTHER


def judge_with_kernel(text: str, path: str) -> dict[str, str] | NoRow:
    """The row of a source that has a kernel's decorator, or why there is none."""
    start = text.find(DECORATOR)
    # Other modules quote kernels in strings.
    if is_inside_string(text, start):
        return NoRow.WRAPPER
    decorator = text[start + len(DECORATOR) : text.find("(", start)]
    if decorator == "user_autotune":
        return NoRow.USER
    name = KERNEL_NAME.search(text, start)
    if name is None or "\0" in text or text.find(DECORATOR[1:], start + 2) >= 0:
        return NoRow.DAMAGED
    if decorator == "foreach":
        return NoRow.FOREACH
    if name[1].startswith("Placeholder."):
        return NoRow.CANDIDATE
    kernel = cut_out_kernel(text, start)
    if isinstance(kernel, NoRow):
        return kernel
    category = decorator if decorator in CATEGORIES else "unknown"
    return make_row(kernel, (name[1], path, category)) or NoRow.DAMAGED


def is_inside_string(text: str, position: int) -> bool:
    """Whether a triple-quoted string is open at a position."""
    return bool(text.count("'''", 0, position) % 2 or text.count('"""', 0, position) % 2)


def cut_out_kernel(text: str, start: int) -> str | NoRow:
    """The kernel, from its decorator to the end of its function, once its harness is whole."""
    definition = text.find(DEF, start)
    main = text.find(HARNESS_MAIN, definition)
    if main < 0 or definition < 0:
        # Cut before the end of a harness, or compiled without TORCHINDUCTOR_BENCHMARK_KERNEL.
        cut = definition < 0 or HARNESS_START in text or HARNESS_IMPORT.decode() in text
        return NoRow.DAMAGED if cut else NoRow.NO_HARNESS
    end = NEXT_STATEMENT.search(text, definition + len(DEF))
    # A file that is still being written has no end.
    if end is None or not AFTER_FUNCTION.match(text, end.end()):
        return NoRow.DAMAGED
    return text[start : end.start()] if text.find(HARNESS_END, main) >= 0 else NoRow.DAMAGED


def make_row(kernel: str, name_path_category: tuple[str, str, str]) -> dict[str, str] | None:
    """The row of a whole kernel; None where torch would not find what every such kernel has."""
    name, path, category = name_path_category
    function = kernel[kernel.index(DEF) + 1 :]
    lines = function_lines(function)
    size_hints = SIZE_HINTS.search(kernel)
    hint = REDUCTION_HINT.search(kernel) if category in WITH_REDUCTION_HINT else None
    num_gb = NUM_GB.search(kernel)
    if (
        not lines
        or (size_hints is None and category in WITH_SIZE_HINTS)
        or (hint is None and category in WITH_REDUCTION_HINT)
        or (num_gb is None and "kernel_num_gb" in kernel)
    ):
        return None
    return {
        "model_name": "",
        "kernel_name": name,
        "kernel_path": path,
        "kernel_category": category,
        "size_hints": size_hints[1] if size_hints else "",
        "reduction_hint": hint[1] if hint else "",
        **function_cells(lines),
        "kernel_args_num_gb": num_gb_cell(num_gb) if num_gb else "",
    }


def function_lines(function: str) -> list[str]:
    """A function's lines as inspect.getsource has them, in which torch counts; none if torn."""
    lines = function.splitlines()
    while NOT_OF_BODY.match(lines[-1]):
        lines.pop()
    # Something at the start of a line is not the function's end where a string or bracket is open.
    is_open = lines[-1].count("(") > lines[-1].count(")") or is_inside_string(
        function, len(function)
    )
    return lines if ARGUMENTS.match(lines[0]) and not is_open else []


def num_gb_cell(match: re.Match[str]) -> str:
    """Six decimals as torch writes them; every digit where torch misreads the exponent."""
    mantissa, decimals, exponent = match.groups()
    if not mantissa:
        return ""
    if not exponent:
        return f"{float(mantissa):.6f}"
    return f"{float(f'{mantissa}e-{exponent}'):.{len(decimals or '') + int(exponent)}f}"


def function_cells(lines: list[str]) -> dict[str, str]:
    """What torch counts and finds in a kernel function, from its "def" on."""
    function = "\n".join(lines)
    literals = literal_numels(function)
    return {
        "line_of_code": str(len(lines)),
        "num_load": str(function.count("tl.load")),
        "num_store": str(function.count("tl.store")),
        "num_for_loop": str(function.count("for ")),
        "num_atomic_add": str(function.count("tl.atomic_add")),
        "num_args": str(lines[0].count(",", 0, lines[0].index("):")) + 1),
        "xnumel": literals.get("xnumel", ""),
        "ynumel": literals.get("ynumel", ""),
        "rnumel": rnumel_cell(function, literals),
    }


def literal_numels(function: str) -> dict[str, str]:
    """The first literal given to each ...numel; a dynamic size is given none."""
    found: dict[str, str] = {}
    for match in NUMEL.finditer(function):
        name = function[function.rfind("\n", 0, match.start()) : match.end(1)].strip()
        found.setdefault(name, str(int(match[2])))
    return found


def rnumel_cell(function: str, literals: dict[str, str]) -> str:
    """The size of the whole reduction, blank unless it is literal."""
    # Since torch 2.6 a reduction has dimensions of its own, and says rnumel = r0_numel.
    if "r0_numel" not in function:
        return literals.get("rnumel", "")
    names = ("r0_numel", "r1_numel") if "r1_numel" in function else ("r0_numel",)
    if not all(name in literals for name in names):
        return ""
    sizes = [int(literals[name]) for name in names]
    return str(functools.reduce(mul, sizes))


def is_exponent_misread(cell: str, source: bytes) -> bool:
    """Whether a kernel_args_num_gb cell is the kernel's kernel_num_gb less its exponent.

    torch reads 'kernel_num_gb': 5.6e-06 with a regex that stops at the e, and writes 5.600000.
    """
    match = NUM_GB.search(source.decode("utf-8", "replace"))
    if match is None or not match[3]:
        return False
    try:
        return f"{float(cell):.6f}" == f"{float(match[1]):.6f}"
    except ValueError:
        return False


def find_kernel_files(root: str, warn: Callable[[str], None]) -> list[str]:
    """The regular files named *.py under a folder, in the order of their paths.

    Linked folders are followed, those nearest to the file system's root first, unless they lead
    in or around what is read anyway.
    """
    files: list[str] = []
    entered: list[str] = []
    links = [root]
    while links:
        link = min(links, key=lambda path: (os.path.realpath(path).count(os.sep), path))
        links.remove(link)
        target = os.path.join(os.path.realpath(link), "")
        if any(target.startswith(other) or other.startswith(target) for other in entered):
            warn(f"{link}: passed over, it links to {target}, in or around what is read anyway")
        else:
            entered.append(target)
            list_files(link, files, links, warn)
    return sorted(files)


def list_files(
    folder: str, files: list[str], links: list[str], warn: Callable[[str], None]
) -> None:
    """Collect the Python files under a folder, and the links to other folders."""
    waiting = [folder]
    while waiting:
        path = waiting.pop()
        try:
            with os.scandir(path) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    elif entry.is_symlink() and os.path.isdir(entry.path):
                        links.append(entry.path)
                    elif entry.name.endswith(".py"):
                        # Not entry.is_file(), which raises for a link that leads round to itself
                        if entry.is_file(follow_symlinks=False) or os.path.isfile(entry.path):
                            files.append(entry.path)
                        elif entry.is_symlink():
                            warn(f"{entry.path}: passed over, a link that leads to no file")
        except OSError as error:
            warn(f"{path}: passed over, {error.strerror}")


def read_cache(root: str, model_name: str, reporter: Reporter) -> Table:
    """Make the table of an Inductor cache, ordered by path."""
    layout = Layout(list(TABLE_COLUMNS))
    table = Table(layout)
    counts = dict.fromkeys(NoRow, 0)
    warnings: list[str] = []
    for path in find_kernel_files(os.path.abspath(root), warnings.append):
        row = read_kernel_file(path, warnings.append)
        if isinstance(row, NoRow):
            counts[row] += 1
        else:
            row["model_name"] = model_name
            cells = [*row.values()]
            table.add(layout.parse(cells), join_cells(cells), "")
        reporter.redraw(lambda: f"{len(table.rows)} kernels, {sum(counts.values())} other files")
    warn_of_first(warnings, reporter)
    reporter.status("")
    table.foreach = counts[NoRow.FOREACH]
    if not table.rows:
        raise UsageError(nothing_found(root, counts))
    if counts[NoRow.NO_HARNESS]:
        reporter.warn(f"{counts[NoRow.NO_HARNESS]} kernels are left out: no benchmark harness")
    return table


def warn_of_first(warnings: list[str], reporter: Reporter) -> None:
    """Say the first of many like warnings, and how many more there are."""
    for warning in warnings[:LISTED_WARNINGS]:
        reporter.warn(warning)
    if len(warnings) > LISTED_WARNINGS:
        reporter.warn(f"and {len(warnings) - LISTED_WARNINGS} more like this")


def read_kernel_file(path: str, warn: Callable[[str], None]) -> dict[str, str] | NoRow:
    """The row of one file; a file that cannot be read or has no end is warned of."""
    try:
        row = parse_kernel_file(read_bytes(path), path)
    except OSError as error:
        warn(f"{path}: passed over, {error.strerror}")
        return NoRow.OTHER
    if row is NoRow.DAMAGED:
        warn(f"{path}: passed over, the kernel is cut short or damaged (still being written?)")
    return row


def nothing_found(root: str, counts: dict[NoRow, int]) -> str:
    """What to say when a folder gave no row: what was looked for, and what there was."""
    if counts[NoRow.NO_HARNESS]:
        return (
            f"{root}: {counts[NoRow.NO_HARNESS]} kernels, none with a benchmark harness:"
            " TORCHINDUCTOR_BENCHMARK_KERNEL=1 was not set when they were compiled"
        )
    seen = ", ".join(f"{count} x {what.value}" for what, count in counts.items() if count)
    return (
        f"{root}: no kernel found; looked for .py files with @triton_heuristics. at the start"
        f" of a line and a benchmark harness ({seen or 'there are no .py files'})"
    )


# ---------------------------------------------------------------------------------------------
# Files that are written whole or not at all
# ---------------------------------------------------------------------------------------------


def write_whole(
    path: str, fill: Callable[[BinaryIO], object], like: os.stat_result | None = None
) -> None:
    """Replace a file by what `fill` writes, or leave everything as it was and raise OSError.

    The new file has the permissions that umask gives, or those of `like`. It is not synced: what
    a power failure tears is not a valid log.
    """
    temporary = temporary_beside(path)
    try:
        with open(temporary, "xb") as stream:
            fill(stream)
        if like:
            with contextlib.suppress(PermissionError):
                os.chown(temporary, like.st_uid, like.st_gid)
            os.chmod(temporary, like.st_mode & 0o777)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def temporary_beside(path: str) -> str:
    """Return a name for a file that becomes `path`; nothing takes it for a log or a kernel."""
    name = f".parse_kernel_metadata_csv-{os.urandom(8).hex()}.tmp"
    return os.path.join(os.path.dirname(path), name)


# A FIFO of that name must not stop us: without O_NONBLOCK its opening would wait for a writer.
READ_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
READ_SIZE = 1 << 16  # most logs and kernels come at once


def read_bytes(path: str) -> bytes:
    """Return a file's bytes; raises OSError also when it is absurdly large."""
    descriptor = os.open(path, READ_FLAGS)
    try:
        data = os.read(descriptor, READ_SIZE)
        if len(data) < READ_SIZE:
            return data
        chunks = [data]
        while chunks[-1] and len(chunks) * READ_SIZE <= 2 * OUTPUT_LIMIT:
            chunks.append(os.read(descriptor, READ_SIZE))
        if chunks[-1]:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        return b"".join(chunks)
    finally:
        os.close(descriptor)


def read_if_there(path: str) -> bytes | None:
    """Return a file's bytes, None where it cannot be read."""
    try:
        return read_bytes(path)
    except OSError:
        return None


def find_destination(path: str, source: str) -> str | None:
    """Return the regular file that the output replaces, None when it is written directly.

    Raises UsageError when it cannot be written, so that this is known before the first kernel.
    """
    path = path or os.curdir
    target = os.path.realpath(path)
    try:
        if os.path.exists(path):
            if os.path.isdir(path):
                raise UsageError(f"the output {path} is a folder")
            if is_same_file(source, os.stat(path)):
                raise UsageError(f"the output {path} is the input; give it another name")
            if not os.path.isfile(path):
                if not os.access(path, os.W_OK):
                    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
                return None  # a pipe or a device
            os.close(os.open(target, os.O_WRONLY | os.O_CLOEXEC))
        probe = temporary_beside(target)
        os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC))
        os.unlink(probe)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None
    return target


def open_descriptor(path: str, source: str) -> int | None:
    """Return a copy of the open file that the output is: by name, it would lose what it holds.

    None for any other output. Raises UsageError when it is not open for writing, or the input.
    """
    import fcntl

    match = re.fullmatch("(?:/dev|/proc/self)/fd/([0-9]{1,9})", path)
    if not match and path not in ("-", "/dev/stdout"):
        return None
    number = int(match[1]) if match else 1
    try:
        if number == 1 and sys.stdout is None:
            raise UsageError("cannot write to stdout: it is closed")
        descriptor = os.dup(number)
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise UsageError(f"cannot write {path}: it is open for reading only")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode) and is_same_file(source, status):
        raise UsageError(f"the output {path} is the input; give it another name")
    return descriptor


def is_same_file(source: str, other: os.stat_result) -> bool:
    """Tell whether the input is that file, also when it comes on stdin."""
    try:
        return os.path.samestat(os.fstat(0) if source == "-" else os.stat(source), other)
    except OSError:
        return False


def write_output(path: str, place: str | int | None, fill: Callable[[BinaryIO], object]) -> None:
    """Write the output to a file that is replaced, an open one, or (None) a pipe or device."""
    try:
        if isinstance(place, str):
            old = os.stat(place) if os.path.exists(place) else None
            write_whole(place, fill, like=old)
        else:
            with open(path if place is None else place, "wb") as stream:
                fill(stream)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None


# ---------------------------------------------------------------------------------------------
# Planning: rows, kernels, shards, GPUs
# ---------------------------------------------------------------------------------------------


def find_kernel(line: LogLine, folder: str, kernels: dict[str, Kernel]) -> Kernel:
    """Return a row's kernel, a new one for a file that no row named before."""
    kernel = kernels.get(line.kernel_path)
    if not kernel:
        path = find_kernel_file(line.kernel_path, folder)
        kernel = kernels.get(path) or Kernel(line.kernel_name, path)
        kernels[line.kernel_path] = kernels[path] = kernel
    if line.kernel_args_num_gb[:1] in SUSPICIOUS_GB:
        kernel.claims += 1
        kernel.claimed_gb = kernel.claimed_gb or line.kernel_args_num_gb
    if line.ncu_duration_us is not None:
        kernel.had_figures += 1
    return kernel


# A kernel rarely moves a gigabyte; where it says so, torch may have dropped an exponent.
SUSPICIOUS_GB = frozenset("123456789")


def find_kernel_file(path: str, folder: str) -> str:
    """Return a kernel's absolute path: from the current directory, else from the table's folder.

    A log alone counts too: it stays valid when its kernel file is gone.
    """
    if os.path.isabs(path):
        return make_absolute(path)
    candidates = [make_absolute(path), make_absolute(os.path.join(folder, path))]
    for candidate in candidates:
        if os.path.exists(candidate) or os.path.exists(candidate[:-3] + ".ncu"):
            return candidate
    return candidates[0]


def make_absolute(path: str) -> str:
    """Return an absolute path, the same for all spellings that differ in `.` and `//` alone.

    `..` is not cut out of a path: what is before it can be a link.
    """
    if path.startswith("/") and "/." not in path and "//" not in path:
        return path
    if ".." in path.split("/"):
        folder, name = os.path.split(path)
        return os.path.join(os.path.realpath(folder), name)
    return "/" + os.path.abspath(path).lstrip("/")


def keep_shard(table: Table, shard: tuple[int, int] | None) -> list[Kernel]:
    """Return the kernels of this shard, dealt out by stride, and leave only their rows."""
    unique = list(dict.fromkeys(table.row_kernels))
    if not shard:
        return unique
    chosen = unique[shard[0] - 1 :: shard[1]]
    mine = set(chosen)
    kept = [pair for pair in zip(table.rows, table.row_kernels) if pair[1] in mine]
    table.rows = [row for row, _ in kept]
    table.row_kernels = [kernel for _, kernel in kept]
    return chosen


UUIDS = ("GPU-", "MIG-")


def visible_gpus(environment: Mapping[str, str]) -> list[str] | None:
    """Return the entries of CUDA_VISIBLE_DEVICES as CUDA reads them; None where it is not set."""
    value = environment.get("CUDA_VISIBLE_DEVICES")
    if value is None:
        return None
    entries = [entry.strip() for entry in value.split(",")]
    # CUDA stops at the first entry that is no device
    return list(itertools.takewhile(lambda entry: entry and not entry.startswith("-"), entries))


def choose_gpus(spec: str, environment: Mapping[str, str], stop: Stop) -> list[str]:
    """Return the CUDA_VISIBLE_DEVICES of each worker that --gpus asks for."""
    visible = visible_gpus(environment)
    if spec == "all":
        gpus = list_gpus(stop) if visible is None else visible
    else:
        gpus = [choose_gpu(entry.strip(), visible) for entry in spec.split(",")]
    if not gpus:
        raise UsageError("--gpus: there is no GPU")
    twice = [gpu for gpu, count in Counter(gpus).items() if count > 1]
    if twice:
        raise UsageError(f"--gpus names GPU {twice[0]} twice")
    return gpus


def choose_gpu(entry: str, visible: list[str] | None) -> str:
    """Return one GPU: a UUID as it is, a number as an index of the visible ones."""
    if entry.startswith(UUIDS):
        return entry
    if not re.fullmatch("[0-9]{1,9}", entry):
        raise UsageError(f"--gpus: {entry!r} is neither a number nor a UUID (GPU-..., MIG-...)")
    if visible is None:
        return str(int(entry))
    if int(entry) >= len(visible):
        raise UsageError(f"--gpus: CUDA_VISIBLE_DEVICES has no GPU {entry}, only {len(visible)}")
    return visible[int(entry)]


# ---------------------------------------------------------------------------------------------
# The cache: <kernel>.ncu beside <kernel>.py
# ---------------------------------------------------------------------------------------------

KERNEL_FUNCTION = re.compile(rb"^def (triton\w*)\(", re.M)
MAIN_BLOCK = re.compile(rb"^if __name__ == ['\"]__main__['\"]", re.M)
OTHER_DEVICE = re.compile(rb"(?:cuda:|set_device\(|_DeviceGuard\()0*[1-9]")


def hash_source(source: bytes) -> str:
    """Return what sha256sum prints for a kernel file."""
    import hashlib

    return hashlib.sha256(source).hexdigest()


def look_up(kernel: Kernel) -> None:
    """Find the kernel's log, if it has a valid one that measured the file as it is now.

    One look at each file: the log first, the kernel only where the log or the table asks for it.
    """
    text = read_if_there(kernel.log_path)
    log = parse_log(text) if text else None
    valid = log if isinstance(log, Log) else None
    if kernel.claims or (valid and valid.source_hash):
        source = read_if_there(kernel.path)
        if source is not None:
            kernel.misread_gb = is_exponent_misread(kernel.claimed_gb, source)
            if valid and valid.source_hash and valid.source_hash != hash_source(source):
                valid = None
    kernel.log = valid


def look_up_all(kernels: list[Kernel], stop: Stop, tick: Callable[[int], None]) -> None:
    """Look every kernel up; by several threads at a time where opening a file is slow.

    `tick` is told now and then of how many kernels more were found.
    """
    rest = iter(kernels)  # shared: taking the next is atomic

    def read(patience: float) -> None:
        begin = time.perf_counter()
        found = 0
        for count, kernel in enumerate(rest, 1):
            look_up(kernel)
            found += kernel.log is not None
            if count & 7:
                continue
            tick(found)
            found = 0
            if count == WARM_UP:  # imports and patterns to compile are behind us
                begin = time.perf_counter()
            slow = time.perf_counter() - begin > patience * (count - WARM_UP)
            if stop.requested or (slow and count > WARM_UP):
                break
        tick(found)

    read(SLOW_OPEN)
    if length_hint(rest) and not stop.requested:
        readers = [threading.Thread(target=read, args=(FOR_EVER,)) for _ in range(READERS)]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()


def inspect_source(kernel: Kernel) -> Source | Failure:
    """Read a kernel file that is about to be measured."""
    text = read_if_there(kernel.path)
    if text is None:
        return Failure("no kernel file" if not os.path.exists(kernel.path) else "not readable")
    if b"@triton_heuristics." in text and not MAIN_BLOCK.search(text):
        return Failure("no benchmark harness", HARNESS_REMEDY)
    function = KERNEL_FUNCTION.search(text)
    return Source(
        kernel,
        hash_source(text),
        function[1].decode() if function else "",
        b"\ndef get_args(" in text and b"\ndef call(" in text,
        bool(OTHER_DEVICE.search(text)),
    )


STDERR_MARK = b"==STDERR== "
STDERR_LIMIT = 1 << 20  # bytes of it that a log keeps


def compose_log(source: Source, launch: str, command: str, stderr: bytes, text: bytes) -> bytes:
    """Return a log: what was measured, and how; then what ncu printed.

    stderr comes first and behind a mark of its own, so that nothing in it can be taken for ncu's.
    """
    header = f"# source sha256: {source.sha256}\n# launch: {launch} launch\n# command: "
    marked = STDERR_MARK + stderr.rstrip(b"\n").replace(b"\n", b"\n" + STDERR_MARK) + b"\n"
    marked = marked if stderr else b""
    return header.encode() + os.fsencode(command.replace("\n", "?")) + b"\n" + marked + text


@contextlib.contextmanager
def kernel_lock(path: str) -> Iterator[bool]:
    """Hold the kernel file's lock, so that of several runs one profiles it; False: held elsewhere.

    The kernel frees it when the process is gone, however. On NFS an exclusive lock needs a file
    that is open for writing. Where there are no locks we go on: logs are renamed into place.
    """
    import fcntl

    descriptor = -1
    try:
        for mode in (os.O_RDWR, os.O_RDONLY):
            try:
                descriptor = os.open(path, mode | os.O_NONBLOCK | os.O_CLOEXEC)
                break
            except OSError as error:
                if error.errno == errno.EMFILE:  # no reason to go on without the lock
                    yield False
                    return
        try:
            if descriptor >= 0:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        except OSError:
            pass
        yield True
    finally:
        if descriptor >= 0:
            os.close(descriptor)


# ---------------------------------------------------------------------------------------------
# Running one ncu
# ---------------------------------------------------------------------------------------------


class Stop:
    """The wish to end early: of a signal, or after a failure that every kernel would share.

    `soft` and `hard` are descriptors that turn readable, for good, when a child is to be
    terminated or killed.
    """

    def __init__(self) -> None:
        self.requested = False
        self.signal: int = 0
        self.soft, self._request = os.pipe()
        self.hard, self._insist = os.pipe()

    def request(self, signum: int = 0, _frame: object = None) -> None:
        """Ask for an end; a second INT for an end at once. Safe in a signal handler."""
        if self.signal and signum == signal.SIGINT:
            os.write(self._insist, b"!")
        self.signal = self.signal or signum
        if not self.requested:
            self.requested = True
            os.write(self._request, b"!")

    @contextlib.contextmanager
    def on_signals(self) -> Iterator[None]:
        """Take INT, TERM and HUP for the wish to stop, save those ignored so far (nohup)."""
        signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        old = {s: signal.getsignal(s) for s in signals if signal.getsignal(s) != signal.SIG_IGN}
        for signum in old:
            signal.signal(signum, self.request)
        try:
            yield
        finally:
            for signum, handler in old.items():
                signal.signal(signum, handler)


def ncu_options(extra: list[str], quick: bool, batch: bool, bandwidth: bool = True) -> list[str]:
    """Return ncu's options: ours, less those that the user's displace, then the user's.

    ncu refuses an option given twice, and takes a long one cut short (--print-u).
    """
    long = {short: option for option, short in SHORT_OPTIONS.items()}
    given = [long.get(word[:2], word.partition("=")[0]) for word in extra if word[:1] == "-"]

    def is_given(option: str) -> bool:
        return any(len(word) > 2 and option.startswith(word) for word in given)

    ours = dict(NCU_OPTIONS)
    if quick:
        del ours["--set"]
        ours["--metrics"] = ",".join([DURATION_METRIC] + [BANDWIDTH_METRIC] * bandwidth)
    elif is_given("--section") or is_given("--metrics"):
        del ours["--set"]
    if batch:
        del ours["--launch-count"]
        ours.update(NCU_BATCH_OPTIONS)
    options: list[str] = []
    for option, value in ours.items():
        if not is_given(option):
            options += [SHORT_OPTIONS.get(option, option), *filter(None, [value])]
    return options + extra


def find_ncu(options: Options, environment: Mapping[str, str]) -> str:
    """Return ncu's path: from PATH, else where CUDA puts it (cron's PATH is bare)."""
    import glob
    import shutil

    newest = sorted(
        glob.glob("/opt/nvidia/nsight-compute/*/ncu"),
        key=lambda path: [int(part) for part in re.findall("[0-9]+", path)],
        reverse=True,
    )
    home = environment.get("CUDA_HOME")
    places = ["ncu", *([f"{home}/bin/ncu"] if home else []), "/usr/local/cuda/bin/ncu", *newest]
    for place in [options.ncu] if options.ncu else places:
        found = shutil.which(place)
        if found:
            return os.path.abspath(found)
    if options.ncu:
        raise UsageError(f"--ncu: {options.ncu} is not a program")
    if options.dry_run:
        return "ncu"  # to be run elsewhere
    raise UsageError("cannot find ncu: not on PATH, nor where CUDA puts it; name it with --ncu")


def find_python(python: str, stop: Stop) -> str:
    """Return the interpreter behind --python by asking it: ncu does not follow wrapper scripts."""
    if not python:
        return sys.executable
    path = ask("--python", [python, "-c", "import sys; print(sys.executable)"], stop)[-1]
    if not os.path.isabs(path):
        raise UsageError(f"--python: {python} does not know its sys.executable")
    return path


def list_gpus(stop: Stop) -> list[str]:
    """Return the UUIDs of this box's GPUs."""
    command = ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"]
    return [line for line in ask("--gpus all", command, stop) if line.startswith(UUIDS)]


def ask(option: str, command: list[str], stop: Stop) -> list[str]:
    """Return the lines that a command answers; raises UsageError, naming who wants to know."""
    run = run_child(command, {}, ASK_SECONDS, GRACE_SECONDS, stop)
    if run.ended or run.status:
        reason = run.ended or printable(last_line(run.stderr or run.stdout))
        raise UsageError(f"{option}: {command[0]} fails with {run.status}: {reason}")
    return os.fsdecode(run.stdout).strip().split("\n")


class Child:
    """A process in a group of its own, of which nothing survives. Almost always ncu."""

    def __init__(
        self, command: list[str], environment: Mapping[str, str], reports: Reports | None
    ) -> None:
        import selectors
        import subprocess

        self.stdout, self.stderr = bytearray(), bytearray()
        self.status = -signal.SIGKILL
        self._renew = reports.feed if reports else None
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,  # a background ncu that reads a terminal is stopped
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **environment},
            start_new_session=True,
            pass_fds=[reports.writer.fileno()] if reports else [],
        )
        self._selector = selectors.DefaultSelector()
        self._open(self._process.stdout, self.stdout.extend)
        self._open(self._process.stderr, self.stderr.extend)
        if reports:
            reports.writer.close()
            self._open(reports.reader, reports.feed)

    def _open(self, stream: IO[bytes] | None, sink: Callable[[bytes], None]) -> None:
        assert stream
        os.set_blocking(stream.fileno(), False)
        self._selector.register(stream, READABLE, sink)

    def _drain(self, key: selectors.SelectorKey) -> bool:
        """Read once; False when there is nothing more now. Forget a stream that has ended."""
        try:
            data = os.read(key.fd, 1 << 20)
        except BlockingIOError:
            return False
        if data:
            key.data(data)
        else:
            self._selector.unregister(key.fileobj)
        return bool(data)

    def _is_open(self) -> bool:
        """Tell whether its output can still bring something."""
        return any(key.data for key in self._selector.get_map().values())

    def _has_exited(self) -> bool:
        """Tell whether ncu itself is gone; not reaped yet, so that its group's number is ours."""
        status = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return status is not None

    def watch(self, seconds: float, interrupt: int, to_the_end: bool = False) -> str:
        """Gather the output until ncu is gone; else return what came first.

        A daemon that the kernel left holds the output open, so its end is not waited for, unless
        asked for: some ncu are a shell script, which is gone before what it started. Each report
        starts the seconds anew.
        """
        deadline = time.monotonic() + seconds
        pause, nap = POLL_SECONDS, 0.001
        self._selector.register(interrupt, READABLE)
        try:
            while not self._has_exited() or (to_the_end and self._is_open()):
                left = deadline - time.monotonic()
                if left <= 0:
                    return f"no end after {seconds:g} s"
                for key, _ in self._selector.select(min(left, pause)):
                    if key.fd == interrupt:
                        return STOPPED
                    self._drain(key)
                    if key.data == self._renew:
                        deadline = time.monotonic() + seconds
                if len(self.stdout) + len(self.stderr) > OUTPUT_LIMIT:
                    return f"more than {OUTPUT_LIMIT >> 20} MiB of output"
                pause = POLL_SECONDS
                if not self._is_open():  # when its output has ended, so has ncu, but for a moment
                    pause = nap
                    nap = min(2 * nap, 0.05)
            return ""
        finally:
            self._selector.unregister(interrupt)

    def terminate(self, grace: float, interrupt: int) -> None:
        """Ask the whole group to end, and give it a little time: ncu prints its results then."""
        self._renew = None
        self._signal(signal.SIGTERM)
        self.watch(grace, interrupt, to_the_end=True)

    def close(self) -> None:
        """Kill what is left of the group, and take what it had printed."""
        import subprocess

        self._signal(signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.status = self._process.wait(
                10
            )  # a process that hangs in the driver cannot be killed
        for key in list(self._selector.get_map().values()):
            while self._drain(key) and len(self.stdout) + len(self.stderr) <= OUTPUT_LIMIT:
                pass
        self._selector.close()
        for stream in (self._process.stdout, self._process.stderr):
            assert stream
            stream.close()

    def _signal(self, signum: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signum)


def run_child(
    command: list[str],
    environment: Mapping[str, str],
    timeout: float,
    grace: float,
    stop: Stop,
    reports: Reports | None = None,
) -> Run:
    """Run a command to its end.

    `timeout` seconds (0: never) after the start, or after the last report where there are any,
    its group gets TERM, and `grace` seconds later KILL; the same when `stop` asks for it.
    """
    begin = time.monotonic()
    shown = show_command(command, environment)
    try:
        child = Child(command, environment, reports)
    except OSError as error:
        return Run(shown, b"", b"", 0.0, f"{CANNOT_START}: {error.strerror}", 127)
    try:
        ended = child.watch(timeout or FOR_EVER, stop.soft)
        if ended:
            child.terminate(grace, stop.hard)
    finally:
        child.close()
    seconds = time.monotonic() - begin
    kept = None if len(child.stdout) + len(child.stderr) <= OUTPUT_LIMIT else OUTPUT_LIMIT >> 6
    return Run(
        shown,
        bytes(child.stdout[:kept]),
        bytes(child.stderr[:kept]),
        seconds,
        ended,
        child.status,
        bool(reports and reports.started),
    )


def show_command(command: list[str], environment: Mapping[str, str]) -> str:
    """Return a command, with what it adds to the environment, ready to paste into a shell."""
    import shlex

    added = [f"{name}={shlex.quote(value)}" for name, value in environment.items()]
    return " ".join([*added, shlex.join(command)])


# ---------------------------------------------------------------------------------------------
# A batch: many kernels in one process
# ---------------------------------------------------------------------------------------------

DRIVER_OPTION = "--drive-batch"  # hidden: ncu runs this program with it
STDERR = 2  # where the driver reports to when a person pastes its command


REPORT = rb"(started|benchmark|done|error|lost|finished) ([0-9]{1,4}) (.*)"


class Reports:
    """What the driver of a batch reports to its parent, over a pipe that it inherits."""

    def __init__(self) -> None:
        reader, writer = os.pipe()
        self.reader: IO[bytes] = os.fdopen(reader, "rb", buffering=0)
        self.writer: IO[bytes] = os.fdopen(writer, "wb", buffering=0)
        self.started = False
        self.finished = False
        self.in_hand: int | None = None
        self.benchmarks: dict[int, str] = {}  # benchmark lines, empty where none was printed
        self.errors: dict[int, str] = {}
        self.lost = ""  # what the kernel in hand said that took the context with it
        self.done: set[int] = set()
        self._rest = b""

    def __enter__(self) -> Reports:
        return self

    def __exit__(self, *_: object) -> None:
        self.reader.close()
        self.writer.close()

    def feed(self, data: bytes) -> None:
        """Take in what was read from the pipe."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            report = re.fullmatch(REPORT, line)
            if report:  # else a kernel wrote to a descriptor that is none of its business
                text = report[3].decode("unicode_escape", "replace")
                self._take(report[1], int(report[2]), text)

    def _take(self, event: bytes, index: int, text: str) -> None:
        self.started = True
        self.in_hand = index if event in (b"started", b"lost") else None
        if event == b"benchmark":
            self.benchmarks[index] = text
        elif event == b"error":
            self.errors[index] = text
        elif event == b"lost":
            self.lost = text
        elif event == b"done":
            self.done.add(index)
        elif event == b"finished":
            self.finished = True


def drive_batch(arguments: list[str]) -> int:
    """Be the driver of a batch, inside ncu: a descriptor to report to, then the kernel files.

    First every kernel's own benchmark, which also tunes it; then one launch of each with the
    profiler on. Clocks that ncu locks while it profiles so cannot colour a benchmark.
    """
    pipe, paths = int(arguments[0]), arguments[1:]
    os.set_inheritable(pipe, False)  # what the kernels start must not hold it open
    if sys.path and sys.path[0] == os.path.dirname(os.path.realpath(__file__)):
        del sys.path[0]  # this program's folder, perhaps the current one, is none of theirs
    driver = Driver(pipe)
    try:
        for index, path in enumerate(paths):
            driver.benchmark(index, path)
        for index in list(driver.tuned):
            driver.profile(index)
    except ContextLost:
        return 1
    driver.report("finished", 0)
    return 0


class ContextLost(Exception):
    """After an illegal address no CUDA call of this process succeeds any more."""


class Driver:
    """Runs kernel files as if each were the program, and reports on them."""

    def __init__(self, pipe: int) -> None:
        self.pipe = pipe
        self.stdout = capture_stdout()
        self.torch: Any = __import__("torch")
        self.folder = os.getcwd()
        self.builtins = dict(vars(builtins))
        self.tuned: dict[int, types.ModuleType] = {}

    def report(self, event: str, index: int, text: str = "") -> None:
        """Tell the parent: started, benchmark, done, error, lost (the context), finished."""
        line = b"%s %d %s\n" % (event.encode(), index, text.encode("unicode_escape"))
        while line:
            line = line[os.write(self.pipe, line) :]

    def benchmark(self, index: int, path: str) -> None:
        """Run the file's own benchmark; keep its module, but not its tensors."""
        module = types.ModuleType("__main__")
        module.__file__ = path
        if self.attempt(index, module, self.run_file):
            self.tuned[index] = module
            line = find_benchmark_line(take_captured(self.stdout))
            self.report("benchmark", index, line[0].decode() if line else "")
        else:
            module.__dict__.clear()
        self.stdout = capture_stdout()
        self.torch.cuda.empty_cache()

    def profile(self, index: int) -> None:
        """Profile one launch of a kernel that is tuned by now; keep nothing of it."""
        module = self.tuned.pop(index)
        if self.attempt(index, module, functools.partial(self.launch, f"{LABEL}{index}")):
            self.report("done", index)
        module.__dict__.clear()
        self.stdout = capture_stdout()
        self.torch.cuda.empty_cache()

    def attempt(
        self, index: int, module: types.ModuleType, action: Callable[[types.ModuleType], None]
    ) -> bool:
        """Do something to the kernel in hand, which is `__main__` meanwhile; report a failure."""
        self.report("started", index)
        main, sys.modules["__main__"] = sys.modules["__main__"], module
        sys.argv = [str(module.__file__)]
        try:
            action(module)
            return True
        except (Exception, SystemExit) as error:
            import traceback

            leaves = isinstance(error, SystemExit)
            text = f"sys.exit({error})" if leaves else traceback.format_exc()
            event = "lost" if self.is_context_lost() else "error"
            self.report(event, index, text[-ERROR_TEXT_LIMIT:])
            if event == "lost":
                raise ContextLost from None
            return False
        finally:
            sys.modules["__main__"] = main
            vars(builtins).update(self.builtins)
            os.chdir(self.folder)

    def is_context_lost(self) -> bool:
        """Tell whether CUDA is of no more use to this process."""
        try:
            self.torch.cuda.synchronize()
            return False
        except Exception:
            return True

    @staticmethod
    def run_file(module: types.ModuleType) -> None:
        """Execute a kernel file, without the args that its benchmark leaves behind."""
        path = str(module.__file__)
        with open(path, "rb") as stream:
            code = compile(stream.read(), path, "exec", dont_inherit=True)
        exec(code, module.__dict__)
        module.__dict__.pop("args", None)

    def launch(self, label: str, module: types.ModuleType) -> None:
        """Launch the kernel once with the profiler on, under an NVTX label."""
        cuda = self.torch.cuda
        args = module.__dict__["get_args"]()
        devices = [arg.device for arg in args if hasattr(arg, "device")]
        gpus = [device for device in devices if not str(device).startswith("cpu")]
        with cuda.device(gpus[0]) if gpus else contextlib.nullcontext():
            cuda.synchronize()
            cuda.profiler.start()
            cuda.nvtx.range_push(label)
            try:
                module.__dict__["call"](args)
                cuda.synchronize()
            finally:
                cuda.nvtx.range_pop()
                cuda.profiler.stop()


def capture_stdout() -> TextIO:
    """Keep what is printed from now on in memory: ncu's stdout holds ncu's text alone.

    The streams are new ones, whatever a kernel did to those before.
    """
    memory = os.memfd_create("stdout")
    if memory != 1:  # a kernel can have closed that
        os.dup2(memory, 1)
        os.close(memory)
    sys.stdout = open(1, "w", errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", errors="backslashreplace", closefd=False)  # noqa: SIM115
    return sys.stdout


def take_captured(stdout: TextIO) -> bytes:
    """Return what the kernel in hand printed; what a child of it prints later is nobody's."""
    with contextlib.suppress(Exception):  # it can have closed anything
        stdout.flush()
    with contextlib.suppress(OSError):
        return os.pread(1, os.lseek(1, 0, os.SEEK_END), 0)
    return b""


# How a kernel that has had no turn of its own in a batch gets one.
GO_AGAIN, GO_ALONE, GO_PLAINLY = "again", "alone", "plainly"


def judge_batched(
    index: int, source: Source, reports: Reports, results: list[Result], run: Run
) -> bytes | Failure | str:
    """Return the text of one kernel's log from its batch, or why there is none.

    A result is the kernel's when it bears its label and the name of its function.
    """
    error = reports.errors.get(index)
    if error is not None:
        if "out of memory" in error and not source.kernel.alone:
            return GO_ALONE  # others of the batch can be why memory was short
        return Failure("the kernel failed", printable(last_line(encode(error))))
    benchmark = reports.benchmarks.get(index)
    if benchmark == "":
        return Failure("no benchmark line")
    failure = None
    if benchmark and len(results) == 1:
        text = encode(benchmark) + b"\n" + run.stdout[results[0].begin : results[0].end]
        parsed = parse_log(text)
        if not results[0].name.partition(b"/")[2].startswith(source.function.encode()):
            failure = Failure("ncu profiled another kernel", printable(results[0].name))
        elif isinstance(parsed, Log):
            return text
        elif results[0].end < len(run.stdout):  # else ncu can have died while it printed
            failure = parsed
    elif results:
        failure = Failure("the tuned call launched several kernels", str(len(results)))
    if reports.finished and failure:
        return failure
    if reports.finished and not run.ended and not results and is_complete(run.stdout):
        return GO_PLAINLY  # torch 2.6 and later under TORCHINDUCTOR_PROFILE=1
    if not source.kernel.alone:
        return GO_ALONE if index == reports.in_hand or not reports.started else GO_AGAIN
    lost = reports.lost and Failure(
        "the context was lost", printable(last_line(encode(reports.lost)))
    )
    return lost or failure or find_trouble(run) or Failure("ncu ended early")


def is_complete(page: bytes) -> bool:
    """Tell whether ncu has printed a whole result for each launch that it announced."""
    results = find_results(page)
    announced = page.count(b'==PROF== Profiling "')
    return announced <= len(results) and all(
        not isinstance(parse_result(page, result), Failure) for result in results[-1:]
    )


# ---------------------------------------------------------------------------------------------
# Reporting
# ---------------------------------------------------------------------------------------------


class Reporter:
    """Everything that is said to a person, on stderr; safe to call from every worker."""

    def __init__(self) -> None:
        self.quiet = False
        self._lock = threading.RLock()
        self.terminal = sys.stderr is not None and sys.stderr.isatty()
        self._drawn = 0  # width of the status line that stands there
        self._due = 0.0
        self._said: set[str] = set()

    def say(self, text: str) -> None:
        """Print a line, the status line out of its way. A closed stderr stops nothing."""
        with self._lock:
            self.status("")
            self._write(text + "\n")

    def _write(self, text: str) -> None:
        try:
            if sys.stderr:
                sys.stderr.write(text)
                sys.stderr.flush()
        except OSError:  # its reader is gone; or Python tries again when it ends, and exits 120
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())

    def tell(self, text: str) -> None:
        """Print what --quiet leaves out."""
        if not self.quiet:
            self.say(text)

    def warn(self, text: str) -> None:
        self.say(f"warning: {text}")

    def tell_once(self, text: str) -> None:
        """Print the first of many like lines."""
        with self._lock:
            if text not in self._said:
                self._said.add(text)
                self.tell(text)

    def warn_once(self, text: str, detail: str) -> None:
        """Warn of the first of many; the text is the same for all."""
        with self._lock:
            if text not in self._said:
                self._said.add(text)
                self.warn(f"{text} ({detail})")

    def status(self, text: str) -> None:
        """Redraw the status line of a terminal; it has no other use of control characters."""
        with self._lock:
            if self.terminal and not self.quiet and (text or self._drawn):
                with contextlib.suppress(OSError):
                    columns = os.get_terminal_size(sys.stderr.fileno()).columns
                    text = text[: columns - 1] if columns else text
                self._write(f"\r{text.ljust(self._drawn)}" + ("" if text else "\r"))
                self._drawn = len(text)

    def redraw(self, text: Callable[[], str]) -> None:
        """Redraw the status line a few times a second."""
        if self.terminal and time.monotonic() >= self._due:
            self._due = time.monotonic() + 0.1
            self.status(text())


class Progress:
    """How far a run is."""

    def __init__(self, kernels: list[Kernel], reporter: Reporter) -> None:
        self.kernels = kernels
        self.reporter = reporter
        self.cached = self.profiled = self.failed = 0
        self.begin = FOR_EVER  # of profiling, by time.monotonic()

    @property
    def done(self) -> int:
        return self.cached + self.profiled + self.failed

    def status(self) -> str:
        """Return the status line. The rate is that of all workers together."""
        text = (
            f"{self.done}/{len(self.kernels)} done, {self.cached} cached, "
            f"{self.profiled} profiled, {self.failed} failed"
        )
        measured = self.profiled + self.failed
        if measured:
            rate = (time.monotonic() - self.begin) / measured
            left = rate * (len(self.kernels) - self.done)
            text += f", {rate:.1f} s/kernel, ETA {show_time(left)}"
        return text

    def settle(self, kernel: Kernel, seconds: float) -> None:
        """Count a kernel and say what became of it."""
        self.cached += bool(kernel.log and not kernel.profiled)
        self.profiled += kernel.profiled
        self.failed += kernel.failure is not None
        total = str(len(self.kernels))
        done = f"[{self.done:{len(total)}}/{total}]"
        named = printable(encode(f"{kernel.name} {kernel.path}"), limit=10_000)
        line = f"{done} {seconds:.1f}s {named}"
        if kernel.failure:
            self.reporter.say(f"{line} failed: {kernel.failure}")
        elif kernel.profiled and not self.reporter.terminal:
            self.reporter.tell(line)
        self.tick()

    def tick(self) -> None:
        """Redraw the status line, if it is time."""
        self.reporter.redraw(self.status)


def show_time(seconds: float) -> str:
    """Return a span as h:mm:ss."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


def report_warnings(kernels: list[Kernel], reporter: Reporter) -> None:
    """Say once what a reader of the figures must know."""
    logs = [kernel.log for kernel in kernels if kernel.log]
    without = sum(not log.bandwidth for log in logs)
    if without:
        reporter.warn(f"{without} kernels have no bandwidth: their GPU has no DRAM counters")
    chips = Counter(log.compute_capability for log in logs if log.compute_capability)
    if len(chips) > 1:
        counts = ", ".join(f"CC {chip} ({count} kernels)" for chip, count in sorted(chips.items()))
        reporter.warn(f"the logs come from different GPU generations: {counts}")
    misread = sum(kernel.claims for kernel in kernels if kernel.misread_gb)
    if misread:
        reporter.warn(
            f"kernel_args_num_gb of {misread} rows is too large: torch drops the exponent of "
            "small figures (5.6e-06 is read as 5.6)"
        )
    unknown = sum(not kernel.log and not kernel.failure for kernel in kernels)
    if unknown:
        reporter.warn(f"{unknown} of {len(kernels)} kernels have no log")
    lost = sum(kernel.had_figures for kernel in kernels if not kernel.log)
    if lost:
        reporter.warn(f"{lost} rows came with figures and are blank now: no valid log says so")


def summarise(table: Table, progress: Progress, batch: int, seconds: float) -> str:
    """Return the summary."""
    failures = Counter(k.failure.kind for k in progress.kernels if k.failure)
    tuned = sum(bool(kernel.log and kernel.log.tuned) for kernel in progress.kernels)
    first = sum(bool(kernel.log and not kernel.log.tuned) for kernel in progress.kernels)
    missing = len(progress.kernels) - progress.done
    lines = [
        ("rows", len(table.rows), ""),
        (
            "left out",
            table.foreach + len(table.torn),
            f"{table.foreach} foreach, {len(table.torn)} torn",
        ),
        ("kernels", len(progress.kernels), ""),
        ("cached", progress.cached, ""),
        ("profiled", progress.profiled, ""),
        ("failed", progress.failed, ", ".join(f"{n} {kind}" for kind, n in failures.most_common())),
        ("no log", missing, ""),
    ]
    text = [
        f"{name:9}{count:>8}  {note}".rstrip() for name, count, note in lines if count or not note
    ]
    if tuned or batch:
        hint = " (--force profiles them again)" if first else ""
        text.append(f"launch   {tuned:>8}  tuned, {first} first launches{hint}")
    return "\n".join([*text, f"time     {show_time(seconds):>8}"])


# ---------------------------------------------------------------------------------------------
# Profiling
# ---------------------------------------------------------------------------------------------


class Queue:
    """The kernels still to be profiled, and which worker may take which when."""

    def __init__(self, kernels: Iterable[Kernel], size: int, workers: int, stop: Stop) -> None:
        """`size`: the most kernels that a worker takes at a time, fewer when few are left."""
        self._ready = deque(kernels)
        self._aside: deque[Kernel] = deque()
        self._size = size
        self._workers = workers
        self._stop = stop
        self._busy = 0
        self._changed = threading.Condition()
        self.exclusive = False  # what is running has the box to itself

    def take(self) -> list[Kernel]:
        """Return the next kernels, when there are some for this worker; none: it is over."""
        with self._changed:
            while not self._stop.requested:
                kernels = [] if self.exclusive else self._next(self._ready)
                if not kernels and not self._busy and not self._ready:
                    kernels = self._next(self._aside)
                    self.exclusive = bool(kernels)
                    if not kernels:
                        return []
                if kernels:
                    self._busy += 1
                    return kernels
                self._changed.wait(HELD_PAUSE)
            return []

    def _next(self, queue: deque[Kernel]) -> list[Kernel]:
        """Take kernels that are due off a queue: one that goes alone, or a batch of others."""
        kernels: list[Kernel] = []
        passed: list[Kernel] = []
        now = time.monotonic()
        size = min(self._size, -(-len(queue) // self._workers))
        while queue and len(kernels) < size:
            kernel = queue.popleft()
            single = kernel.alone or kernel.plain
            if kernel.due > now or (single and kernels):
                passed.append(kernel)
                continue
            kernels.append(kernel)
            if single:
                break
        queue.extendleft(reversed(passed))
        return kernels

    def finish(self) -> None:
        """Say that what was taken is done with, or put back."""
        with self._changed:
            self._busy -= 1
            self.exclusive = False
            self._changed.notify_all()

    def put_back(self, kernel: Kernel, pause: float = 0.0, last: bool = False) -> None:
        """Have a kernel tried again, after `pause` seconds, before or behind the others."""
        with self._changed:
            kernel.due = time.monotonic() + pause
            if last:
                self._ready.append(kernel)
            else:
                self._ready.appendleft(kernel)

    def put_aside(self, kernel: Kernel) -> None:
        """Have a kernel run when no other worker does."""
        with self._changed:
            self._aside.append(kernel)


class Profiler:
    """Profiles kernels that have no log, each GPU by a worker of its own."""

    def __init__(self, options: Options, queue: Queue, stop: Stop, progress: Progress) -> None:
        self.options = options
        self.queue = queue
        self.stop = stop
        self.progress = progress
        self.fatal: Failure | None = None  # what ended the run early
        self.bandwidth = True  # ncu knows the metric here, as far as we know
        self._lock = threading.RLock()
        self._on_trial: list[Kernel] = []
        self._trial_failures = 0

    def profile_all(self) -> None:
        """Profile all, until it is done or stopped."""
        self.progress.begin = time.monotonic()
        workers = [threading.Thread(target=self.work, args=(gpu,)) for gpu in self.options.workers]
        for worker in workers:
            worker.start()
        for worker in workers:
            while worker.is_alive():
                worker.join(0.2)  # signals are handled in between
                self.progress.tick()

    def work(self, gpu: str | None) -> None:
        """Be the worker of one GPU."""
        while True:
            kernels = self.queue.take()
            if not kernels:
                return
            try:
                self.profile(kernels, None if self.queue.exclusive else gpu)
            except Exception as error:
                self.end(Failure("internal error", repr(error), "please report it"))
            finally:
                self.queue.finish()

    def profile(self, kernels: list[Kernel], gpu: str | None) -> None:
        """Profile some kernels, each locked from the look-up that misses to the stored log."""
        with contextlib.ExitStack() as locks:
            sources = [s for s in (self.prepare(k, locks, gpu) for k in kernels) if s]
            if sources and not self.stop.requested:
                if self.options.batch and not sources[0].kernel.plain:
                    self.profile_batch(sources, gpu)
                else:
                    self.profile_plain(sources[0], gpu)

    def prepare(
        self, kernel: Kernel, locks: contextlib.ExitStack, gpu: str | None
    ) -> Source | None:
        """Lock a kernel and read its source; None when it is settled, or has to wait."""
        if not locks.enter_context(kernel_lock(kernel.path)):
            self.progress.reporter.tell_once("another run profiles some of these kernels; waiting")
            self.queue.put_back(kernel, HELD_PAUSE, last=True)
            return None
        if not self.options.force:
            look_up(kernel)
            if kernel.log:
                self.settle(kernel, kernel.log)
                return None
        source = inspect_source(kernel)
        if isinstance(source, Failure):
            self.settle(kernel, source)
            return None
        if gpu is not None and source.other_device:
            self.queue.put_aside(kernel)
            return None
        if self.options.batch and not source.batchable and not kernel.plain:
            kernel.plain = True
            self.queue.put_back(kernel)
            return None
        self.put_on_trial(kernel)
        return source

    def put_on_trial(self, kernel: Kernel) -> None:
        """Count the first kernels that are started and never failed before."""
        with self._lock:
            fresh = not kernel.failed_before and kernel not in self._on_trial
            if fresh and len(self._on_trial) < TRIAL_KERNELS:
                self._on_trial.append(kernel)

    def run(self, sources: list[Source], gpu: str | None, reports: Reports | None = None) -> Run:
        """Run ncu on one kernel file, or on the driver of a batch of them."""
        return run_child(
            self.command(sources, reports.writer.fileno() if reports else None),
            environment_for(gpu),
            self.options.timeout,
            BATCH_GRACE_SECONDS if reports else GRACE_SECONDS,
            self.stop,
            reports,
        )

    def command(self, sources: list[Source], reports: int | None) -> list[str]:
        """Return the command that measures these kernels, in a batch if it reports somewhere."""
        return ncu_command(self.options, sources, reports, self.bandwidth)

    def profile_plain(self, source: Source, gpu: str | None) -> None:
        """Profile the first launch of one kernel, in a process of its own."""
        run = self.run([source], gpu)
        text = compose_log(source, "first", run.command, run.stderr[-STDERR_LIMIT:], run.stdout)
        parsed = parse_log(text)
        if isinstance(parsed, Log) and not run.ended:
            self.store(source, text, parsed, run.seconds)
        else:
            failure = find_trouble(run) or parsed
            assert isinstance(failure, Failure)
            self.settle_rest(run, "first", [(source, failure, "")])

    def profile_batch(self, sources: list[Source], gpu: str | None) -> None:
        """Profile the tuned launch of many kernels, in one process."""
        with Reports() as reports:
            run = self.run(sources, gpu, reports)
        results: dict[bytes, list[Result]] = {}
        for result in find_results(run.stdout):
            results.setdefault(result.name.partition(b"/")[0], []).append(result)
        rest: list[tuple[Source, Failure | str, str]] = []
        environment = environment_for(gpu)
        for index, source in enumerate(sources):
            mine = results.get(b"%s%d" % (LABEL.encode(), index), [])
            outcome: bytes | Log | Failure | str
            outcome = judge_batched(index, source, reports, mine, run)
            if isinstance(outcome, bytes):
                shown = show_command(self.command([source], STDERR), environment)
                text = compose_log(source, "tuned", shown, b"", outcome)
                outcome = parse_log(text)
                if isinstance(outcome, Log):
                    self.store(source, text, outcome, run.seconds / len(sources))
                    continue
            rest.append((source, outcome, reports.errors.get(index) or reports.lost))
        self.settle_rest(run, "tuned", rest)

    def settle_rest(
        self, run: Run, launch: str, rest: list[tuple[Source, Failure | str, str]]
    ) -> None:
        """Settle or put back what a run brought no log of, with what the driver said of each.

        What we stopped is left as it is.
        """
        if not rest or run.ended == STOPPED:
            return
        passing = re.search(PASSING_TEXT, run.said)
        fatal = None if passing else find_fatal(run)
        refused = self.asks_in_vain(run.command) and re.search(METRIC_REFUSED, run.said)
        if refused:
            self.bandwidth = False
        elif fatal:
            self.end(fatal)
            return
        for source, outcome, words in rest:
            kernel = source.kernel
            text = b""
            if passing or isinstance(outcome, Failure):
                text = run.stdout + encode(words)
                text = compose_log(source, launch, run.command, run.stderr, text)
            if refused:
                self.queue.put_back(kernel)
            elif passing and kernel.pauses < len(PASSING_PAUSES):
                self.queue.put_back(kernel, PASSING_PAUSES[kernel.pauses])
                kernel.pauses += 1
            elif passing:
                failure = Failure("a driver resource was unavailable", printable(passing[0]))
                self.settle(kernel, failure, run.seconds, text)
            elif isinstance(outcome, Failure):
                self.settle(kernel, outcome, run.seconds / len(rest), text)
            else:
                kernel.batches += 1
                kernel.alone = outcome == GO_ALONE or kernel.batches >= BATCHES_IN_COMPANY
                kernel.plain = outcome == GO_PLAINLY
                self.queue.put_back(kernel)

    def asks_in_vain(self, command: str) -> bool:
        """Tell whether we, not the user, put the bandwidth metric into a command."""
        without = ncu_options(self.options.ncu_args, self.options.quick, False, bandwidth=False)
        return BANDWIDTH_METRIC in command and BANDWIDTH_METRIC not in " ".join(without)

    def store(self, source: Source, text: bytes, log: Log, seconds: float) -> None:
        """Put a valid log beside its kernel; if that cannot be, the figures are still used."""
        kernel = source.kernel
        again = read_if_there(kernel.path)
        if again is not None and hash_source(again) != source.sha256:
            self.settle(kernel, Failure("the kernel file changed meanwhile"), seconds, text)
            return
        if self.write(kernel.log_path, text):
            with contextlib.suppress(OSError):
                os.unlink(kernel.error_path)
        self.settle(kernel, log, seconds)

    def write(self, path: str, text: bytes) -> bool:
        """Write a file beside a kernel; False where that cannot be."""
        try:
            write_whole(path, lambda stream: stream.write(text))
            return True
        except OSError as error:
            self.progress.reporter.warn_once(
                "what ncu says cannot be stored", f"{path}: {error.strerror}"
            )
            return False

    def settle(
        self, kernel: Kernel, outcome: Log | Failure, seconds: float = 0.0, text: bytes = b""
    ) -> None:
        """Take a kernel for done: profiled or failed in so many seconds, or found in the cache."""
        if isinstance(outcome, Failure) and text:
            self.write(kernel.error_path, b"# failed: %s\n" % encode(str(outcome)) + text)
        with self._lock:
            if isinstance(outcome, Log):
                kernel.log, kernel.profiled = outcome, bool(seconds)
                self._trial_failures -= TRIAL_KERNELS * (kernel in self._on_trial)
            else:
                kernel.failure = outcome
                self._trial_failures += kernel in self._on_trial
            self.progress.settle(kernel, seconds)
        if self._trial_failures == TRIAL_KERNELS:
            kind = f"the first {TRIAL_KERNELS} kernels all failed, the last of them"
            self.end(Failure(kind, str(outcome), SET_UP_REMEDY))

    def end(self, failure: Failure) -> None:
        """End the run for a failure that every kernel would share."""
        self.fatal = self.fatal or failure
        self.stop.request()


SET_UP_REMEDY = (
    "this looks like the set-up: does --python name an interpreter that has torch, do --ncu-args "
    "leave ncu its metrics? Run one of the kernels by hand"
)


def ncu_command(
    options: Options,
    sources: list[Source],
    reports: int | None,
    bandwidth: bool = True,
) -> list[str]:
    """Return the command that measures one kernel, or a batch that reports to a descriptor."""
    ours = ncu_options(options.ncu_args, options.quick, reports is not None, bandwidth)
    driver = [] if reports is None else [os.path.abspath(__file__), DRIVER_OPTION, str(reports)]
    paths = [source.kernel.path for source in sources]
    return [options.ncu, *ours, options.python, *driver, *paths]


def environment_for(gpu: str | None) -> dict[str, str]:
    """Return what ncu's environment adds to ours: digits without separators, a worker's GPU."""
    own = {} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu}
    return {"LC_ALL": "C.UTF-8", **own}


def find_logs(progress: Progress, force: bool, stop: Stop) -> None:
    """Look every kernel up in the cache. --force forgets the logs, not what the sources say."""
    lock = threading.Lock()

    def found(count: int) -> None:
        with lock:
            progress.cached += count
        progress.tick()

    look_up_all(progress.kernels, stop, found)
    if force:
        progress.cached = 0
        for kernel in progress.kernels:
            kernel.log = None


def find_missing(options: Options, progress: Progress, stop: Stop) -> list[Kernel]:
    """Look every kernel up, and return those to profile; what that takes is found too."""
    options.workers = [None]
    if options.gpus is not None and not options.cached_only:
        options.workers = [*choose_gpus(options.gpus, os.environ, stop)]
    find_logs(progress, options.force, stop)
    if options.cached_only or stop.requested:
        return []
    missing = [kernel for kernel in progress.kernels if not kernel.log]
    if len(missing) >= TRIAL_KERNELS and missing == progress.kernels:
        if not any(os.path.exists(kernel.path) for kernel in missing):
            raise UsageError(
                f"none of the {len(missing)} kernel files exists (the first is {missing[0].path}); "
                "was the cache moved? Its directory can be the input: -i DIRECTORY"
            )
    if any(isinstance(inspect_source(kernel), Source) for kernel in missing):
        options.ncu = find_ncu(options, os.environ)
        options.python = find_python(options.python, stop)
    return missing


def plan_commands(sources: list[Source], options: Options) -> Iterator[str]:
    """Yield the commands that would run, dealt out among the GPUs."""
    groups: dict[tuple[bool, bool], list[Source]] = {}
    for source in sources:
        batched = bool(options.batch) and source.batchable
        groups.setdefault((batched, source.other_device), []).append(source)
    gpus = itertools.cycle(options.workers)
    for (batched, other_device), group in groups.items():
        size = options.batch if batched else 1
        for at in range(0, len(group), size):
            gpu = next(gpus)
            reports = STDERR if batched else None
            command = ncu_command(options, group[at : at + size], reports)
            yield show_command(command, environment_for(None if other_device else gpu))


def print_commands(missing: list[Kernel], options: Options, progress: Progress) -> int:
    """Print the commands to stdout, however odd their paths; return the status."""
    inspected = [inspect_source(kernel) for kernel in missing]
    sources = [source for source in inspected if isinstance(source, Source)]
    commands = [os.fsencode(command) + b"\n" for command in plan_commands(sources, options)]
    write_output("-", open_descriptor("-", ""), lambda stream: stream.writelines(commands))
    cannot = Counter(failure.kind for failure in inspected if isinstance(failure, Failure))
    reasons = "".join(f"; {count} cannot: {kind}" for kind, count in cannot.items())
    progress.reporter.tell(
        f"{len(commands)} commands would run for {len(sources)} kernels; "
        f"{progress.cached} are cached{reasons}"
    )
    return 0


def allow_descriptors(batch: int, workers: int) -> int:
    """Return the batch that open files allow: every kernel of one holds its lock by a file."""
    import resource

    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = workers * batch + SPARE_DESCRIPTORS
    if limit != resource.RLIM_INFINITY and limit < wanted:
        limit = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, most))
        batch = min(batch, (limit - SPARE_DESCRIPTORS) // workers)
    return max(batch, 1)


def profile_all(missing: list[Kernel], options: Options, stop: Stop, progress: Progress) -> None:
    """Profile what has no log, what failed before last.

    Raises UsageError for a failure that every kernel would share.
    """
    if not missing:
        return
    for kernel in missing:
        kernel.failed_before = os.path.exists(kernel.error_path)
    missing.sort(key=lambda kernel: kernel.failed_before)
    workers = len(options.workers)
    size = allow_descriptors(options.batch, workers) if options.batch else 1
    queue = Queue(missing, size, workers, stop)
    profiler = Profiler(options, queue, stop, progress)
    profiler.profile_all()
    fatal = profiler.fatal
    if fatal:
        raise UsageError(f"{fatal}\n  remedy: {fatal.remedy}\n  the output is untouched")


# ---------------------------------------------------------------------------------------------
# The command line
# ---------------------------------------------------------------------------------------------


class Options(argparse.Namespace):
    """What the command line says, and what it comes to."""

    input: str
    output: str
    model_name: str
    table_only: bool
    quiet: bool
    force: bool
    cached_only: bool
    dry_run: bool
    quick: bool
    batch: int
    gpus: str | None
    shard: tuple[int, int] | None
    ncu: str
    ncu_args: list[str]
    python: str
    timeout: float
    workers: list[str | None]  # CUDA_VISIBLE_DEVICES of each; None: as inherited


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        dash = "expected one argument" in message
        hint = "; write --option=VALUE where the value begins with a dash" if dash else ""
        raise UsageError(f"{message}{hint} (see --help)")


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Has a width of its own; to find the terminal's, argparse imports much, --help or not."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=100)


def check_options(options: Options) -> None:
    """Raise UsageError for options that make no sense together."""
    for one, other in (("table_only", "dry_run"), ("force", "cached_only")):
        if getattr(options, one) and getattr(options, other):
            pair = f"--{one} and --{other}".replace("_", "-")
            raise UsageError(f"{pair} exclude each other")


def parse_shard(text: str) -> tuple[int, int]:
    """Return I and N of "I/N"."""
    match = re.fullmatch("([0-9]+)/([0-9]+)", text)
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not I/N with I from 1 to N: shards are 1-based, as in --array=1-8 "
            'with --shard "$SLURM_ARRAY_TASK_ID/8"'
        )
    return int(match[1]), int(match[2])


def parse_batch(text: str) -> int:
    """Return a batch's size; all its paths must fit on one command line."""
    if not re.fullmatch("[0-9]+", text) or not 1 <= int(text) <= BATCH_LIMIT:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to {BATCH_LIMIT}")
    return int(text)


def split_arguments(text: str) -> list[str]:
    """Return words as a shell splits them."""
    import shlex

    try:
        return shlex.split(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None


def parse_timeout(text: str) -> float:
    """Return seconds."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < FOR_EVER:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return seconds


def make_parser() -> Parser:
    """Return the parser, whose --help is the manual."""
    # Looking for translations of its few words on disk takes argparse longer than all the rest
    argparse._ = str  # type: ignore[attr-defined]
    parser = Parser(
        prog="parse_kernel_metadata_csv.py",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=HelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--version", action="version", version=f"%(prog)s {__version__}")

    add = parser.add_argument_group("input and output").add_argument
    add(
        "-i",
        "--input-csv",
        "--input",
        dest="input",
        metavar="TABLE",
        required=True,
        help="torch's kernel_metadata table, - for stdin; or an Inductor cache directory, "
        "whose kernel files are read instead (torch 2.6 and later cannot write the table)",
    )
    add(
        "-o",
        "--output-csv",
        "--output",
        dest="output",
        metavar="FILE",
        required=True,
        help="the table with the four columns added, - for stdout; replaced whole, at the end",
    )
    add(
        "--model-name",
        metavar="NAME",
        default="",
        help="the model_name of every row that is made from a directory (default: blank)",
    )
    add(
        "--table-only",
        action="store_true",
        help="write the table that a directory makes, without figures; profile nothing",
    )
    add("-q", "--quiet", action="store_true", help="say only what went wrong")

    add = parser.add_argument_group("what is profiled").add_argument
    add("--force", action="store_true", help="profile again what has a log")
    add("--cached-only", action="store_true", help="fill in what has a log; never start ncu")
    add(
        "--dry-run",
        action="store_true",
        help="print the ncu commands that would run, ready to paste; run none, write nothing",
    )
    add(
        "--quick",
        action="store_true",
        help="collect the two metrics that the columns need, in one pass, not --set full",
    )
    add(
        "--batch",
        type=parse_batch,
        default=0,
        metavar="N",
        help="profile N kernels in each process, and of each the tuned launch, not the first",
    )

    add = parser.add_argument_group("where it runs").add_argument
    add(
        "--gpus",
        metavar="LIST",
        help="one worker for each GPU: 0,1,2 (indices into CUDA_VISIBLE_DEVICES where that is "
        "set), UUIDs, or all (default: one worker, environment untouched)",
    )
    add(
        "--shard",
        type=parse_shard,
        metavar="I/N",
        help="do only the I-th of N parts, I from 1; merge with --cached-only and no --shard",
    )

    add = parser.add_argument_group("how ncu is run").add_argument
    add(
        "--ncu",
        metavar="PATH",
        default="",
        help="Nsight Compute's command line (default: ncu on PATH, in $CUDA_HOME/bin, "
        "/usr/local/cuda/bin, or the newest /opt/nvidia/nsight-compute/*)",
    )
    add(
        "--ncu-args",
        type=split_arguments,
        metavar="ARGS",
        default=[],
        help="more options for ncu, split as a shell would; one that is also ours displaces "
        "ours, and --set, --section or --metrics displaces --set full. "
        "Example: --ncu-args=--clock-control=none",
    )
    add(
        "--python",
        metavar="PATH",
        default="",
        help="the interpreter that runs the kernels: one with torch (default: the one that runs "
        "this)",
    )
    add(
        "--timeout",
        type=parse_timeout,
        default=600.0,
        metavar="SECONDS",
        help="end a kernel that takes longer, 0: never (default: 600)",
    )
    return parser


def load_table(options: Options, reporter: Reporter) -> Table:
    """Return the input's rows, and say which were left out."""
    if os.path.isdir(options.input):
        return read_cache(options.input, options.model_name, reporter)
    folder = "" if options.input == "-" else os.path.dirname(options.input)
    with open_table(options.input) as stream:
        if options.table_only:
            raise UsageError("--table-only makes a table from a directory: name one with -i")
        try:
            table = read_table(stream, folder)
        except OSError as error:
            raise UsageError(f"cannot read {options.input}: {error.strerror}") from None
    torn = [f"line {number} is torn or names no kernel file; left out" for number in table.torn]
    warn_of_first(torn, reporter)
    if table.torn and not table.rows:
        raise UsageError(f"{options.input} has no usable row")
    return table


def augment(options: Options, reporter: Reporter) -> int:
    """Read the table, look up or measure every kernel, write the table; return the status."""
    begin = time.monotonic()
    table = load_table(options, reporter)
    fill = functools.partial(write_table, table=table, figures=not options.table_only)
    progress = Progress(keep_shard(table, options.shard), reporter)
    if "SLURM_ARRAY_TASK_ID" in os.environ and not options.shard:
        reporter.tell('hint: in a job array, --shard "$SLURM_ARRAY_TASK_ID/N" does one part of N')
    place: str | int | None = open_descriptor(options.output, options.input)
    stop = Stop()
    with stop.on_signals():
        if place is None and not options.dry_run:
            place = find_destination(options.output, options.input)
        if not options.table_only:
            try:
                missing = find_missing(options, progress, stop)
            except UsageError:
                if not stop.signal:  # else what was asked could not answer any more
                    raise
            if options.dry_run and not stop.requested:
                return print_commands(missing, options, progress)
            if not stop.requested:
                profile_all(missing, options, stop, progress)
        if stop.requested:
            again = "the same command without --force" if options.force else "the same command"
            reporter.say(
                f"stopped by {signal.Signals(stop.signal).name}: {progress.done} of "
                f"{len(progress.kernels)} kernels are done; {again} goes on from there"
            )
            return 128 + stop.signal
        if isinstance(place, str):
            write_output(options.output, place, fill)
    if not isinstance(place, str):  # its reader can keep us waiting: signals end that as ever
        write_output(options.output, place, fill)
    if options.table_only:
        reporter.tell(f"{len(table.rows)} rows; left out: {table.foreach} foreach")
        return 0
    report_warnings(progress.kernels, reporter)
    reporter.tell(summarise(table, progress, options.batch, time.monotonic() - begin))
    return int(bool(table.torn) or any(not kernel.log for kernel in progress.kernels))


def make_streams_usable() -> None:
    """Undo what a parent can have done to the standard streams and to waiting for children."""
    for descriptor in range(3):
        try:
            # Half of what is written to a stream that does not block can be lost
            os.set_blocking(descriptor, True)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # or a file of ours takes the place of stderr
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def main(argv: list[str] | None = None) -> int:
    """Run the program, and return its exit status."""
    arguments = sys.argv[1:] if argv is None else argv
    if arguments[:1] == [DRIVER_OPTION]:
        return drive_batch(arguments[1:])
    make_streams_usable()
    gc.set_threshold(100_000)  # a large table is many small objects, none of them garbage
    reporter = Reporter()
    try:
        options = make_parser().parse_args(arguments, Options())
        reporter.quiet = options.quiet
        check_options(options)
        return augment(options, reporter)
    except (UsageError, OSError) as error:  # OSError: the current directory is gone, say
        reporter.say(f"error: {error}")
        return 2
    except KeyboardInterrupt:  # before anything was started, or while a pipe takes the output
        reporter.say("stopped")
        return 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main())
