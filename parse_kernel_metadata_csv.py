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

import os
import signal
import sys


def end_early(*_: object) -> None:
    """End at an INT while there is nothing to undo: before the first kernel, or at a pipe."""
    try:
        os.write(2, b"stopped\n")
    except OSError:
        pass
    os._exit(128 + signal.SIGINT)


def take_interrupts() -> None:
    """Have an INT end the program in one line, unless it is ignored (a shell's background)."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, end_early)


if __name__ == "__main__":
    take_interrupts()  # the imports below take longer than many a run

import argparse
import builtins
import contextlib
import csv
import dataclasses
import enum
import errno
import functools
import gc
import io
import itertools
import re
import stat
import threading
import time
import types
from argparse import Namespace
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter, mul

# Modules that only profiling needs (subprocess, hashlib and their like) are imported where they
# are used, and typing by type checkers alone: filling a table from the cache starts faster.
TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess
    from typing import Any, BinaryIO, Callable, NoReturn, TextIO

__version__ = "1.0.0"

FOR_EVER = float("inf")


# --- Values ---------------------------------------------------------------------------------------


class UsageError(Exception):
    """A mistake of the user's, or of the environment: one line on stderr, exit status 2."""


@dataclass(eq=False)
class LogLine:
    """One row: torch's sixteen cells as text, and the four figures that it came with.

    Cells are exactly as read; empty where the table has no such column. The table is written with
    the figures of the kernel's log, whatever the row came with.
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
    latency_us_under_profiling: str = ""
    ncu_duration_us: str = ""
    ncu_mem_bw_gbps: str = ""
    ncu_mem_accessed_gb: str = ""


# The columns of torch's kernel_metadata table (torch 2.3) in its order, and ours.
COLUMNS = tuple(LogLine.__annotations__)
TABLE_COLUMNS, FIGURE_COLUMNS = COLUMNS[:16], COLUMNS[16:]


@dataclass(eq=False, repr=False)
class Log:
    """What a valid log says."""

    __slots__ = ("bandwidth", "compute_capability", "figures", "tuned")

    figures: str  # the four cells and those of --metric, as they are written
    bandwidth: bool  # False: the GPU has no DRAM counters
    compute_capability: str  # "9.0"; empty where ncu (2022 and older) does not print it
    tuned: bool  # the tuned launch was profiled, not the first one


@dataclass(eq=False, repr=False)
class Failure:
    """Why there is no log of a kernel."""

    kind: str  # few words, the same for like failures: what the summary counts
    detail: str = ""
    remedy: str = ""  # set when every kernel would fail this way
    words: str = ""  # all that the kernel said of it, where ncu's text does not hold that

    def __str__(self) -> str:
        return f"{self.kind}: {self.detail}" if self.detail else self.kind


class Kernel:
    """One kernel file, and what became of it."""

    log: Log | None = None
    failure: Failure | None = None
    profiled = False  # by this run
    # What the table says of it
    claims = 0  # rows whose kernel_args_num_gb is suspiciously large
    claimed_gb = ""  # what the first of them says
    misread_gb = False  # torch misread that figure's exponent
    had_figures = 0  # rows that came with figures

    def __init__(self, name: str, path: str) -> None:
        self.name = name
        self.path = path  # absolute, of the .py

    @property
    def log_path(self) -> str:
        return self.path[:-3] + ".ncu"

    @property
    def error_path(self) -> str:
        return self.log_path + ".err"

    @property
    def state(self) -> str:
        """What the summary counts: cached, profiled, failed, or no log."""
        if self.log:
            return "profiled" if self.profiled else "cached"
        return "failed" if self.failure else "no log"


# --- What is said to a person ---------------------------------------------------------------------


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


def show_time(seconds: float) -> str:
    """Return a span as h:mm:ss."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


class Reporter:
    """Everything that is said to a person, on stderr; safe to call from every worker."""

    def __init__(self) -> None:
        self.quiet = False
        self.terminal = sys.stderr is not None and sys.stderr.isatty()
        self.kernels: list[Kernel] = []  # whose progress is told
        self.begin = FOR_EVER  # of profiling, by time.monotonic()
        self._lock = threading.RLock()
        self._drawn = 0  # width of the status line that stands there
        self._due = 0.0

    def say(self, text: str) -> None:
        """Print a line, the status line out of its way."""
        self._write("", text + "\n")

    def tell(self, text: str) -> None:
        """Print what --quiet leaves out."""
        if not self.quiet:
            self.say(text)

    def warn(self, *texts: str) -> None:
        """Print warnings; of many the first ten, and how many more there are."""
        more = [f"and {len(texts) - 10} more like this"] if len(texts) > 10 else []
        for text in [*texts[:10], *more]:
            self.say(f"warning: {text}")

    def count(self) -> Counter[str]:
        """Return how many kernels are in each state."""
        return Counter(kernel.state for kernel in self.kernels)

    def progress(self) -> str:
        """Return the status line of a run. The rate is that of all workers together."""
        counts = self.count()
        left = counts["no log"]
        text = f"{len(self.kernels) - left}/{len(self.kernels)} done"
        text += "".join(f", {counts[state]} {state}" for state in ("cached", "profiled", "failed"))
        measured = counts["profiled"] + counts["failed"]
        if measured:
            rate = (time.monotonic() - self.begin) / measured
            text += f", {rate:.1f} s/kernel, ETA {show_time(rate * left)}"
        return text

    def done(self) -> int:
        """Return how many kernels are done with."""
        return sum(1 for kernel in self.kernels if kernel.log or kernel.failure)

    def report(self, kernel: Kernel, seconds: float) -> None:
        """Say what became of a kernel."""
        if kernel.failure or (kernel.profiled and not self.terminal):
            total = str(len(self.kernels))
            named = printable(encode(f"{kernel.name} {kernel.path}"), limit=10_000)
            line = f"[{self.done():{len(total)}}/{total}] {seconds:.1f}s {named}"
            if kernel.failure:
                self.say(f"{line} failed: {kernel.failure}")
            else:
                self.tell(line)
        self.tick()

    def tick(self, status: Callable[[], str] | None = None) -> None:
        """Redraw the status line of a terminal, a few times a second."""
        if self.terminal and not self.quiet and time.monotonic() >= self._due:
            self._due = time.monotonic() + 0.1
            self._write((status or self.progress)())

    def _write(self, status: str, text: str = "") -> None:
        """Draw the status line, or take it away for a text; nobody has to read it.

        No other control characters are used.
        """
        with self._lock:
            if status or self._drawn:
                with contextlib.suppress(OSError):
                    columns = os.get_terminal_size(sys.stderr.fileno()).columns
                    status = status[: columns - 1] if columns else status
                text = f"\r{status.ljust(self._drawn)}" + ("" if status else "\r") + text
                self._drawn = len(status)
            try:
                if sys.stderr:
                    sys.stderr.write(text)
                    sys.stderr.flush()
            except OSError:  # or Python tries again when it ends, and exits 120
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


# --- Files that are read at once, and written whole or not at all ---------------------------------

OUTPUT_LIMIT = 64 << 20  # bytes of one run's output; a kernel that prints without end is stopped
READ_SIZE = 1 << 16  # most logs and kernels come at once


def read_bytes(path: str) -> bytes:
    """Return a file's bytes; raises OSError also when it is absurdly large."""
    # A FIFO of that name must not stop us: without O_NONBLOCK its opening would wait for a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        data = os.read(descriptor, READ_SIZE)
        if len(data) == READ_SIZE:
            data += os.read(descriptor, 2 * OUTPUT_LIMIT)
        if len(data) > 2 * OUTPUT_LIMIT:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        return data
    finally:
        os.close(descriptor)


def read_if_there(path: str) -> bytes | None:
    """Return a file's bytes, None where it cannot be read."""
    try:
        return read_bytes(path)
    except OSError:
        return None


def temporary_beside(path: str) -> str:
    """Return a name for a file that becomes `path`; nothing takes it for a log or a kernel."""
    name = f".parse_kernel_metadata_csv-{os.urandom(8).hex()}.tmp"
    return os.path.join(os.path.dirname(path), name)


def write_whole(path: str, fill: Callable[[BinaryIO], object], keep_mode: bool = False) -> None:
    """Replace a file by what `fill` writes, or leave everything as it was and raise OSError.

    The new file has the permissions that umask gives, or those of the old one. It is not synced:
    what a power failure tears is not a valid log.
    """
    temporary = temporary_beside(path)
    try:
        with open(temporary, "xb") as stream:
            fill(stream)
        if keep_mode and os.path.exists(path):
            old = os.stat(path)
            with contextlib.suppress(PermissionError):
                os.chown(temporary, old.st_uid, old.st_gid)
            os.chmod(temporary, old.st_mode & 0o777)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


STDOUT = ("-", "/dev/stdout")
# Names of open files: replaced by name, the file would lose what a shell's >> has it keep.
OPEN_FILES = ("/dev/fd/", "/dev/stderr", "/proc/")


def find_target(path: str, source: str) -> str | None:
    """Return the regular file that the output replaces; None when it is written directly.

    Raises UsageError when it cannot be written, so that this is known before the first kernel.
    """
    path = path or os.curdir
    try:
        if path in STDOUT and sys.stdout is None:
            raise UsageError("cannot write to stdout: it is closed")
        try:
            status = os.fstat(1) if path in STDOUT else os.stat(path)
        except FileNotFoundError:
            os.stat(os.path.dirname(path) or os.curdir)  # as it is spelled: no such/../file
        else:
            if stat.S_ISDIR(status.st_mode):
                raise UsageError(f"the output {path} is a folder")
            with contextlib.suppress(OSError):  # the input can be gone
                given = os.fstat(0) if source == "-" else os.stat(source)
                if stat.S_ISREG(status.st_mode) and os.path.samestat(given, status):
                    raise UsageError(f"the output {path} is the input; give it another name")
            if path in STDOUT:
                os.write(1, b"")  # fails when it is open for reading only
                return None
            if not os.access(path, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            if not stat.S_ISREG(status.st_mode) or path.startswith(OPEN_FILES):
                return None
            os.close(os.open(path, os.O_WRONLY | os.O_CLOEXEC))  # its owner can have said no
        target = os.path.realpath(path)
        probe = temporary_beside(target)
        descriptor = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC)
        os.unlink(probe)
        try:
            os.posix_fallocate(descriptor, 0, READ_SIZE)  # a disk can be full
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):  # else it has no such call
                raise
        finally:
            os.close(descriptor)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None
    return target


def write_output(path: str, target: str | None, fill: Callable[[BinaryIO], object]) -> None:
    """Write the output: a file that is replaced, stdout, or what can only be opened."""
    try:
        if target is not None:
            write_whole(target, fill, keep_mode=True)
        else:
            with open(1 if path in STDOUT else path, "ab", closefd=path not in STDOUT) as stream:
                fill(stream)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None


# --- ncu's text -----------------------------------------------------------------------------------

# The power of ten that takes a unit to its base unit, and that. ncu prints base units when asked
# (--print-units base), else what fits; its factors are of 1000. Any other unit is as it is.
SECONDS = {b"n": 0, b"u": 3, b"m": 6, b"": 9}
PREFIXES = {b"": 0, b"K": 3, b"M": 6, b"G": 9, b"T": 12, b"P": 15}
UNITS = {
    **{prefix + b"s": (power, b"ns") for prefix, power in SECONDS.items()},
    **{b"cycle/" + prefix + b"s": (9 - power, b"hz") for prefix, power in SECONDS.items()},
    **{prefix + b"hz": (power, b"hz") for prefix, power in PREFIXES.items()},
    **{
        prefix + b"byte" + per: (power, b"byte" + per)
        for prefix, power in PREFIXES.items()
        for per in (b"", b"/s", b"/block")
    },
}

DURATION_METRIC = "gpu__time_duration.sum"
BANDWIDTH_METRIC = "dram__bytes.sum.per_second"

