"""What the test modules share: a scrubbed environment, kernel files, tables, the stand-in's log."""

from __future__ import annotations

import base64
import csv
import fcntl
import hashlib
import json
import os
import pty
import re
import runpy
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
import unittest
import uuid
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any, Callable, Optional, Union

TESTS = Path(__file__).resolve().parent
PROGRAM = TESTS.parent / "parse_kernel_metadata_csv.py"
STAND_IN = TESTS / "ncu"
STUB = TESTS / "stub"
FAULTS = TESTS / "faults"

# The columns that torch 2.3 writes, and the four that the program adds.
COLUMNS = (
    "model_name kernel_name kernel_path kernel_category size_hints reduction_hint line_of_code "
    "num_load num_store num_for_loop num_atomic_add num_args xnumel ynumel rnumel "
    "kernel_args_num_gb"
).split()
FIGURES = (
    "latency_us_under_profiling",
    "ncu_duration_us",
    "ncu_mem_bw_gbps",
    "ncu_mem_accessed_gb",
)
TOKEN = "PARSE_TEST_TOKEN"

# A shell starts what is in the background with INT ignored, and the program would leave it so.
for _signal in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    if signal.getsignal(_signal) == signal.SIG_IGN:
        signal.signal(_signal, signal.SIG_DFL)

Environment = Mapping[str, Optional[str]]
RowLike = Union[Path, Mapping[str, object]]

# The stand-in's own rule for figures; run_path, unlike an import, leaves no compiled copy behind.
_stand_in = runpy.run_path(str(STAND_IN))

# --- kernel files ----------------------------------------------------------------------------

# Kernel files must run without torch and triton: these classes stand for what a real file imports.
SHIM = """\
import os


class Launcher:
    def __init__(self, function):
        self.name = function.__name__

    def run(self, *args, **options):
        {launch}


class triton:
    jit = staticmethod(lambda function: function)


class triton_heuristics:
    {category} = staticmethod(lambda *args, **options: Launcher)


class tl:
    constexpr = int

"""

# Tells the stand-in of the launch and waits until it has "profiled" it; alone, does nothing.
LAUNCH = """\
pipes = os.environ.get("NCU_STAND_IN_EVENTS")
        if pipes:
            import json
            event = {"event": "launch", "name": self.name, "file": __file__}
            try:
                os.write(int(pipes.split(",")[0]), json.dumps(event).encode() + b"\\n")
                os.read(int(pipes.split(",")[1]), 1)
            except OSError:
                os.environ.pop("NCU_STAND_IN_EVENTS", None)"""
LAUNCH_BY_TORCH = "torch.stand_in.launch(self.name, __file__)"

KERNEL = """\
@triton_heuristics.{category}(
    size_hints=[1024],
    filename=__file__,
    triton_meta={{'signature': {{0: '*fp32', 1: '*fp32', 2: 'i32'}}, 'device': {device}}},
    inductor_meta={{'kernel_name': '{name}', 'kernel_num_gb': {num_gb}}},
    min_elem_per_thread=0
)
@triton.jit
def {function}(in_ptr0, out_ptr0, xnumel, XBLOCK : tl.constexpr):
    xnumel = 1000
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:]
    xmask = xindex < xnumel
    tmp0 = tl.load(in_ptr0 + (xindex), xmask)
    tl.store(out_ptr0 + (xindex), tmp0, xmask)

"""

HARNESS = """
launched = []


def get_args():
    {args}


def call(args):
{in_call}    with {guard}:
        {set_device}
        for _ in range({launches}):
            launched.append({function}.run(*args, 1000, stream=0))


def benchmark_all_configs(args):
    return {{}}


if __name__ == '__main__':
{main}    args = get_args()
    for _ in range(3):
        call(args)
    ms = {ms}
    num_gb = {num_gb}
    gb_per_s = num_gb / (ms / 1e3)
{line}"""
LINE = '    print(f"{ms:.3f}ms    {num_gb:.3f}GB    {gb_per_s:.2f}GB/s")'


def indented(code: str) -> str:
    """Code as the start of a function's body."""
    return "".join(f"    {line}\n" for line in code.splitlines())