# Thousands are grouped by the locale's separator (en 1,234.50; de 1.234,50; fr 1 234,50 with any
# of three spaces; ch 1'234.50) or in lakhs (en_IN 12,34,567.89). \udca0: a Latin-1 no-break space.
GROUPED = (
    "(?P<whole>[1-9][0-9]{0,2}(?P<group>[., '’\u00a0\u2009\u202f\udca0])[0-9]{3}"
    "(?:(?P=group)[0-9]{3})*|[1-9][0-9]?(?:,[0-9]{2})+,[0-9]{3})"
    "(?:(?(group)(?!(?P=group))[.,]|[.])(?P<decimals>[0-9]{1,2}))?"
)
PLAIN = re.compile(rb"[0-9]+(?:[.,][0-9]{1,2}|[.]([0-9]{3,}))?")


def parse_number(text: bytes, scaled: bool) -> str | None:
    """Return a number that ncu printed, in whatever locale, as float() reads it.

    ncu prints integers or two decimals. Three digits after a lone dot are decimals in a scaled
    unit, else a group (16.448 ns under de_DE). None: not a number, or not surely one.
    """
    plain = PLAIN.fullmatch(text)
    if plain:
        more = plain[1]
        if not more or scaled or len(more) > 3 or text[:2] == b"0.":
            return text.replace(b",", b".").decode()
    match = re.fullmatch(GROUPED, text.decode("utf-8", "surrogateescape"))
    if not match:
        return None
    whole = re.sub("[^0-9]", "", match["whole"])
    return f"{whole}.{match['decimals']}" if match["decimals"] else whole


def parse_quantity(unit: bytes, text: bytes) -> tuple[str, int, bytes] | None:
    """Return a row's number, the power of ten that takes it to the base unit, and that unit."""
    # Seconds are spelled out up to about 2024.2
    power, base = UNITS.get(unit.strip().replace(b"second", b"s"), (0, unit))
    number = parse_number(text.strip(), scaled=power != 0)
    return None if number is None else (number, power, base)


def parse_figure(row: tuple[bytes, bytes], base: bytes, power: int) -> float | None:
    """Return a row's value in ten to that power of its base unit, which has to be this one."""
    quantity = parse_quantity(*row)
    if quantity is None or quantity[2] != base:
        return None
    value = float(f"{quantity[0]}e{quantity[1] - power}")
    return value if value < FOR_EVER else None


BENCHMARK_LINE = re.compile(rb"(?m)ms[ \t]+[0-9.]+GB[ \t]*[0-9.]+GB/s(?=[ \t\r]*$)")
# ncu's progress line can end in the middle, and the benchmark's then goes on in it
MILLISECONDS = re.compile(rb"(?:(?!==STDERR== ).*[0-9]%)?([0-9]+(?:\.[0-9]+)?)")


def find_benchmark_line(text: bytes) -> tuple[bytes, bytes] | None:
    """Return the first benchmark line, `0.027ms    0.004GB    147.69GB/s`, and its milliseconds."""
    for line in BENCHMARK_LINE.finditer(text):
        begin = text.rfind(b"\n", 0, line.start()) + 1
        match = MILLISECONDS.fullmatch(text, begin, line.start())
        if match:
            return match[1] + line[0], match[1]
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


@functools.cache
def table_of(section: bytes) -> re.Pattern[bytes]:
    """Match the complete table of a section, a pattern: the rule that opens it closes it.

    Three columns: --print-summary prints five. Before 2022.3 there is no header row.
    """
    return re.compile(
        rb"Section: (?P<section>" + section + rb")[ \t\r]*"
        rb"(?P<rule>\n[ \t]*(?P<names>-+) (?P<units>-+) -+)[ \t\r]*"
        rb"(?:\n[ \t]*Metric Name[^\n]*(?P=rule)[ \t\r]*)?"
        rb"(?P<rows>(?:\n(?![ \t]*(?:-|Section:|Metric Name))[^\n]*)*)"
        rb"(?P=rule)[ \t\r]*(?:\n|\Z)"
    )


SPEED_SECTION = b"GPU Speed Of Light(?: Throughput)?"
MEMORY_SECTION = b"Memory Workload Analysis"
METRICS_SECTION = b"Command line profiler metrics"
ANY_SECTION = rb"[^\n]{0,99}\S"


@functools.cache
def row_of(label: str) -> re.Pattern[bytes]:
    """Match a metric's row: its unit, its value. Columns can be one space apart."""
    return re.compile(rb"\n[ \t]*" + re.escape(encode(label)) + rb"[ \t]+(\S+)[ \t]+(\S[^\n]*)")


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
    duration = parse_figure(durations[0], b"ns", 3)
    bandwidth = parse_figure(bandwidths[0], b"byte/s", 9) if bandwidths else None
    if duration is None or (bandwidths and bandwidth is None):
        name, row = (
            ("Duration", durations[0]) if duration is None else ("Memory Throughput", bandwidths[0])
        )
        return Failure("no figures", f"ncu printed {printable(b' '.join(row))!r} for {name}")
    return duration, bandwidth


def is_metric(name: str) -> bool:
    """Tell a metric's own name from a row's label."""
    return "__" in name


@functools.cache
def word_of(label: bytes) -> re.Pattern[bytes]:
    """Match a label, if in a row or not; to search by a pattern is faster than find()."""
    return re.compile(re.escape(label) + rb"[ \t]")


def find_tables(text: bytes, result: Result, label: bytes) -> Iterator[re.Match[bytes]]:
    """Yield a result's complete tables that hold a label."""
    passed = result.begin
    for word in word_of(label).finditer(text, result.begin, result.end):
        begin = text.rfind(b"Section: ", passed, word.start())
        table = table_of(ANY_SECTION).match(text, begin, result.end) if begin >= 0 else None
        passed = max(passed, table.end() if table else word.end())
        if table:
            yield table


@functools.lru_cache(1000)
def aligned_row_of(label: bytes, names: int, units: int) -> re.Pattern[bytes]:
    """Match any row with a label: the cell of its unit and its value, in columns of these widths.

    Nothing for either where they are not in their columns: a value can be words. Columns are one
    space apart; behind a single space within the first, another label goes on.
    """
    padding = max(names - len(label), 0)
    return re.compile(
        rb"\n[ \t]*%s(?=[ \t]{%d})(?: {%d}([^\n]{%d}) ([^\n]+)|[^\n]*)"
        % (re.escape(label), 2 if padding else 1, padding + 1, units)
    )


def find_rows(table: re.Match[bytes], label: bytes) -> list[tuple[bytes, bytes]]:
    """Return the cells of unit and value of each row with a label."""
    pattern = aligned_row_of(label, len(table["names"]), len(table["units"]))
    rows: list[tuple[bytes, bytes]] = pattern.findall(table["rows"])
    return rows


def find_cell(text: bytes, result: Result, name: str) -> str:
    """Return a metric's value in its base unit, in exact decimals, for a name or a row's label.

    Blank where no row has it, or not all that have it hold the same number. A label can have its
    section before it: `Memory Workload Analysis/Memory Throughput`.
    """
    label = encode(name)
    section, _, rest = label.partition(b"/")
    tables: list[re.Match[bytes]] = []
    if rest:
        pattern = table_of(re.escape(section))
        tables = [*pattern.finditer(text, result.begin, result.end)]
    if tables:
        label = rest
    else:  # a slash can be in a label, too: L1/TEX Hit Rate
        tables = [*find_tables(text, result, label)]
    rows = (row for table in tables for row in find_rows(table, label))
    values = {parse_quantity(*row) for row in rows}
    value = values.pop() if len(values) == 1 else None
    return shift(*value[:2]) if value else ""


def shift(number: str, power: int) -> str:
    """Return a number times ten to a power, digit by digit."""
    if not power:
        return number
    whole, _, decimals = number.partition(".")
    moved = decimals[:power].ljust(power, "0")
    rest = decimals[power:]
    return (whole + moved).lstrip("0").rjust(1, "0") + (f".{rest}" if rest else "")


def list_names(text: bytes) -> set[str]:
    """Return what --metric can name in a log: metrics, labels, and these behind their sections."""
    names: set[str] = set()
    for table in table_of(ANY_SECTION).finditer(text):
        section = printable(table["section"])
        for row in table["rows"].strip(b"\n").split(b"\n"):
            label = printable(row.strip()[: len(table["names"])], limit=100)
            names |= {label} if is_metric(label) else {label, f"{section}/{label}"}
    return names


# The lines that this program puts before ncu's text.
HEADER = re.compile(
    rb"# source sha256: ([0-9a-f]{64})\n# launch: (first|tuned) launch\n(?:# command: [^\n]*\n)?"
)

# Triton 2 appends a signature to a function's name.
OWN_NAME = rb"(?:kernel-[0-9]+/)?%s(?:_0[0-9dec]*)?(?:[ (,]|$)"
TRITON_ANNOUNCED = rb'==PROF== Profiling "[^"\n]*triton'


def parse_log(text: bytes, metrics: Sequence[str] = (), function: bytes = b"") -> Log | Failure:
    """Return what a log says, of these metrics too, or why it is not valid.

    Of several results the first whose kernel name contains "triton" counts, else the first; it
    has to be of that function.
    """
    header = HEADER.match(text)
    if header:
        text = text[header.end() :]
    results = find_results(text)
    if not results:
        return Failure("no figures", "ncu printed no result")
    result = results[0]
    if b"triton" not in result.name:
        result = next((other for other in results if b"triton" in other.name), result)
    if b"triton" not in result.name and re.search(TRITON_ANNOUNCED, text[: result.begin]):
        return Failure("no figures", "ncu's text ends before the result of the Triton kernel")
    if function and not re.match(OWN_NAME % re.escape(function), result.name):
        return Failure("ncu profiled another kernel", printable(result.name))
    values = parse_result(text, result)
    if isinstance(values, Failure):
        return values
    benchmark = find_benchmark_line(text)
    latency = float(benchmark[1] + b"e3") if benchmark else FOR_EVER
    if latency == FOR_EVER:
        return Failure("no benchmark line")
    duration, bandwidth = values
    measured = f"{bandwidth!r},{bandwidth * duration / 1e6!r}" if bandwidth is not None else ","
    tuned = header is not None and header[2] == b"tuned"
    figures = f"{latency!r},{duration!r},{measured}"
    for name in metrics:
        figures += f",{find_cell(text, result, name)}"
    return Log(figures, bandwidth is not None, sys.intern(result.compute_capability), tuned)


# --- The cache: <kernel>.ncu beside <kernel>.py ---------------------------------------------------

# Python prints floats below 1e-4 (kernels under 100 kB) with an exponent of two digits.
NUM_GB = re.compile(r"'kernel_num_gb': (?:([0-9]+(?:\.([0-9]+))?)(?:e-([0-9]{2}))?|None)[,}]")


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


def hash_source(source: bytes) -> bytes:
    """Return what sha256sum prints for a kernel file."""
    import hashlib

    return hashlib.sha256(source).hexdigest().encode()


def look_up(kernel: Kernel, metrics: Sequence[str]) -> None:
    """Find the kernel's log, if it has a valid one that measured the file as it is now.

    One look at each file: the log first, the kernel only where the log or the table asks for it.
    """
    text = read_if_there(kernel.log_path)
    log = parse_log(text, metrics) if text else None
    kernel.log = log if isinstance(log, Log) else None
    header = HEADER.match(text) if text and kernel.log else None
    source = read_if_there(kernel.path) if header or kernel.claims else None
    if source is not None:
        kernel.misread_gb = bool(kernel.claims) and is_exponent_misread(kernel.claimed_gb, source)
        if header and header[1] != hash_source(source):
            kernel.log = None


SLOW_OPEN = 0.001  # seconds a look-up; slower is a network file system
SAMPLE = 64  # look-ups that tell
READERS = 32  # threads that read ahead there


def look_up_all(
    kernels: list[Kernel], metrics: Sequence[str], stop: Stop, tick: Callable[[], None]
) -> None:
    """Look every kernel up; by several threads at a time where opening a file is slow."""

    def read(some: Iterable[Kernel]) -> None:
        for kernel in some:
            if stop.requested:
                return
            look_up(kernel, metrics)
            tick()

    begin = time.perf_counter()
    read(kernels[:SAMPLE])
    slow = time.perf_counter() - begin > SAMPLE * SLOW_OPEN
    rest = iter(kernels[SAMPLE:])  # shared: taking the next is atomic
    readers = [threading.Thread(target=read, args=(rest,)) for _ in range(READERS if slow else 0)]
    with contextlib.suppress(RuntimeError):  # no more threads: the last read() does the rest
        for reader in readers:
            reader.start()
    for reader in filter(threading.Thread.is_alive, readers):
        reader.join()
    read(rest)


@dataclass(eq=False, repr=False)
class Source:
    """A kernel file as it is about to be measured."""

    kernel: Kernel
    sha256: bytes
    function: bytes  # the Triton function, "triton_" with plain names
    batchable: bool  # has get_args() and call()
    device: int  # the GPU that it names, as CUDA counts those that are visible
    bare: str  # a name that its harness uses and nothing defines, such as cuda; or empty


def find_bare_device(source: bytes) -> str:
    """Return the device type that a kernel's harness names without quotes, empty where none.

    So in every kernel of torch 2.10, and in combo kernels of 2.10 to 2.12: a NameError when run.
    """
    harness = source.rpartition(b"__main__")[2]
    match = re.search(rb"\bbenchmark\(.*\bdevice=([A-Za-z_]\w*) *[,)]", harness)
    return match[1].decode() if match and match[1] != b"None" else ""


def inspect_source(kernel: Kernel) -> Source | Failure:
    """Read a kernel file that is about to be measured."""
    text = read_if_there(kernel.path)
    if text is None:
        return Failure("no kernel file" if not os.path.exists(kernel.path) else "not readable")
    main = rb"(?m)^if __name__ == ['\"]__main__['\"]"
    if b"@triton_heuristics." in text and not re.search(main, text):
        return Failure(
            "no benchmark harness",
            "compiled without TORCHINDUCTOR_BENCHMARK_KERNEL=1, or of a kind that has none",
        )
    types = set(re.findall(rb"\bdevice=['\"]?(cuda|xpu|hip|mps|mtia)\b", text))
    if types and b"cuda" not in types:
        return Failure(f"compiled for {min(types).decode()}, which ncu cannot profile")
    function = re.search(rb"(?m)^def (triton\w*)\(", text)
    batchable = b"\ndef get_args(" in text and b"\ndef call(" in text
    devices = re.findall(rb"(?:cuda:|set_device\(|_DeviceGuard\()([0-9]{1,4})", text)
    device = max(map(int, devices), default=0)
    name = function[1] if function else b""
    return Source(kernel, hash_source(text), name, batchable, device, find_bare_device(text))


STDERR_MARK = b"==STDERR== "
STDERR_LIMIT = 1 << 20  # bytes of it that are kept


def compose_text(stderr: bytes, stdout: bytes) -> bytes:
    """Return what a log holds of one ncu's output.

    stderr comes first and behind a mark of its own, so that nothing in it can be taken for ncu's.
    """
    lines = stderr[-STDERR_LIMIT:].rstrip(b"\n").split(b"\n") if stderr else []
    return b"".join(STDERR_MARK + line + b"\n" for line in lines) + stdout


@contextlib.contextmanager
def kernel_lock(path: str) -> Iterator[bool]:
    """Hold the kernel file's lock, so that of several runs one profiles it; False: held elsewhere.

    The kernel frees it when the process is gone, however. On NFS an exclusive lock needs a file
    that is open for writing. Where there are no locks we go on: logs are renamed into place.
    """
    import fcntl

    descriptor, held = -1, True
    try:
        mode = os.O_RDWR if os.access(path, os.W_OK) else os.O_RDONLY
        descriptor = os.open(path, mode | os.O_NONBLOCK | os.O_CLOEXEC)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:  # that files run out is no reason to go on without the lock
        held = error.errno not in (errno.EWOULDBLOCK, errno.EMFILE)
    try:
        yield held
    finally:
        if descriptor >= 0:
            os.close(descriptor)


# --- The table: rows, their kernels, shards -------------------------------------------------------

# Cells that are paths are looked up as they stand, so they are decoded as file names are.
ENCODING = sys.getfilesystemencoding()
BYTE_ORDER_MARK = os.fsdecode(b"\xef\xbb\xbf")
LINE_END = "\r\n"
# A kernel rarely moves a gigabyte; where it says so, torch may have dropped an exponent.
SUSPICIOUS_GB = frozenset("123456789")


def join_cells(cells: Iterable[str]) -> str:
    """Return cells as CSV, without an end of line."""
    text = io.StringIO()
    # Before Python 3.13 csv quotes a line end only where it is the terminator's
    csv.writer(text, lineterminator=LINE_END).writerow(cells)
    return text.getvalue()[: -len(LINE_END)]


class Table:
    """The rows that are worked on, each as its text, and what was left out.

    A row is kept as it was read, less the cells of our columns where the input has them: the
    output is that text and the figures of the row's kernel.
    """

    def __init__(self, header: list[str], folder: str = "", metrics: Sequence[str] = ()) -> None:
        """Find the columns by name; of two with one name the first counts."""
        required = ("kernel_name", "kernel_path", "kernel_category")
        missing = [column for column in required if column not in header]
        if missing:
            likely = [repr(column) for column in header if column.strip().lower() in missing]
            hint = f"; {' and '.join(likely)} may be meant" if likely else ""
            raise UsageError(f"the input has no column {' and no '.join(missing)}{hint}")
        self.figures = [*FIGURE_COLUMNS, *metrics]  # the columns that are written anew
        self._passed = [at for at, column in enumerate(header) if column not in self.figures]
        self.header = [header[at] for at in self._passed]
        absent = len(header)  # where an empty cell is put
        columns = TABLE_COLUMNS if self.header == header else COLUMNS
        places = [header.index(column) if column in header else absent for column in columns]
        self._cells = itemgetter(*places)
        self.folder = folder  # where relative paths are looked up, after the current one
        self.rows: list[str] = []  # some with their line end
        self.row_kernels: list[Kernel] = []  # the kernel of each row
        self.kernels: dict[str, Kernel] = {}  # by kernel_path
        self.torn: list[int] = []  # line numbers
        self.foreach = 0

    def add(self, cells: list[str], text: str) -> bool:
        """Keep a row, unless it is foreach, which has no benchmark harness; False: no kernel."""
        line = LogLine(*self._cells([*cells, ""]))
        if line.kernel_category == "foreach":
            self.foreach += 1
            return True
        if not line.kernel_path.endswith(".py"):
            return False
        kernel = self.kernels.get(line.kernel_path)
        if not kernel:  # no row before named it, or named it so
            path = locate(line.kernel_path, self.folder)
            kernel = self.kernels.get(path) or Kernel(line.kernel_name, path)
            self.kernels[line.kernel_path] = self.kernels[path] = kernel
        if line.kernel_args_num_gb[:1] in SUSPICIOUS_GB:
            kernel.claims += 1
            kernel.claimed_gb = kernel.claimed_gb or line.kernel_args_num_gb
        if line.ncu_duration_us:
            kernel.had_figures += 1
        if len(self._passed) < len(cells):
            text = join_cells([cells[at] for at in self._passed])
        self.rows.append(text)
        self.row_kernels.append(kernel)
        return True

    def keep_shard(self, shard: tuple[int, int] | None) -> list[Kernel]:
        """Return the kernels of this shard, dealt out by stride, and leave only their rows."""
        chosen = list(dict.fromkeys(self.row_kernels))
        if shard:
            chosen = chosen[shard[0] - 1 :: shard[1]]
            mine = set(chosen)
            self.rows = [row for row, kernel in zip(self.rows, self.row_kernels) if kernel in mine]
            self.row_kernels = [kernel for kernel in self.row_kernels if kernel in mine]
        return chosen


def locate(path: str, folder: str) -> str:
    """Return a kernel's absolute path: from the current directory, else from the table's folder.

    A log alone counts too: it stays valid when its kernel file is gone.
    """
    if os.path.isabs(path):
        return make_absolute(path)
    candidates = [make_absolute(path), make_absolute(os.path.join(folder, path))]
    known = (c for c in candidates if os.path.exists(c) or os.path.exists(c[:-3] + ".ncu"))
    return next(known, candidates[0])


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


def read_records(lines: list[str]) -> Iterator[tuple[int, str, list[str] | None]]:
    """Yield the number of each record's first line, its text and its cells.

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
                    text = lines[at] if end == at + 1 else "".join(lines[at:end])
                    yield at + 1, text, cells
                at = end
            else:
                return
        except csv.Error:  # a quote that is never closed, say; before Python 3.11 a NUL
            pass
        at += 1
        yield at, "", None


SAVE = "save it as comma-separated UTF-8"
# What a first line matches that is not of a table, what it is then, and what to do.
FOREIGN = (
    (rb"\x1f\x8b", "compressed by gzip: `gunzip -c FILE | ... -i -` reads it"),
    (rb"PK\x03\x04", f"a spreadsheet or zip archive: {SAVE}"),
    (rb"\xff\xfe|\xfe\xff|\0|[ -~]\0", f"UTF-16 text: {SAVE}"),
    (rb"[^,\n]*;[^,\n]*\bkernel_", f"separated by semicolons: {SAVE}"),
    (rb"[^,\n]*\t[^,\n]*\bkernel_", f"separated by tabs: {SAVE}"),
)


def read_table(stream: Iterable[str], folder: str, metrics: Sequence[str]) -> Table:
    """Read a table; a header line that comes again (tables are concatenated) is passed over."""
    csv.field_size_limit(sys.maxsize)
    lines = list(stream) or [""]
    lines[0] = lines[0].removeprefix(BYTE_ORDER_MARK)
    for pattern, what in FOREIGN:
        if re.match(pattern, os.fsencode(lines[0])):
            raise UsageError(f"the input is {what}")
    records = read_records(lines)
    _, _, header = next(records, (0, "", None))
    if not header:
        raise UsageError("the input has no header")
    table = Table(header, folder, metrics)
    again = [BYTE_ORDER_MARK + header[0], *header[1:]]
    for number, text, cells in records:
        if cells not in (header, again) and (cells is None or not table.add(cells, text)):
            table.torn.append(number)
    return table


def write_table(stream: BinaryIO, table: Table) -> None:
    """Write the table with its figures."""
    text = io.TextIOWrapper(stream, ENCODING, "surrogateescape", newline="")
    text.write(join_cells([*table.header, *table.figures]) + "\n")
    blank = "," * len(table.figures)
    for row, kernel in zip(table.rows, table.row_kernels):
        known = f",{kernel.log.figures}" if kernel.log else blank
        text.write(f"{row.rstrip(LINE_END)}{known}\n")
    text.detach()


# --- An Inductor cache directory as input ---------------------------------------------------------

# Why a Python file of an Inductor cache gives no row
OTHER = "without a kernel of the table"  # modules that quote kernels, candidates, user kernels
FOREACH = "foreach kernel"
NO_HARNESS = "kernel without one: TORCHINDUCTOR_BENCHMARK_KERNEL=1 was not set"
DAMAGED = "cut short or damaged"

# A kernel file is imports, a decorator that says what the kernel is, the function, the harness.
HARNESS_IMPORT = "\nfrom torch._dynamo.testing import rand_strided"
DECORATOR = "\n@triton_heuristics."
DEF = "\ndef triton_"  # also with plain names, where the function is called triton_
ARGUMENTS = re.compile(r"\w*\(.*?\):")
# The harness, or (flex attention) a helper. Not a line of the function that has lost its
# indentation: an indented one would follow.
NEXT_STATEMENT = re.compile(r"\n(?:(def |@|\w[^\n]*\n(?![ \t]+\S))|\w)")
HARNESS_MAIN = "\nif __name__ == '__main__':"
HARNESS_END = 'GB/s")'  # of the print that ends the harness, the same in torch 2.2 to 2.15

# torch's get_kernel_category_by_source_code knows these and foreach; any other is "unknown",
# such as cooperative_reduction (whose kernels it therefore names triton_unk_...).
CATEGORIES = frozenset(("persistent_reduction", "pointwise", "reduction", "split_scan", "template"))
KERNEL_NAME = re.compile(r"'kernel_name': '([\w.]+)'")
# A list up to torch 2.5, a dict since 2.6.
SIZE_HINTS = re.compile(r"size_hints=(\[[0-9, ]*\]|\{[^{}]*\}),")
REDUCTION_HINT = re.compile(r"reduction_hint=ReductionHint\.(\w+),")
NUMEL = re.compile(r"\n +(\w+numel) = ([0-9]{1,19})$", re.MULTILINE)  # none of a dynamic size
# inspect.getsource, which torch counts in, drops such lines after the last statement.
NOT_OF_BODY = re.compile(r"\s*$| {0,3}#")


def parse_kernel_file(source: bytes) -> dict[str, str] | str:
    """The cells of torch's kernel_metadata table for a kernel's source, or why there are none.

    By the definitions of torch/_inductor/metrics.py (the same in torch 2.3 to 2.15), without
    running the file. Never raises.
    """
    if b"AsyncCompile" in source:
        return OTHER  # the module of a graph, which quotes its kernels
    text = source.decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n")
    head, _, kernel = text.partition(DECORATOR)
    decorator, _, rest = kernel.partition(DEF)
    function, _, main = rest.partition(HARNESS_MAIN)
    category = decorator.partition("(")[0]
    name = KERNEL_NAME.search(decorator)
    end = NEXT_STATEMENT.search(function)
    has_harness = HARNESS_IMPORT in head
    is_quoted = head.count("'''") % 2 or head.count('"""') % 2
    is_candidate = name and name[1].startswith("Placeholder.")  # torch only benchmarked it
    if is_quoted or is_candidate or category == "user_autotune" or not (kernel or has_harness):
        return OTHER
    if not name or not rest or DECORATOR.strip() in kernel or "\0" in text or "\ufffd" in text:
        return DAMAGED
    if category == "foreach":
        return FOREACH
    if not main and not has_harness:
        return NO_HARNESS
    if not end or not end[1] or not ARGUMENTS.match(function) or HARNESS_END not in main:
        return DAMAGED
    cells = {**decorator_cells(category, decorator), **function_cells(function[: end.start()])}
    return {"kernel_name": name[1], **cells}