def kernel_source(
    name: str,
    *,
    directives: str = "",
    harness: bool = True,
    ms: float = 0.027,
    num_gb: float = 0.004,
    torch: bool = False,
    category: str = "pointwise",
    function: str = "",
    top: str = "",
    in_call: str = "",
    main: str = "",
    line: str | None = None,
    launches: int | str = 1,
    device: int = 0,
) -> str:
    """A kernel file as TorchInductor writes it, with stand-ins for what it would import.

    `directives` are words for the stand-in ncu.  `top`, `in_call` and `main` are code: at the start
    of the file, of call() and of the main block.  `line` replaces the print of the benchmark line
    ("" for none).  `launches` is the number in each call, or an expression of it; `launched` lists
    what was launched so far.
    """
    function = function or name
    launch = LAUNCH_BY_TORCH if torch else LAUNCH
    parts = [f"# ncu: {directives}\n" if directives else "", top + "\n" if top else ""]
    if torch:
        parts.append("import torch\nfrom torch._dynamo.testing import rand_strided\n")
    parts.append(SHIM.replace("{launch}", launch).replace("{category}", category))
    parts.append(
        KERNEL.format(category=category, name=name, function=function, num_gb=num_gb, device=device)
    )
    tensor = f"rand_strided((1000,), (1,), device='cuda:{device}', dtype=torch.float32)"
    if harness:
        parts.append(
            HARNESS.format(
                args=f"return {tensor}, {tensor}," if torch else "return [0.0], [0.0],",
                in_call=indented(in_call),
                guard=f"torch.cuda._DeviceGuard({device})" if torch else "open(os.devnull)",
                set_device=f"torch.cuda.set_device({device})" if torch else "pass",
                launches=launches,
                function=function,
                main=indented(main),
                ms=ms,
                num_gb=num_gb,
                line=LINE + "\n" if line is None else indented(line),
            )
        )
    return "".join(parts)


def cache_name(name: str) -> str:
    """A file name as the cache of TorchInductor has them: two letters for the folder, a hash."""
    digest = base64.b32encode(hashlib.sha256(name.encode()).digest()).decode().lower()[:51]
    return f"{digest[1:3]}/c{digest}.py"


def expected_figures(kernel: Path, *, trial: bool = False) -> dict[str, float | None]:
    """The four values that the stand-in's exact output gives for a kernel file.

    `trial` asks for those of the first launch, where the file has a `trial-duration` of its own.
    """
    words = _stand_in["read_directives"](str(kernel))
    nanoseconds, hundredths = _stand_in["figures"](str(kernel))
    if trial and "trial-duration" in words:
        nanoseconds = int(words["trial-duration"])
    milliseconds = re.findall(r"^    ms = (\S+)$", kernel.read_text(), re.M)
    printed = Decimal(f"{float(milliseconds[0]):.3f}") if milliseconds else None
    duration = Decimal(nanoseconds) / 1000
    bandwidth = Decimal(hundredths) / 10**11
    known = not {"na", "no-bandwidth-row"} & set(words)
    values = (
        None if printed is None else float(printed * 1000),
        float(duration),
        float(bandwidth) if known else None,
        float(bandwidth * duration / 10**6) if known else None,
    )
    return dict(zip(FIGURES, values))


def strays(folder: Path) -> list[str]:
    """Files below a folder that are neither kernels, nor cached logs, nor tables."""
    kept = (".py", ".ncu", ".ncu.err", ".csv")
    found = (path for path in folder.rglob("*") if not path.is_dir())
    return sorted(str(path.relative_to(folder)) for path in found if not path.name.endswith(kept))


def read_rows(path: Path) -> list[dict[str, str]]:
    """A table as dicts."""
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def wait_for(condition: Callable[[], Any], timeout: float = 60.0) -> Any:
    """Poll until the condition holds, and return what it gave; AssertionError if it never does."""
    end = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"nothing after {timeout} s: {condition}")
        time.sleep(0.01)


# --- the test case ---------------------------------------------------------------------------