def decorator_cells(category: str, decorator: str) -> dict[str, str]:
    """What torch finds in a kernel's decorator."""
    known = category in CATEGORIES
    size_hints = SIZE_HINTS.search(decorator)
    hint = REDUCTION_HINT.search(decorator) if known and category.endswith("reduction") else None
    num_gb = ""
    match = NUM_GB.search(decorator)
    if match and match[1]:
        mantissa, decimals, exponent = match.groups()
        # Six as torch writes them; every digit where torch misreads the exponent
        places = len(decimals or "") + int(exponent) if exponent else 6
        num_gb = f"{float(f'{mantissa}e-{exponent or 0}'):.{places}f}"
    return {
        "kernel_category": category if known else "unknown",
        "size_hints": size_hints[1] if size_hints else "",
        "reduction_hint": hint[1] if hint else "",
        "kernel_args_num_gb": num_gb,
    }


def function_cells(source: str) -> dict[str, str]:
    """What torch counts and finds in a kernel function, from its arguments on."""
    lines = source.split("\n")
    while NOT_OF_BODY.match(lines[-1]):
        lines.pop()
    function = "\n".join(lines)
    sizes = dict(reversed(NUMEL.findall(function)))  # the first of a name counts
    # Since torch 2.6 a reduction has dimensions of its own, and says rnumel = r0_numel.
    reduced = [name for name in ("r0_numel", "r1_numel") if name in function] or ["rnumel"]
    literal = all(name in sizes for name in reduced)
    return {
        "line_of_code": str(len(lines)),
        "num_load": str(function.count("tl.load")),
        "num_store": str(function.count("tl.store")),
        "num_for_loop": str(function.count("for ")),
        "num_atomic_add": str(function.count("tl.atomic_add")),
        "num_args": str(function.count(",", 0, function.index("):")) + 1),
        "xnumel": sizes.get("xnumel", ""),
        "ynumel": sizes.get("ynumel", ""),
        "rnumel": str(functools.reduce(mul, (int(sizes[n]) for n in reduced))) if literal else "",
    }


def walk_python_files(root: str, warn: Callable[[str], None]) -> list[str]:
    """The files named *.py under a folder, in the order of their paths.

    Linked folders are followed, those nearest to the file system's root first, unless they lead
    in or around what is read anyway.
    """
    files: list[str] = []
    entered: list[str] = []
    links = [root]

    def say(error: OSError) -> None:
        warn(f"{error.filename}: passed over, {error.strerror}")

    while links:
        link = links.pop()
        target = os.path.join(os.path.realpath(link), "")
        if any(target.startswith(other) or other.startswith(target) for other in entered):
            warn(f"{link}: passed over, it links to {target}, in or around what is read anyway")
            continue
        entered.append(target)
        for folder, folders, names in os.walk(link, onerror=say):
            files += [os.path.join(folder, name) for name in names if name.endswith(".py")]
            links += filter(os.path.islink, (os.path.join(folder, name) for name in folders))
        links.sort(key=lambda path: (-os.path.realpath(path).count(os.sep), path))
    return sorted(files)


def read_directory(
    root: str, model_name: str, reporter: Reporter, metrics: Sequence[str] = ()
) -> Table:
    """Make the table of an Inductor cache, ordered by path."""
    table = Table([*TABLE_COLUMNS], metrics=metrics)
    counts: Counter[str] = Counter()
    warnings: list[str] = []
    for path in walk_python_files(os.path.abspath(root), warnings.append):
        try:
            row = parse_kernel_file(read_bytes(path))
        except OSError as error:
            row = OTHER
            warnings.append(f"{path}: passed over, {error.strerror}")
        if row is DAMAGED:
            warnings.append(f"{path}: passed over, it is {row} (still being written?)")
        if isinstance(row, str):
            counts[row] += 1
        else:
            row.update(model_name=model_name, kernel_path=path)
            cells = [row[column] for column in TABLE_COLUMNS]
            table.add(cells, join_cells(cells))
        reporter.tick(lambda: f"{len(table.rows)} kernels, {sum(counts.values())} other files")
    reporter.warn(*warnings)
    table.foreach = counts[FOREACH]
    if not table.rows:
        seen = ", ".join(f"{count} x {what}" for what, count in counts.items())
        raise UsageError(
            f"{root}: no kernel found; looked for .py files with @triton_heuristics. at the start"
            f" of a line and a benchmark harness ({seen or 'there are no .py files'})"
        )
    if counts[NO_HARNESS]:
        reporter.warn(f"{counts[NO_HARNESS]} kernels are left out: no benchmark harness")
    return table


# --- One child process ----------------------------------------------------------------------------


class Stop:
    """The wish to end early: of a signal, or after a failure that every kernel would share."""

    requested = False
    insisted = False  # a second INT: children are killed at once
    signal = 0

    def request(self, signum: int = 0, _frame: object = None) -> None:
        """Ask for an end. Safe in a signal handler."""
        self.insisted = self.insisted or bool(self.signal and signum == signal.SIGINT)
        self.signal = self.signal or signum
        self.requested = True

    def pause(self, seconds: float) -> None:
        """Wait, but no longer than until a stop is asked for."""
        end = time.monotonic() + seconds
        while not self.requested and time.monotonic() < end:
            time.sleep(min(seconds, 0.05))

    @contextlib.contextmanager
    def on_signals(self) -> Iterator[None]:
        """Take INT, TERM and HUP for the wish to stop, save those ignored so far (nohup)."""
        signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        heeded = [signum for signum in signals if signal.getsignal(signum) != signal.SIG_IGN]
        old = {signum: signal.signal(signum, self.request) for signum in heeded}
        try:
            yield
        finally:
            for signum, handler in old.items():
                signal.signal(signum, handler)


# How a run ended that was not the kernel's fault
STOPPED = "stopped"
CANNOT_START = "cannot be started"
TOO_MUCH = f"more than {OUTPUT_LIMIT >> 20} MiB of output"


@dataclass(eq=False, repr=False)
class Run:
    """What a command printed, and how it ended."""

    command: str  # as pasted into a shell
    stdout: bytes = b""
    stderr: bytes = b""
    reports: bytes = b""  # of the driver of a batch
    seconds: float = 0.0
    ended: str = ""  # why we ended it; empty when it ended by itself
    status: int = 127

    @property
    def begun(self) -> bool:
        """Whether the application has come as far as to use the GPU."""
        return bool(self.reports) or b"==PROF== Connected" in self.stdout


def show_command(command: list[str], environment: Mapping[str, str]) -> str:
    """Return a command, with what it adds to the environment, ready to paste into a shell."""
    import shlex

    added = [f"{name}={shlex.quote(value)}" for name, value in environment.items()]
    return " ".join([*added, shlex.join(command)])


@contextlib.contextmanager
def unnamed_file() -> Iterator[int]:
    """Open a file in memory for others to write to: no disk can be full, nothing is left over."""
    import fcntl

    descriptor = os.memfd_create("output")
    try:
        # Also when a child opens its /dev/stderr anew, which begins at the start
        fcntl.fcntl(descriptor, fcntl.F_SETFL, os.O_APPEND)
        yield descriptor
    finally:
        os.close(descriptor)


def run_child(
    command: list[str],
    environment: Mapping[str, str],
    stop: Stop,
    timeout: float,
    reports: int | None = None,
) -> Run:
    """Run a command to its end, in a process group of its own of which nothing survives.

    `timeout` seconds (0: never) after the start, or after the last that was written to `reports`,
    the group gets TERM, and a little later KILL; the same when `stop` asks for it.
    """
    import subprocess

    grace = 2.0 if reports is None else 10.0  # ncu prints the results of a batch when it ends
    begin = time.monotonic()
    run = Run(show_command(command, environment))
    with unnamed_file() as stdout, unnamed_file() as stderr:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,  # a background ncu that reads a terminal is stopped
                stdout=stdout,
                stderr=stderr,
                env={**os.environ, **environment},
                start_new_session=True,
                pass_fds=[] if reports is None else [reports],
            )
        except OSError as error:
            run.ended = f"{CANNOT_START}: {error.strerror}"
            return run
        try:
            run.ended = watch(process.pid, stop, timeout or FOR_EVER, [stdout, stderr], reports)
        finally:
            run.status = end_group(process, stop, grace if run.ended not in ("", TOO_MUCH) else 0)
        most = OUTPUT_LIMIT >> 6 if run.ended == TOO_MUCH else OUTPUT_LIMIT
        run.stdout, run.stderr = (os.pread(file, most, 0) for file in (stdout, stderr))
    run.reports = b"" if reports is None else os.pread(reports, OUTPUT_LIMIT, 0)
    run.seconds = time.monotonic() - begin
    return run


def watch(pid: int, stop: Stop, timeout: float, output: list[int], reports: int | None) -> str:
    """Wait until a process is gone, not reaping it; else return what came first."""
    nap, heard = 0.001, 0
    deadline = time.monotonic() + timeout
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if reports is not None and os.fstat(reports).st_size != heard:
            heard = os.fstat(reports).st_size
            deadline = time.monotonic() + timeout
        if stop.requested:
            return STOPPED
        if sum(os.fstat(file).st_size for file in output) > OUTPUT_LIMIT:
            return TOO_MUCH
        if time.monotonic() >= deadline:
            return f"no end after {timeout:g} s"
        time.sleep(nap)
        nap = min(1.5 * nap, 0.01)
    return ""


def end_group(process: subprocess.Popen[bytes], stop: Stop, grace: float) -> int:
    """Kill what is left of a process's group, asked to end before if there is a grace.

    ncu prints its results when it is asked. Some are a shell script, gone before what it started.
    """
    from subprocess import TimeoutExpired

    deadline = time.monotonic() + grace
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if grace:
            os.killpg(process.pid, signal.SIGTERM)
        while time.monotonic() < deadline and not stop.insisted:
            process.poll()  # or its zombie keeps the group alive
            os.killpg(process.pid, 0)
            time.sleep(0.005)
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(TimeoutExpired):
        return process.wait(10)
    return -signal.SIGKILL  # a process that hangs in the driver cannot be killed


def ask(option: str, command: list[str], stop: Stop) -> list[str]:
    """Return the lines that a command answers; raises UsageError, naming who wants to know."""
    run = run_child(command, {}, stop, timeout=120.0)
    if run.ended or run.status:
        reason = run.ended or printable(last_line(run.stderr or run.stdout))
        raise UsageError(f"{option}: {command[0]} fails with {run.status}: {reason}")
    return os.fsdecode(run.stdout).strip().split("\n")


# --- ncu's command, and the GPUs ------------------------------------------------------------------

# ncu's options. Base units because two decimals of others cost up to 0.5 %; application-only
# because `all` waits for every descendant, daemons too, and injects into compilers.
NCU_OPTIONS: dict[str, str | None] = {
    "-k": "regex:triton",
    "-c": "1",
    "--set": "full",
    "--print-units": "base",
    "--target-processes": "application-only",
}
# A batch turns the profiler on for the launches that count, and labels each by an NVTX range.
NCU_BATCH_OPTIONS: dict[str, str | None] = {
    "-c": None,
    "--profile-from-start": "off",
    "--nvtx": "",
    "--print-nvtx-rename": "kernel",
}
LONG_OPTIONS = {"-k": "--kernel-name", "-c": "--launch-count"}

DRIVER_OPTION = "--drive-batch"  # hidden: ncu runs this program with it
STDERR = 2  # where the driver reports to when a person pastes its command


def ncu_options(options: Namespace, batch: bool, bandwidth: bool) -> list[str]:
    """Return ncu's options: ours, less those that the user's displace, then the user's.

    ncu refuses an option given twice, and takes a long one cut short (--print-u). Metrics are
    added to ours.
    """
    metrics = [DURATION_METRIC, *([BANDWIDTH_METRIC] if bandwidth else [])] if options.quick else []
    metrics += filter(is_metric, options.metrics)
    theirs: list[str] = []
    words = iter(options.ncu_args)
    for word in words:
        name, equals, value = word.partition("=")
        if len(name) > 3 and "--metrics".startswith(name):
            metrics += (value if equals else next(words, "")).split(",")
        else:
            theirs.append(word)
    names = (LONG_OPTIONS.get(word[:2], word.partition("=")[0]) for word in theirs)
    given = tuple(name for name in names if len(name) > 2)
    ours = {**NCU_OPTIONS, **(NCU_BATCH_OPTIONS if batch else {})}
    if options.quick or "--section".startswith(given):
        ours["--set"] = None
    ours["--metrics"] = ",".join(dict.fromkeys(filter(None, metrics))) or None
    for option in ours:
        if LONG_OPTIONS.get(option, option).startswith(given):
            ours[option] = None
    pairs = ((option, value) for option, value in ours.items() if value is not None)
    return [word for pair in pairs for word in pair if word] + theirs


# Runs a kernel file as Python would, with one name defined more. Under PYTHONSAFEPATH the first
# folder of sys.path is not empty, and none is put before it.
RUN_WITH = (
    "import sys; del sys.argv[0]; sys.path[0] = sys.path[0] or sys.argv[0].rpartition('/')[0]; "
    "import runpy; runpy.run_path(sys.argv[0], {{{0!r}: {0!r}}}, '__main__')"
)


def ncu_command(
    options: Namespace, sources: list[Source], reports: int | None, bandwidth: bool = True
) -> list[str]:
    """Return the command that measures one kernel, or a batch that reports to a descriptor."""
    ours = ncu_options(options, reports is not None, bandwidth)
    driver = ["-c", RUN_WITH.format(sources[0].bare)] if sources[0].bare else []
    if reports is not None:
        driver = [os.path.abspath(__file__), DRIVER_OPTION, str(reports)]
    paths = [source.kernel.path for source in sources]
    return [options.ncu, *ours, options.python, *driver, *paths]


def find_ncu(options: Namespace, environment: Mapping[str, str]) -> str:
    """Return ncu's path: from PATH, else where CUDA puts it (cron's PATH is bare)."""
    import glob
    import shutil

    newest = sorted(
        glob.glob("/opt/nvidia/nsight-compute/*/ncu"),
        key=lambda path: [-int(part) for part in re.findall("[0-9]+", path)],
    )
    home = environment.get("CUDA_HOME") or "/usr/local/cuda"
    places = ["ncu", f"{home}/bin/ncu", "/usr/local/cuda/bin/ncu", *newest]
    for found in map(shutil.which, [options.ncu] if options.ncu else places):
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


def visible_gpus(environment: Mapping[str, str]) -> list[str] | None:
    """Return the entries of CUDA_VISIBLE_DEVICES as CUDA reads them; None where it is not set."""
    value = environment.get("CUDA_VISIBLE_DEVICES")
    if value is None:
        return None
    entries = [entry.strip() for entry in value.split(",")]
    # CUDA stops at the first entry that is no device
    return list(itertools.takewhile(lambda entry: entry and not entry.startswith("-"), entries))


def choose_gpus(spec: str, environment: Mapping[str, str], stop: Stop) -> list[str]:
    """Return the GPU of each worker that --gpus asks for."""
    visible = visible_gpus(environment)
    if spec != "all":
        gpus = [choose_gpu(entry.strip(), visible) for entry in spec.split(",")]
    elif visible is not None:
        gpus = visible
    else:
        gpus = list_gpus(ask("--gpus all", ["nvidia-smi", "-L"], stop))
    if not gpus:
        raise UsageError("--gpus: there is no GPU")
    twice = [gpu for gpu, count in Counter(gpus).items() if count > 1]
    if twice:
        raise UsageError(f"--gpus names GPU {twice[0]} twice")
    return gpus


def list_gpus(lines: list[str]) -> list[str]:
    """Return the UUIDs that `nvidia-smi -L` lists; of a GPU that is split, those of its parts.

    The parts stand indented under their GPU. CUDA would see only the first of the whole one.
    """
    uuids = re.findall(r"\(UUID: ((?:GPU|MIG)-[^)\n]+)\)", "\n".join(lines))
    is_split = [after.startswith("MIG-") for after in [*uuids[1:], ""]]
    return [uuid for uuid, split in zip(uuids, is_split) if uuid.startswith("MIG-") or not split]


def choose_gpu(entry: str, visible: list[str] | None) -> str:
    """Return one GPU: a UUID as it is, a number as an index of the visible ones."""
    if entry.startswith(("GPU-", "MIG-")):
        return entry
    if not re.fullmatch("[0-9]{1,9}", entry):
        raise UsageError(f"--gpus: {entry!r} is neither a number nor a UUID (GPU-..., MIG-...)")
    if visible is None:
        return str(int(entry))
    if int(entry) >= len(visible):
        raise UsageError(f"--gpus: CUDA_VISIBLE_DEVICES has no GPU {entry}, only {len(visible)}")
    return visible[int(entry)]


def devices_for(gpu: str, index: int, workers: list[str | None]) -> str | None:
    """Return a CUDA_VISIBLE_DEVICES that has a worker's GPU at the index that a kernel names.

    Others before it are fill. None where there are too few for that.
    """
    known = visible_gpus(os.environ) or [worker for worker in workers if worker is not None]
    fill = [other for other in known if other != gpu][:index]
    return ",".join([*fill, gpu]) if len(fill) == index else None


# --- The driver of a batch: many kernels in one process -------------------------------------------

LABEL = b"kernel-"  # of the NVTX range of a launch, with the kernel's place in its batch
ERROR_TEXT_LIMIT = 20_000


def drive_batch(arguments: list[str]) -> int:
    """Be the driver of a batch, inside ncu: a descriptor to report to, then the kernel files.

    First every kernel's own benchmark, which also tunes it; then one launch of each with the
    profiler on. Clocks that ncu locks while it profiles so cannot colour a benchmark.
    """
    if sys.path and sys.path[0] == os.path.dirname(os.path.realpath(__file__)):
        del sys.path[0]  # this program's folder, perhaps the current one, is none of theirs
    driver = Driver(int(arguments[0]))
    modules = [driver.benchmark(index, path) for index, path in enumerate(arguments[1:])]
    for index, module in enumerate(modules):
        if module:
            driver.profile(index, module)
    driver.report("finished", 0)
    return 0


class Driver:
    """Runs kernel files as if each were the program, and reports on them."""

    def __init__(self, reports: int) -> None:
        os.set_inheritable(reports, False)  # what the kernels start has no business with it
        self.reports = reports
        self.process = os.getpid()
        self.stdout = capture_stdout()
        self.torch: Any = __import__("torch")
        self.folder = os.getcwd()
        self.path = [*sys.path]
        self.environment = dict(os.environ)
        self.builtins = dict(vars(builtins))

    def report(self, event: str, index: int, text: str = "") -> None:
        """Tell the parent: started, benchmark, done, error, lost (the context), finished."""
        if os.getpid() != self.process:  # a kernel forked
            os._exit(1)
        said = text[-ERROR_TEXT_LIMIT:].encode("unicode_escape")
        line = b"%s %d %s\n" % (event.encode(), index, said)
        with contextlib.suppress(OSError):  # a kernel can have closed it: then it is run plainly
            while line:
                line = line[os.write(self.reports, line) :]

    def benchmark(self, index: int, path: str) -> types.ModuleType | None:
        """Run the file's own benchmark; return its module, without its tensors."""
        module = types.ModuleType("__main__")
        module.__file__ = path
        with self.turn(index, module):
            source = read_bytes(path)
            bare = find_bare_device(source)
            module.__dict__.update({bare: bare} if bare else {})
            exec(compile(source, path, "exec", dont_inherit=True), module.__dict__)
            module.__dict__.pop("args", None)
            line = find_benchmark_line(take_captured(self.stdout))
            self.report("benchmark", index, line[0].decode() if line else "")
            return module
        module.__dict__.clear()
        return None

    def profile(self, index: int, module: types.ModuleType) -> None:
        """Launch a kernel that is tuned by now with the profiler on, under an NVTX label."""
        cuda = self.torch.cuda
        with self.turn(index, module):
            args = module.__dict__["get_args"]()
            devices = [arg.device for arg in args if hasattr(arg, "device")]
            gpus = [device for device in devices if not str(device).startswith("cpu")]
            with cuda.device(gpus[0]) if gpus else contextlib.nullcontext():
                cuda.synchronize()
                cuda.profiler.start()
                cuda.nvtx.range_push(f"{LABEL.decode()}{index}")
                try:
                    module.__dict__["call"](args)
                    cuda.synchronize()
                finally:
                    cuda.nvtx.range_pop()
                    cuda.profiler.stop()
            self.report("done", index)
        module.__dict__.clear()

    @contextlib.contextmanager
    def turn(self, index: int, module: types.ModuleType) -> Iterator[None]:
        """Make a kernel `__main__` for a while; report its failure; undo what it did to others."""
        import traceback
        import warnings

        self.torch.cuda.empty_cache()
        self.report("started", index)
        modules = dict(sys.modules)
        sys.modules["__main__"] = module
        sys.argv = [str(module.__file__)]
        try:
            with warnings.catch_warnings():
                yield
        except (Exception, SystemExit) as error:
            leaves = isinstance(error, SystemExit)
            text = f"sys.exit({error})" if leaves else traceback.format_exc()
            full = len(take_captured(self.stdout)) > OUTPUT_LIMIT - READ_SIZE
            if full and isinstance(error, PermissionError):
                text = f"{text[: ERROR_TEXT_LIMIT // 2]}\n{TOO_MUCH}"
            try:
                self.torch.cuda.synchronize()
            except Exception:  # after an illegal address no CUDA call succeeds any more
                self.report("lost", index, text)
                raise SystemExit(1) from None
            self.report("error", index, text)
        finally:
            for name in [name for name, other in sys.modules.items() if other is None]:
                del sys.modules[name]
            sys.modules.update(modules)
            vars(builtins).update(self.builtins)
            sys.path[:] = self.path
            os.environ.clear()
            os.environ.update(self.environment)
            os.chdir(self.folder)
            self.stdout = capture_stdout(self.stdout)