class Case(unittest.TestCase):
    """A test with a folder and an environment of its own, and nothing left running after it."""

    maxDiff = None

    def setUp(self) -> None:
        self.tmp = Path(tempfile.mkdtemp(prefix="parse-test-")).resolve()
        self.cache = self.tmp / "cache"
        self.log = self.tmp / "ncu.jsonl"
        for name in ("cache", "home", "tmp"):
            (self.tmp / name).mkdir()
        self.token = uuid.uuid4().hex
        self.environment: dict[str, str] = self._environment()
        self.addCleanup(shutil.rmtree, self.tmp, ignore_errors=True)
        self.addCleanup(self._end_survivors)

    def _environment(self) -> dict[str, str]:
        """Nothing of the caller's settings, except what measures coverage."""
        keep = {name: value for name, value in os.environ.items() if name.startswith("COVERAGE_")}
        if "COVERAGE_PROCESS_START" in keep and "PYTHONPATH" in os.environ:
            keep["PYTHONPATH"] = os.environ["PYTHONPATH"]
        folders = (str(TESTS), os.path.dirname(os.path.realpath(sys.executable)))
        return {
            **keep,
            "PATH": ":".join((*folders, "/usr/bin", "/bin")),
            "HOME": str(self.tmp / "home"),
            "TMPDIR": str(self.tmp / "tmp"),
            "PYTHONDONTWRITEBYTECODE": "1",
            "NCU_STAND_IN_LOG": str(self.log),
            TOKEN: self.token,
        }

    def use_torch(self) -> None:
        """Put the stub torch on PYTHONPATH for the rest of the test."""
        before = self.environment.get("PYTHONPATH")
        self.environment["PYTHONPATH"] = ":".join([str(STUB), *([before] if before else [])])

    def merged(self, env: Environment | None) -> dict[str, str]:
        """The test's environment with changes; None removes a name."""
        both: dict[str, str | None] = {**self.environment, **(env or {})}
        return {name: value for name, value in both.items() if value is not None}

    # Files

    def write(self, path: str | Path, text: str) -> Path:
        """Write a file, relative to the test's folder, and the folders above it."""
        full = self.tmp / path
        full.parent.mkdir(parents=True, exist_ok=True)
        full.write_text(text, encoding="utf-8")
        return full

    def kernel(
        self, name: str, *, folder: Path | None = None, file: str = "", **options: Any
    ) -> Path:
        """Write a kernel file (see kernel_source) into the cache, or as `file` into `folder`."""
        path = (folder or self.cache) / (file or cache_name(name))
        return self.write(path, kernel_source(name, **options))

    def row(self, kernel: Path, **columns: object) -> dict[str, str]:
        """The table's row of a kernel file, with some columns set otherwise."""
        text = kernel.read_text() if kernel.exists() else ""
        found = re.search(r"'kernel_name': '(\w+)'", text) or re.search(r"def (triton\w*)", text)
        category = re.search(r"^@triton_heuristics\.(\w+)", text, re.M)
        values: dict[str, object] = dict.fromkeys(COLUMNS, "")
        values.update(
            kernel_name=found.group(1) if found else kernel.stem,
            kernel_path=kernel,
            kernel_category=category.group(1) if category else "pointwise",
            size_hints="[1024]",
            line_of_code=7,
            num_load=1,
            num_store=1,
            num_for_loop=0,
            num_atomic_add=0,
            num_args=4,
            xnumel=1000,
            kernel_args_num_gb="0.004000",
        )
        values.update(columns)
        return {name: str(value) for name, value in values.items()}

    def table(
        self,
        rows: Iterable[RowLike],
        file: str = "metric_table_kernel_metadata.csv",
        columns: Sequence[str] = COLUMNS,
    ) -> Path:
        """Write a table as torch 2.3 does; a row is a kernel file or a dict."""
        path = self.tmp / file
        with open(path, "w", newline="", encoding="utf-8") as stream:
            writer = csv.DictWriter(stream, columns, restval="", extrasaction="ignore")
            writer.writeheader()
            for row in rows:
                writer.writerow(self.row(row) if isinstance(row, Path) else row)
        return path

    def rows(self, path: Path) -> list[dict[str, str]]:
        """A table as dicts."""
        return read_rows(path)

    def assert_figures(self, row: Mapping[str, str], kernel: Path, *, trial: bool = False) -> None:
        """The row holds the four values of the kernel file; blank where there is none."""
        for name, value in expected_figures(kernel, trial=trial).items():
            if value is None:
                self.assertEqual(row[name], "", name)
            else:
                self.assertAlmostEqual(float(row[name]) / (value or 1), bool(value), 9, name)

    # Running

    def run_program(
        self,
        *args: object,
        env: Environment | None = None,
        stdin: str | None = None,
        cwd: Path | None = None,
        timeout: float = 60,
        text: bool = True,
        python: Sequence[str] = (),
    ) -> subprocess.CompletedProcess[Any]:
        """Run the program to its end; `python` are options of the interpreter."""
        source: dict[str, Any] = (
            {"stdin": subprocess.DEVNULL} if stdin is None else {"input": stdin}
        )
        return subprocess.run(
            [sys.executable, *python, str(PROGRAM), *map(str, args)],
            env=self.merged(env),
            cwd=cwd or self.tmp,
            timeout=timeout,
            capture_output=True,
            text=text,
            **source,
        )

    def start_program(
        self,
        *args: object,
        env: Environment | None = None,
        cwd: Path | None = None,
        **options: Any,
    ) -> subprocess.Popen[str]:
        """Start the program in a session of its own, its output in pipes unless told otherwise."""
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        process = subprocess.Popen(
            [sys.executable, str(PROGRAM), *map(str, args)],
            env=self.merged(env),
            cwd=cwd or self.tmp,
            stdin=options.pop("stdin", subprocess.DEVNULL),
            start_new_session=True,
            universal_newlines=True,
            **options,
        )
        self.addCleanup(_close, process)
        return process

    def run_ncu(
        self, *args: object, env: Environment | None = None, timeout: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Run the stand-in itself."""
        return subprocess.run(
            [str(STAND_IN), *map(str, args)],
            env=self.merged(env),
            cwd=self.tmp,
            timeout=timeout,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )

    def run_in_pty(
        self,
        *args: object,
        env: Environment | None = None,
        timeout: float = 60,
        size: tuple[int, int] = (24, 80),
        type_after: tuple[bytes, bytes] | None = None,
    ) -> tuple[int, bytes]:
        """Run the program on a terminal of that many lines and columns; its status and output.

        `type_after=(marker, keys)` types the keys once the marker has been printed.
        """
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
        process = subprocess.Popen(
            [sys.executable, str(PROGRAM), *map(str, args)],
            env=self.merged({"TERM": "xterm", **(env or {})}),
            cwd=self.tmp,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(theirs)
        try:
            return _converse(process, ours, timeout, type_after)
        finally:
            os.close(ours)
            _close(process)

    # What happened

    def calls(self) -> list[dict[str, Any]]:
        """Each run of the stand-in: what it logged at its start, updated by what it logged last.

        Has `started` and `ended` (None if it was killed), and `events` (empty until the end).
        """
        runs: dict[int, dict[str, Any]] = {}
        for line in self.log.read_text().splitlines(True) if self.log.exists() else []:
            if not line.endswith("\n"):  # it is just being written
                break
            entry = json.loads(line)
            if entry["event"] == "start":
                runs[entry["pid"]] = {
                    **entry,
                    "started": entry["time"],
                    "ended": None,
                    "events": [],
                }
            elif entry["event"] == "end":
                runs[entry["pid"]].update(entry, ended=entry["time"])
        return list(runs.values())

    def calls_for(self, kernel: Path) -> list[dict[str, Any]]:
        """The runs of one kernel file alone."""
        return [call for call in self.calls() if call["kernel"] == str(kernel)]

    def survivors(self) -> list[str]:
        """Processes of this test that are alive: "pid command"."""
        return [f"{process} {command}" for process, command in self._alive()]

    def _alive(self) -> list[tuple[int, str]]:
        mark = f"{TOKEN}={self.token}".encode()
        found = []
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                try:
                    environment = Path(f"/proc/{entry}/environ").read_bytes()
                    command = Path(f"/proc/{entry}/cmdline").read_bytes()
                except OSError:  # it has just ended, or it is another user's
                    continue
                if mark in environment.split(b"\0"):
                    found.append((int(entry), command.replace(b"\0", b" ").decode().strip()))
        return found

    def _end_survivors(self) -> None:
        for process, _ in self._alive():
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                pass


def _close(process: subprocess.Popen[Any]) -> None:
    """End a process that its test left running, and close its pipes."""
    if process.poll() is None:
        process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream:
            stream.close()


def _converse(
    process: subprocess.Popen[bytes],
    terminal: int,
    timeout: float,
    type_after: tuple[bytes, bytes] | None,
) -> tuple[int, bytes]:
    """Collect what a process prints on a terminal until it closes it."""
    output, end = b"", time.monotonic() + timeout
    while True:
        if not select.select([terminal], [], [], max(0.0, end - time.monotonic()))[0]:
            raise AssertionError(f"still running after {timeout} s: {output!r}")
        try:
            data = os.read(terminal, 65536)
        except OSError:  # EIO: nobody holds the other end any more
            data = b""
        if not data:
            return process.wait(timeout=60), output
        output += data
        if type_after and type_after[0] in output:
            os.write(terminal, type_after[1])
            type_after = None


def together(jobs: Iterable[Callable[[], Any]]) -> list[Any]:
    """Do several things at a time, one for each CPU; what they gave, in their order."""
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        return [future.result() for future in [pool.submit(job) for job in jobs]]