def capture_stdout(old: TextIO | None = None) -> TextIO:
    """Keep what is printed from now on in memory: ncu's stdout holds ncu's text alone.

    The memory does not grow without end: a kernel that fills it meets an error. The streams are
    new ones, whatever a kernel did to those before; what they hold back is of the old memory.
    """
    import fcntl
    import resource

    for stream in (old, sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()  # type: ignore[union-attr]
    memory = os.memfd_create("stdout", os.MFD_ALLOW_SEALING)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    os.truncate(memory, min(OUTPUT_LIMIT, limit) if limit >= 0 else OUTPUT_LIMIT)
    fcntl.fcntl(memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW)
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
        return os.pread(1, os.lseek(1, 0, os.SEEK_CUR), 0)
    return b""


def read_reports(text: bytes) -> dict[bytes, dict[int, str]]:
    """Return what a driver reported, as Driver.report() writes it: the texts of events by kernel.

    `started` keeps only the kernel in hand, which was begun and has not ended.
    """
    reports: dict[bytes, dict[int, str]] = defaultdict(dict)
    # Any other line is none of the driver's
    pattern = rb"(?m)^(started|benchmark|done|error|lost|finished) ([0-9]{1,4}) (.*)\n"
    for event, number, said in re.findall(pattern, text):
        reports[b"started"].clear()
        reports[event][int(number)] = said.decode("unicode_escape", "replace")
    return reports


# --- Verdicts on a run ----------------------------------------------------------------------------

# What ncu says, mostly behind ==ERROR==, when every kernel will fail the same way; the remedy.
FATAL_TEXTS = {
    "ERR_NVGPUCTRPERM": "run as root or with CAP_SYS_ADMIN or CAP_PERFMON (a container: "
    "--cap-add=SYS_ADMIN), or load the driver with NVreg_RestrictProfilingToAdminUsers=0",
    "Cuda driver is not compatible with Nsight Compute": "use an ncu that matches the driver",
    "Nsight Compute failed to connect to the CUDA driver": "run on a node with an NVIDIA driver, "
    "with an ncu that is not newer than the driver",
    "Failed to initialize the profiler: LibraryNotLoaded": "use an ncu that knows this GPU, and a "
    "container that holds the counter library",
    "Profiling is not supported on device": "use another GPU or driver",
    "Insufficient driver version to profile on device": "use another GPU or driver",
    "Failed to open/create lock file|InterprocessLockFailed": "the lock file belongs to another "
    "user: set TMPDIR to a folder of your own",
    "Failed to create temporary file": "set TMPDIR to a folder that exists and has room",
    "(?:Failed to|Cannot) lock GPU clock frequencies": "add --ncu-args=--clock-control=none",
    "did not match any section": "correct --ncu-args",
    "Failed to find metric|Failed to access the following": "correct --metric, or the --metrics "
    "in --ncu-args: this GPU or ncu has none such",
    "does not exist or is not an executable": "correct --python",
    "The target application is not an executable binary": "correct --python",
}
FATAL_ERROR = rb"(?m)^==ERROR== .*(?:%s).*" % encode("|".join(FATAL_TEXTS))
# Said before the application has begun; what else ncu says is on stdout, behind ==ERROR==.
DRIVER_ERROR = rb"(?m)^(?:==ERROR== )?Nsight Compute failed to connect to the CUDA driver.*"
# The application was never started. ncu 2022 prints option errors on stderr without a prefix.
OPTION_ERROR = (
    rb"(?m)^(?:==ERROR== )?(?:unrecognised option|option is ambiguous|option '"
    rb"|the argument (?:for|\()).*"
)
APPLICATION_ENDED = rb"(?m)^==(?:ERROR|WARNING)== (?:The application returned|No kernels were)"
# Another profiler (DCGM) holds the counters for a moment. Comes in a variant that goes on
# "... or the user does not have permission", so this is looked for first.
PASSING_TEXT = rb"(?m)^==ERROR== .*driver resource was unavailable.*"
PASSING_PAUSES = (2.0, 4.0)
# GPUs without DRAM counters (Jetson, GB10) refuse the bandwidth metric when asked by name.
METRIC_REFUSED = (
    rb"(?m)^==ERROR== .*(?:Failed to find metric|Failed to access the following).*dram__bytes.*"
)
# Why one kernel failed, the most telling first. What the application said is added.
KERNEL_TROUBLES = {
    "the launch failed": rb"==ERROR== .*(LaunchFailed)",
    "the kernel's process failed": rb"==ERROR== (The application returned an error code \(\d+\))",
    "no kernel was profiled": rb"==WARNING== No kernels were profiled()",
}


def find_fatal(run: Run) -> Failure | None:
    """Return what ncu said if every other kernel would fail the same way."""
    if run.ended.startswith(CANNOT_START):
        remedy = "correct --ncu, or have fewer kernels in a --batch"
        return Failure(f"ncu {run.ended}", remedy=remedy)
    kind, match = "ncu cannot profile here", re.search(FATAL_ERROR, run.stdout)
    if not match and not run.begun:
        both = run.stdout + b"\n" + run.stderr
        kind, match = "ncu refused to start", re.search(DRIVER_ERROR, both)
        if not match and not re.search(APPLICATION_ENDED, run.stdout):
            match = re.search(OPTION_ERROR, both)
    if not match:
        return None
    said = match[0].decode("utf-8", "replace")
    remedies = (remedy for text, remedy in FATAL_TEXTS.items() if re.search(text, said))
    return Failure(kind, printable(match[0]), next(remedies, "correct --ncu-args"))


def find_trouble(run: Run) -> Failure | None:
    """Return why this kernel failed, where ncu or we ourselves say so."""
    last_words = printable(last_line(run.stderr))
    if run.ended:
        return Failure(run.ended, last_words)
    for kind, pattern in KERNEL_TROUBLES.items():
        match = re.search(rb"(?m)^" + pattern, run.stdout)
        if match:
            return Failure(kind, ": ".join(filter(None, (match[1].decode(), last_words))))
    return None


class Again(enum.Enum):
    """How to go on with a kernel that has had no turn of its own in a batch."""

    TOGETHER = "in a batch of those that are left"
    ALONE = "in a batch of its own"
    PLAINLY = "not by the driver at all"


def judge_plain(source: Source, run: Run) -> bytes | Failure:
    """Judge the run of one kernel by itself: the text of a valid log, or why there is none."""
    text = compose_text(run.stderr, run.stdout)
    parsed = parse_log(text, function=source.function)
    if isinstance(parsed, Failure):
        return find_trouble(run) or parsed
    return find_trouble(run) or text if run.ended else text


def judge_batch(sources: list[Source], run: Run) -> list[bytes | Failure | Again]:
    """Judge the run of a batch: for each of its kernels as judge_plain(), or how to go on."""
    page, reports = find_results(run.stdout), read_reports(run.reports)
    alone = len(sources) == 1
    return [
        judge_share(index, source, alone, page, reports, run)
        for index, source in enumerate(sources)
    ]


def judge_share(
    index: int,
    source: Source,
    alone: bool,
    page: list[Result],
    said: dict[bytes, dict[int, str]],
    run: Run,
) -> bytes | Failure | Again:
    """Judge what a batch brought one kernel: a report, and the results that bear its label."""
    finished = bool(said[b"finished"])
    error = said[b"error"].get(index)
    if error is not None:
        if "out of memory" in error and not alone:
            return Again.ALONE  # others of the batch can be why memory was short
        return Failure("the kernel failed", printable(last_line(encode(error))), words=error)
    benchmark = said[b"benchmark"].get(index)
    if benchmark == "":
        return Failure("no benchmark line")
    results = [result for result in page if result.name.startswith(b"%s%d/" % (LABEL, index))]
    outcome = judge_results(results, benchmark, source, run) if benchmark else None
    if isinstance(outcome, bytes) or (outcome and finished):
        return outcome
    if finished and not run.ended and not results and is_complete(run, page):
        return Again.PLAINLY  # torch 2.6 and later under TORCHINDUCTOR_PROFILE=1
    if not alone:
        in_hand = index in said[b"started"] or index in said[b"lost"] or not run.reports
        return Again.ALONE if in_hand else Again.TOGETHER
    lost = said[b"lost"].get(index)
    if lost is not None:
        return Failure("the context was lost", printable(last_line(encode(lost))), words=lost)
    if outcome:
        return outcome
    # A kernel can have closed what it has not opened: ncu ends well, and reports are missing
    lost_reports = not finished and run.status == 0
    return find_trouble(run) or (Again.PLAINLY if lost_reports else Failure("ncu ended early"))


def judge_results(
    results: list[Result], benchmark: str, source: Source, run: Run
) -> bytes | Failure | None:
    """Return a kernel's text if its one result is of its own function; None: absent or cut."""
    if len(results) != 1:
        kind = "the tuned call launched several kernels"
        return Failure(kind, str(len(results))) if results else None
    result = results[0]
    text = encode(benchmark) + b"\n" + run.stdout[result.begin : result.end]
    parsed = parse_log(text, function=source.function)
    if isinstance(parsed, Log):
        return text
    return parsed if result.end < len(run.stdout) else None  # ncu can have died while it printed


def is_complete(run: Run, page: list[Result]) -> bool:
    """Tell whether ncu has printed a whole result for each launch that it announced."""
    last = parse_result(run.stdout, page[-1]) if page else None
    announced = run.stdout.count(b'==PROF== Profiling "')
    return announced <= len(page) and not isinstance(last, Failure)


# --- Jobs and workers -----------------------------------------------------------------------------


@dataclass(eq=False, repr=False)
class Job:
    """What one ncu is started for: one kernel in a process of its own, or a batch."""

    sources: list[Source]
    batch: bool
    environment: dict[str, str]  # what is added to ours
    pauses: int = 0  # for a driver resource that was unavailable
    bandwidth: bool = True  # ncu is asked for it

    def header(self, source: Source, command: str) -> bytes:
        """Return the first lines of a log: what was measured, and how."""
        launch = "tuned" if self.batch else "first"
        text = f"# launch: {launch} launch\n# command: {command.translate({10: '?'})}\n"
        return b"# source sha256: %s\n" % source.sha256 + os.fsencode(text)


def make_jobs(sources: list[Source], options: Namespace, gpu: str | None) -> list[Job]:
    """Return what a worker does to measure some kernels."""
    jobs: dict[object, Job] = {}
    for source in sources:
        environment = {"LC_ALL": "C.UTF-8"}  # digits without separators
        devices = gpu and devices_for(gpu, source.device, options.workers)
        if devices:
            environment["CUDA_VISIBLE_DEVICES"] = devices
        batch = bool(options.batch and source.batchable)
        job = jobs.setdefault(devices if batch else source, Job([], batch, environment))
        job.sources.append(source)
    return [*jobs.values()]


HELD_PAUSE = 0.25  # seconds until kernels that another run holds are looked at again
TRIAL_KERNELS = 10  # when the first so many all fail, it is the set-up
SET_UP_REMEDY = (
    "this looks like the set-up: does --python name an interpreter that has torch, do --ncu-args "
    "leave ncu its metrics? Run one of the kernels by hand"
)


class Profiler:
    """Profiles kernels that have no log, each GPU by a worker of its own.

    A worker takes some kernels, and stays with them until each has a log or a failure.
    """

    def __init__(self, options: Namespace, stop: Stop, reporter: Reporter) -> None:
        self.options = options
        self.stop = stop
        self.reporter = reporter
        self.size = allow_descriptors(options.batch, len(options.workers))  # kernels at a time
        self.fatal: Failure | None = None  # what ended the run early
        self._bandwidth = True  # ncu knows the metric here, as far as we know
        self._unstored = False  # a log could not be written
        self._lock = threading.RLock()
        # What kernels said that failed before one was measured: it can be the set-up. None: it was
        self._doubtful: dict[str, bytes] | None = {}
        self._held: list[Kernel] = []  # by other runs
        self._elsewhere: list[Kernel] = []  # name a GPU that no worker can give them

    def profile_all(self, kernels: list[Kernel]) -> None:
        """Profile all, until it is done or stopped; late those that failed before.

        Last those that only one worker can. Raises UsageError for a failure that all would share.
        """
        in_order = sorted(kernels, key=lambda kernel: os.path.exists(kernel.error_path))
        self.reporter.begin = time.monotonic()
        self._profile_by(in_order, self.options.workers)
        self._profile_by(self._elsewhere, [None])
        fatal = self.fatal
        if fatal:
            raise UsageError(f"{fatal}\n  remedy: {fatal.remedy}\n  the output is untouched")
        self._write_doubtful()

    def _profile_by(self, kernels: list[Kernel], gpus: list[str | None]) -> None:
        """Share kernels out among workers, those that other runs hold when they are free."""
        told = False
        while kernels and not self.stop.requested:
            self._held = []
            waiting = kernels[::-1]
            workers = [threading.Thread(target=self._work, args=(waiting, gpu)) for gpu in gpus]
            try:
                for worker in workers:
                    worker.start()
            except RuntimeError as error:
                self.end(Failure("no worker", str(error), "raise the limit of ulimit -u"))
            for worker in workers:
                while worker.is_alive():
                    worker.join(0.2)  # signals are handled in between
                    self.reporter.tick()
            kernels = self._held
            if kernels and not told:
                self.reporter.tell("another run profiles some of these kernels; waiting")
                told = True
            self.stop.pause(HELD_PAUSE if kernels else 0)

    def _work(self, waiting: list[Kernel], gpu: str | None) -> None:
        """Be one worker: take kernels off the end of a list, fewer when few are left.

        Each is locked from the look-up that misses to the stored log.
        """
        while waiting and not self.stop.requested:
            with self._lock:
                size = min(self.size, -(-len(waiting) // len(self.options.workers)))
                kernels = [waiting.pop() for _ in range(size)]
            try:
                with contextlib.ExitStack() as locks:
                    prepared = [self._prepare(kernel, locks, gpu) for kernel in kernels]
                    jobs = make_jobs([s for s in prepared if s], self.options, gpu)
                    while jobs and not self.stop.requested:
                        jobs[:0] = self._run(jobs.pop(0))
            except Exception as error:
                self.end(Failure("internal error", repr(error), "please report it"))

    def _prepare(
        self, kernel: Kernel, locks: contextlib.ExitStack, gpu: str | None
    ) -> Source | None:
        """Lock a kernel and read its source; None when it is settled, or has to wait."""
        if not locks.enter_context(kernel_lock(kernel.path)):
            self._held.append(kernel)
            return None
        if not self.options.force:
            look_up(kernel, self.options.metrics)
            if kernel.log:
                self.reporter.report(kernel, 0.0)
                return None
        source = inspect_source(kernel)
        if isinstance(source, Failure):
            self._fail(kernel, source)
            return None
        if gpu is not None and devices_for(gpu, source.device, self.options.workers) is None:
            self._elsewhere.append(kernel)
            return None
        return source

    def _run(self, job: Job) -> list[Job]:
        """Run ncu once; settle what that settles, and return how to go on with the others."""
        job.bandwidth = self._bandwidth
        with unnamed_file() if job.batch else contextlib.nullcontext() as reports:
            command = ncu_command(self.options, job.sources, reports, job.bandwidth)
            run = run_child(command, job.environment, self.stop, self.options.timeout, reports)
        outcomes = (
            judge_batch(job.sources, run) if job.batch else [judge_plain(job.sources[0], run)]
        )
        rest: list[tuple[Source, Failure | Again]] = []
        for source, outcome in zip(job.sources, outcomes):
            if isinstance(outcome, bytes):
                self._store(job, source, outcome, run.seconds / len(job.sources))
            else:
                rest.append((source, outcome))
        return [] if run.ended == STOPPED or not rest else self._settle(job, run, rest)

    def _settle(self, job: Job, run: Run, rest: list[tuple[Source, Failure | Again]]) -> list[Job]:
        """Take what brought no log for failed, unless it is to be tried again."""
        left = dataclasses.replace(job, sources=[source for source, _ in rest])
        passing = re.search(PASSING_TEXT, run.stdout)
        # Differ where it is we, not the user, who asked for the bandwidth
        ways = [ncu_options(self.options, job.batch, asked) for asked in (job.bandwidth, False)]
        if passing and job.pauses < len(PASSING_PAUSES):
            self.stop.pause(PASSING_PAUSES[job.pauses])
            left.pauses += 1
            return [left]
        if not passing and ways[0] != ways[1] and re.search(METRIC_REFUSED, run.stdout):
            self._bandwidth = False
            return [left]
        fatal = None if passing else find_fatal(run)
        if fatal:
            self.end(fatal)
            return []
        again: dict[Again, list[Source]] = {way: [] for way in Again}
        for source, outcome in rest:
            if passing:
                outcome = Failure("a driver resource was unavailable", printable(passing[0]))
            if isinstance(outcome, Again):
                again[outcome].append(source)
            else:
                text = compose_text(run.stderr, run.stdout + encode(outcome.words))
                text = job.header(source, run.command) + text
                self._fail(source.kernel, outcome, run.seconds / len(rest), text)
        for source in again[Again.PLAINLY]:
            words = "its launch or its reports were lost in the batch; it is run by itself"
            self.reporter.tell(f"{printable(encode(source.kernel.path), 10_000)}: {words}")
        return go_on(job, again)

    def _store(self, job: Job, source: Source, text: bytes, seconds: float) -> None:
        """Put a valid log beside its kernel; if that cannot be, the figures are still used."""
        kernel = source.kernel
        own = ncu_command(self.options, [source], STDERR if job.batch else None, job.bandwidth)
        text = job.header(source, show_command(own, job.environment)) + text
        again = read_if_there(kernel.path)
        if again is not None and hash_source(again) != source.sha256:
            self._fail(kernel, Failure("the kernel file changed meanwhile"), seconds, text)
            return
        if self._write(kernel.log_path, text):
            with contextlib.suppress(OSError):
                os.unlink(kernel.error_path)
        log = parse_log(text, self.options.metrics)
        assert isinstance(log, Log)
        self._write_doubtful()
        with self._lock:
            kernel.log, kernel.profiled = log, True
            self.reporter.report(kernel, seconds)

    def _fail(
        self, kernel: Kernel, failure: Failure, seconds: float = 0.0, text: bytes = b""
    ) -> None:
        """Take a kernel for failed, and keep what ncu printed.

        Until a kernel was measured that is in doubt: when every kernel fails, none is suspect, and
        one that has an .ncu.err comes last in the next run.
        """
        if failure.kind == "no figures" and self.options.ncu_args:
            failure.detail += "; do --ncu-args leave out the sections that hold them?"
        text = text and b"# failed: %s\n" % encode(str(failure)) + text
        with self._lock:
            kernel.failure = failure
            self.reporter.report(kernel, seconds)
            if text and self._doubtful is not None and not os.path.exists(kernel.error_path):
                self._doubtful[kernel.error_path] = text
                if len(self._doubtful) == TRIAL_KERNELS:
                    kind = f"the first {TRIAL_KERNELS} kernels all failed, the last of them"
                    self.end(Failure(kind, f"{failure}{keep_aside(text)}", SET_UP_REMEDY))
                return
        if text:
            self._write(kernel.error_path, text)

    def _write_doubtful(self) -> None:
        """Put what failed kernels said beside them: it is theirs."""
        with self._lock:
            doubtful, self._doubtful = self._doubtful or {}, None
        for path, text in doubtful.items():
            self._write(path, text)

    def _write(self, path: str, text: bytes) -> bool:
        """Write a file beside a kernel; False where that cannot be."""
        try:
            write_whole(path, lambda stream: stream.write(text))
            return True
        except OSError as error:
            if not self._unstored:
                self._unstored = True
                self.reporter.warn(f"what ncu says cannot be stored ({path}: {error.strerror})")
            return False

    def end(self, failure: Failure) -> None:
        """End the run for a failure that every kernel would share."""
        self.fatal = self.fatal or failure
        self.stop.request()


def keep_aside(text: bytes) -> str:
    """Store what a kernel said where no later run looks; return words that name the file."""
    from tempfile import NamedTemporaryFile

    try:
        name = "parse_kernel_metadata_csv-"
        with NamedTemporaryFile(prefix=name, suffix=".txt", delete=False) as stream:
            stream.write(text)
    except OSError:
        return ""
    return f" (all that it said: {stream.name})"


def go_on(job: Job, again: dict[Again, list[Source]]) -> list[Job]:
    """Return the jobs for what a batch left over. Each round settles a kernel, so it ends."""
    together, alone = again[Again.TOGETHER], again[Again.ALONE]
    if len(together) == len(job.sources):  # it settled none
        together, alone = [], together
    return [
        *([dataclasses.replace(job, sources=together)] if together else []),
        *(dataclasses.replace(job, sources=[source]) for source in alone),
        *(Job([source], False, job.environment) for source in again[Again.PLAINLY]),
    ]


def allow_descriptors(batch: int, workers: int) -> int:
    """Return how many kernels a worker takes: each holds its lock by an open file."""
    import resource

    spare = 40  # files that are open besides
    old = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit, most = (FOR_EVER if n == resource.RLIM_INFINITY else n for n in old)
    if limit < workers * batch + spare:
        limit = min(workers * batch + spare, most)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (int(limit), old[1]))
    return max(1, int(min(batch, (limit - spare) // workers)))


def find_missing(options: Namespace, reporter: Reporter, stop: Stop) -> list[Kernel]:
    """Look every kernel up, and return those to profile; what that takes is found too."""
    options.workers = [None]
    if options.gpus is not None and not options.cached_only:
        options.workers = [*choose_gpus(options.gpus, os.environ, stop)]
    look_up_all(reporter.kernels, options.metrics, stop, reporter.tick)
    if options.force:  # forgets the logs, not what the sources say
        for kernel in reporter.kernels:
            kernel.log = None
    if options.cached_only or stop.requested:
        return []
    missing = [kernel for kernel in reporter.kernels if not kernel.log]
    if len(missing) >= TRIAL_KERNELS and missing == reporter.kernels:
        if not any(os.path.exists(kernel.path) for kernel in missing):
            raise UsageError(
                f"none of the {len(missing)} kernel files exists (the first is {missing[0].path}); "
                "was the cache moved? Its directory can be the input: -i DIRECTORY"
            )
    if any(isinstance(inspect_source(kernel), Source) for kernel in missing):
        options.ncu = find_ncu(options, os.environ)
        options.python = find_python(options.python, stop)
    return missing


def print_commands(missing: list[Kernel], options: Namespace, reporter: Reporter) -> int:
    """Print the commands that would run to stdout, however odd their paths; return the status."""
    inspected = [inspect_source(kernel) for kernel in missing]
    sources = [source for source in inspected if isinstance(source, Source)]
    size = options.batch or 1
    gpus = itertools.cycle(options.workers)
    commands: list[bytes] = []
    for at in range(0, len(sources), size):
        for job in make_jobs(sources[at : at + size], options, next(gpus)):
            command = ncu_command(options, job.sources, STDERR if job.batch else None)
            commands.append(os.fsencode(show_command(command, job.environment)) + b"\n")
    find_target("-", "")
    write_output("-", None, lambda stream: stream.writelines(commands))
    cannot = Counter(failure.kind for failure in inspected if isinstance(failure, Failure))
    reasons = "".join(f"; {count} cannot: {kind}" for kind, count in cannot.items())
    reporter.tell(
        f"{len(commands)} commands would run for {len(sources)} kernels; "
        f"{reporter.count()['cached']} are cached{reasons}"
    )
    return 0


# --- The summary ----------------------------------------------------------------------------------


def suggest(name: str, kernels: list[Kernel]) -> str:
    """Return what a name could mean that kernels' logs have a number for, empty if nothing."""
    import difflib

    texts = [read_if_there(kernel.log_path) or b"" for kernel in kernels[:10]]
    known = sorted(set().union(*map(list_names, texts)))[:1000]
    near = [n for n in known if n.endswith(f"/{name}") or n.startswith(f"{name}.")]
    plain = [] if "/" in name else [n for n in known if "/" not in n]
    for names in (plain, known):
        near = near or difflib.get_close_matches(name[:200], names)
    logs = [log for log in (parse_log(text, near) for text in texts) if isinstance(log, Log)]
    columns = zip(*(log.figures.split(",")[4:] for log in logs))
    found = [repr(other) for other, cells in zip(near, columns) if any(cells)]
    return " or ".join(found)


def warn_of_blanks(metrics: list[str], kernels: list[Kernel], reporter: Reporter) -> None:
    """Warn of metrics that logs have not, and say what can be done."""
    cells = {k: k.log.figures.split(",")[4:] for k in kernels if k.log and metrics}
    lacking: set[Kernel] = set()
    for at, name in enumerate(metrics):
        blank = [kernel for kernel in cells if not cells[kernel][at]]
        hint = suggest(name, blank) if blank and len(blank) == len(cells) else ""
        if hint:
            reporter.warn(f"no log has one number for {name!r}; is {hint} meant?")
        elif blank:
            lacking.update(blank)
    if lacking:
        cached = any(not kernel.profiled for kernel in lacking)
        reporter.warn(
            f"{len(lacking)} kernels have blank cells of --metric: their logs have no such number"
            + (" (--force profiles them again)" if cached else "")
        )


def sum_up(table: Table, reporter: Reporter, batch: int, seconds: float) -> None:
    """Warn once of what a reader of the figures must know, and tell the summary."""
    kernels, counts = reporter.kernels, reporter.count()
    logs = [kernel.log for kernel in kernels if kernel.log]
    chips = Counter(log.compute_capability for log in logs if log.compute_capability)
    generations = ", ".join(f"CC {chip} ({count} kernels)" for chip, count in sorted(chips.items()))
    blind = sum(not log.bandwidth for log in logs)
    misread = sum(kernel.claims for kernel in kernels if kernel.misread_gb)
    emptied = sum(kernel.had_figures for kernel in kernels if not kernel.log)
    warnings = {
        f"{blind} kernels have no bandwidth: their GPU has no DRAM counters": blind,
        f"the logs come from different GPU generations: {generations}": len(chips) > 1,
        f"kernel_args_num_gb of {misread} rows is too large: torch drops the exponent of small "
        "figures (5.6e-06 is read as 5.6)": misread,
        f"{counts['no log']} of {len(kernels)} kernels have no log": counts["no log"],
        f"{emptied} rows came with figures and are blank now: no valid log says so": emptied,
    }
    reporter.warn(*(text for text, holds in warnings.items() if holds))
    warn_of_blanks(table.figures[4:], kernels, reporter)
    failures = Counter(kernel.failure.kind for kernel in kernels if kernel.failure)
    why = ", ".join(f"{count} {kind}" for kind, count in failures.most_common())
    left_out = table.foreach + len(table.torn)
    tuned = sum(log.tuned for log in logs)
    first = len(logs) - tuned
    hint = " (--force profiles them again)" if first else ""
    lines = (
        f"rows     {len(table.rows):>8}",
        left_out and f"left out {left_out:>8}  {table.foreach} foreach, {len(table.torn)} torn",
        f"kernels  {len(kernels):>8}",
        f"cached   {counts['cached']:>8}",
        f"profiled {counts['profiled']:>8}",
        f"failed   {counts['failed']:>8}  {why}".rstrip(),
        f"no log   {counts['no log']:>8}",
        (tuned or batch) and f"launch   {tuned:>8}  tuned, {first} first launches{hint}",
        f"time     {show_time(seconds):>8}",
    )
    reporter.tell("\n".join(line for line in lines if line))


# --- The command line -----------------------------------------------------------------------------


MANUAL = f"""\
usage: parse_kernel_metadata_csv.py -i TABLE -o FILE [OPTION]...

{__doc__}
input and output:
  -i TABLE, --input-csv TABLE
                torch's kernel_metadata table, - for stdin; or an Inductor cache directory, whose
                kernel files are read instead (torch 2.6 and later cannot write the table)
  -o FILE, --output-csv FILE
                the table with the four columns added, - for stdout; replaced whole, at the end
  --model-name NAME
                the model_name of every row that is made from a directory (default: blank)
  --metric NAME
                one column more: a metric (sm__throughput.avg.pct_of_peak_sustained_elapsed), or a
                row that ncu prints (Registers Per Thread, Occupancy/Achieved Occupancy), in base
                units; may be given several times
  --table-only  write the table that a directory makes, without figures; profile nothing
  -q, --quiet   say only what went wrong

what is profiled:
  --force       profile again what has a log
  --cached-only
                fill in what has a log; never start ncu
  --dry-run     print the ncu commands that would run, ready to paste; run none, write nothing
  --quick       collect the two metrics that the columns need, in one pass, not --set full
  --batch N     profile N kernels in each process, and of each the tuned launch, not the first

where it runs:
  --gpus LIST   one worker for each GPU: 0,1,2 (indices into CUDA_VISIBLE_DEVICES where that is
                set), UUIDs, or all (default: one worker, environment untouched)
  --shard I/N   do only the I-th of N parts, I from 1; merge with --cached-only and no --shard

how ncu is run:
  --ncu PATH    Nsight Compute's command line (default: ncu on PATH, in $CUDA_HOME/bin,
                /usr/local/cuda/bin, or the newest /opt/nvidia/nsight-compute/*)
  --ncu-args ARGS
                more options for ncu, split as a shell would; one that is also ours displaces
                ours; --set or --section displaces --set full, --metrics are added to it.
                Example: --ncu-args=--clock-control=none
  --python PATH
                the interpreter that runs the kernels: one with torch (default: the one that
                runs this)
  --timeout SECONDS
                end a kernel that takes longer, 0: never (default: 600)

  -h, --help    print this
  --version     print the version

exit status:
  0  every row has its figures
  1  the output is complete, but rows were left out as torn, kernels failed, or
     (with --cached-only) had no log
  2  wrong usage, input or environment; the output is as it was
  129, 130, 143  stopped by HUP, INT or TERM: logs are kept, the output is as it was, and the
     same command goes on; a second INT kills at once

example:
  parse_kernel_metadata_csv.py -i metric_table_kernel_metadata.csv -o augmented.csv
  parse_kernel_metadata_csv.py -i /tmp/torchinductor_$USER -o table.csv --table-only
  parse_kernel_metadata_csv.py -i table.csv -o augmented.csv --quick --batch 32 --gpus all
"""


class Parser(argparse.ArgumentParser):
    """Has a manual that is written by hand, and says what is wrong in one line."""

    def format_help(self) -> str:
        return MANUAL

    def error(self, message: str) -> NoReturn:
        dash = "expected one argument" in message
        hint = "; write --option=VALUE where the value begins with a dash" if dash else ""
        raise UsageError(f"{message}{hint} (see --help)")


def parse_batch(text: str) -> int:
    """Return a batch's size; all its paths must fit on one command line."""
    if not re.fullmatch("[0-9]+", text) or not 1 <= int(text) <= 500:
        raise UsageError(f"--batch: {text!r} is not a number from 1 to 500")
    return int(text)


def parse_shard(text: str) -> tuple[int, int]:
    """Return I and N of "I/N"."""
    match = re.fullmatch("([0-9]+)/([0-9]+)", text)
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise UsageError(
            f"--shard: {text!r} is not I/N with I from 1 to N: shards are 1-based, as in "
            '--array=1-8 with --shard "$SLURM_ARRAY_TASK_ID/8"'
        )
    return int(match[1]), int(match[2])


def parse_timeout(text: str) -> float:
    """Return seconds."""
    with contextlib.suppress(ValueError):
        if 0 <= float(text) < FOR_EVER:
            return float(text)
    raise UsageError(f"--timeout: {text!r} is not a number of seconds")


def split_arguments(text: str) -> list[str]:
    """Return words as a shell splits them."""
    import shlex

    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(f"--ncu-args: {text!r}: {error}") from None


def parse_options(arguments: list[str]) -> Namespace:
    """Return the options, those that the manual lists; raise UsageError for wrong ones."""
    # Looking for translations of its few words on disk takes argparse longer than all the rest
    argparse._ = str  # type: ignore[attr-defined]
    parser = Parser(prog="parse_kernel_metadata_csv.py", allow_abbrev=False)
    add = parser.add_argument
    add("--version", action="version", version=f"{parser.prog} {__version__}")
    add("-i", "--input-csv", "--input", dest="input", required=True)
    add("-o", "--output-csv", "--output", dest="output", required=True)
    add("-q", "--quiet", action="store_true")
    for flag in ("--table-only", "--force", "--cached-only", "--dry-run", "--quick"):
        add(flag, action="store_true")
    for name, default in (("--model-name", ""), ("--ncu", ""), ("--python", ""), ("--gpus", None)):
        add(name, default=default)
    add("--metric", dest="metrics", action="append", default=[])
    add("--batch", type=parse_batch, default=0)
    add("--shard", type=parse_shard)
    add("--ncu-args", type=split_arguments, default=[])
    add("--timeout", type=parse_timeout, default=600.0)
    options = parser.parse_args(arguments)
    if options.table_only and options.dry_run:
        raise UsageError("--table-only and --dry-run exclude each other")
    if options.force and options.cached_only:
        raise UsageError("--force and --cached-only exclude each other")
    if options.table_only and options.metrics:
        raise UsageError("--table-only and --metric exclude each other")
    check_metrics(options.metrics, options.quick)
    return options


def check_metrics(names: list[str], quick: bool) -> None:
    """Raise UsageError for what cannot be a column."""
    for name in names:
        wrong = [
            (names.count(name) > 1, "is given twice"),
            (name in COLUMNS, "is a column already"),
            (not name or name != " ".join(name.split()), "is no name: spaces, or nothing"),
            (is_metric(name) and re.search("[:, ]", name), "is not one metric"),
            (quick and not is_metric(name), "is a row of the full set, which --quick leaves out"),
        ]
        for holds, what in wrong:
            if holds:
                raise UsageError(f"--metric: {name!r} {what}")


def load_table(options: Namespace, reporter: Reporter) -> Table:
    """Return the input's rows, and say which were left out."""
    path = options.input
    if os.path.isdir(path):
        return read_directory(path, options.model_name, reporter, options.metrics)
    if path == "-" and sys.stdin is None:
        raise UsageError("cannot read stdin: it is closed")
    try:
        # Bytes that are no text survive in the cells
        with open(0 if path == "-" else path, "rb", closefd=path != "-") as stream:
            if options.table_only:
                raise UsageError("--table-only makes a table from a directory: name one with -i")
            lines = io.TextIOWrapper(stream, ENCODING, "surrogateescape", newline="")
            table = read_table(lines, os.path.dirname(path), options.metrics)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    reporter.warn(*(f"line {n} is torn or names no kernel file; left out" for n in table.torn))
    if table.torn and not table.rows:
        raise UsageError(f"{path} has no usable row")
    return table


def augment(options: Namespace, reporter: Reporter) -> int:
    """Read the table, look up or measure every kernel, write the table; return the status."""
    begin = time.monotonic()
    table = load_table(options, reporter)
    if options.table_only:
        table.figures = []
    reporter.kernels = table.keep_shard(options.shard)
    if "SLURM_ARRAY_TASK_ID" in os.environ and not options.shard:
        reporter.tell('hint: in a job array, --shard "$SLURM_ARRAY_TASK_ID/N" does one part of N')
    fill = functools.partial(write_table, table=table)
    stop = Stop()
    with stop.on_signals():
        target = None if options.dry_run else find_target(options.output, options.input)
        if not options.table_only:
            try:
                missing = find_missing(options, reporter, stop)
            except UsageError:
                if not stop.signal:  # else what was asked could not answer any more
                    raise
            if not (stop.requested or options.dry_run):
                Profiler(options, stop, reporter).profile_all(missing)
        if stop.requested:
            again = "the same command without --force" if options.force else "the same command"
            reporter.say(
                f"stopped by {signal.Signals(stop.signal).name}: {reporter.done()} of "
                f"{len(reporter.kernels)} kernels are done; {again} goes on from there"
            )
            return 128 + stop.signal
        if target is not None:
            write_output(options.output, target, fill)
    # The reader of a pipe can keep us waiting: signals end that as ever
    if options.dry_run:
        return print_commands(missing, options, reporter)
    if target is None:
        write_output(options.output, target, fill)
    if options.table_only:
        reporter.tell(f"{len(table.rows)} rows; left out: {table.foreach} foreach")
        return 0
    sum_up(table, reporter, options.batch, time.monotonic() - begin)
    return int(bool(table.torn) or any(not kernel.log for kernel in reporter.kernels))


def main() -> int:
    """Run the program, and return its exit status."""
    if sys.argv[1:2] == [DRIVER_OPTION]:
        return drive_batch(sys.argv[2:])
    take_interrupts()
    # What a parent can have done to the standard streams and to waiting for children is undone
    for descriptor in range(3):
        try:
            # Half of what is written to a stream that does not block can be lost
            os.set_blocking(descriptor, True)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # or a file of ours takes the place of stderr
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    gc.set_threshold(100_000)  # a large table is many small objects, none of them garbage
    reporter = Reporter()
    try:
        options = parse_options(sys.argv[1:])
        reporter.quiet = options.quiet
        return augment(options, reporter)
    except (UsageError, OSError) as error:  # OSError: the current directory is gone, say
        reporter.say(f"error: {error}")
        return 2


if __name__ == "__main__":
    sys.exit(main())
