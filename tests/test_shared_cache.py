"""Several runs on one cache: each kernel profiled once; a slow file system read by many threads."""

from __future__ import annotations

import fcntl
import os
import subprocess
from pathlib import Path

from tests.runs import NAME, RunCase
from tests.support import strays, wait_for
from tests.test_gpus import MEET

GATE = """\
import pathlib, time
pathlib.Path({here!r}).touch()
give_up = time.monotonic() + 60
while not pathlib.Path({open!r}).exists() and time.monotonic() < give_up:
    time.sleep(0.01)
"""
NO_LOCKS = """\
import errno, fcntl, os

def flock(descriptor, operation):
    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

fcntl.flock = fcntl.lockf = flock
"""
# Each open takes a while, and tells how many are under way at once. On a "fast" disk the clocks
# are slow instead, so that a busy machine does not look like a slow disk.
OPENS = """\
import atexit, builtins, io, os, threading, time

DELAY = {delay}
lock = threading.Lock()
now = most = 0

def count(step):
    global now, most
    with lock:
        now += step
        most = max(now, most)

def slow(function):
    def opens(path, *more, **named):
        if not str(path).startswith({cache!r}):
            return function(path, *more, **named)
        count(1)
        try:
            sleep(DELAY)
            return function(path, *more, **named)
        finally:
            count(-1)
    return opens

def tell():
    with real_open({report!r}, "w") as file:
        file.write(str(most))

sleep, real_open = time.sleep, io.open
os.open, builtins.open = slow(os.open), slow(open)
atexit.register(tell)
if not DELAY:
    for name in ("perf_counter", "monotonic", "time"):
        clock = getattr(time, name)
        setattr(time, name, lambda clock=clock, begin=clock(): begin + (clock() - begin) / 1000)
"""


class SharedCase(RunCase):
    """Programs side by side."""

    def start(self, kernels: list[Path], name: str, *options: object) -> subprocess.Popen[str]:
        """Start a run that writes its output under that name."""
        table = self.table(kernels, f"{name}.in.csv")  # of its own: the others are being read
        return self.start_program("-i", table, "-o", self.tmp / f"{name}.csv", *options)

    def finish(self, process: subprocess.Popen[str], name: str, kernels: list[Path]) -> str:
        """Wait for a run's good end; its output is whole. Returns what it said."""
        _, said = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0, said)
        self.assertNotIn("Traceback", said)
        self.out = self.tmp / f"{name}.csv"
        self.assert_output(kernels)
        return said

    def assert_each_once(self, kernels: list[Path]) -> None:
        """Each kernel was given to ncu once, and nothing is left over."""
        paths = [word for call in self.calls() for word in call["argv"]]
        self.assertEqual([paths.count(str(kernel)) for kernel in kernels], [1] * len(kernels))
        self.assertEqual((strays(self.cache), self.survivors()), ([], []))
        left = {path.suffix for path in self.cache.rglob("*") if path.is_file()}
        self.assertEqual(left, {".py", ".ncu"})


class SideBySideTest(SharedCase):
    """Runs that were started together."""

    def meet(self, runs: int, *options: object, size: int = 1) -> None:
        """Start runs on a cold cache, none of which ends before each has had a kernel."""
        place = self.tmp / "meet"
        place.mkdir()
        kernels = self.kernels(10, torch=bool(options))
        for number in range(runs):
            name = f"{NAME}{number * size}"
            main = MEET.format(place=str(place), name=name, count=runs)
            kernels[number * size] = self.kernel(name, main=main, torch=bool(options))
        started = [(self.start(kernels, f"{n}", *options), f"{n}") for n in range(runs)]
        for process, name in started:
            self.finish(process, name, kernels)
        self.assertEqual(len({(self.tmp / f"{n}.csv").read_bytes() for n in range(runs)}), 1)
        self.assert_each_once(kernels)

    def test_two(self) -> None:
        self.meet(2)

    def test_four(self) -> None:
        self.meet(4)

    def test_batches(self) -> None:
        self.use_torch()
        self.meet(2, "--quick", "--batch", "4", size=4)

    def test_a_held_kernel_is_waited_for(self) -> None:
        """Everything else is done first; then what the other run has stored is found."""
        here, gate = self.tmp / "here", self.tmp / "open"
        code = GATE.format(here=str(here), open=str(gate))
        kernels = self.kernels(4)
        kernels[0] = self.kernel(f"{NAME}0", main=code)
        first = self.start(kernels, "first")
        wait_for(here.exists)
        second = self.start(kernels, "second")
        wait_for(lambda: all(k.with_suffix(".ncu").exists() for k in kernels[1:]))
        self.assertIsNone(second.poll())
        gate.touch()
        self.finish(first, "first", kernels)
        said = self.finish(second, "second", kernels)
        self.assertRegex(said, r"profiled +3\n")
        self.assertRegex(said, r"cached +1\n")
        self.assert_each_once(kernels)

    def test_one_is_killed(self) -> None:
        """The others take over the kernel in its hand."""
        here, gate = self.tmp / "here", self.tmp / "open"
        code = GATE.format(here=str(here), open=str(gate))
        kernels = self.kernels(8)
        kernels[2] = self.kernel(f"{NAME}2", main=code)
        first = self.start(kernels, "first")
        wait_for(here.exists)
        others = [(self.start(kernels, name), name) for name in ("second", "third")]
        rest = [kernel for kernel in kernels if kernel != kernels[2]]
        wait_for(lambda: all(kernel.with_suffix(".ncu").exists() for kernel in rest))
        self.assertEqual(len(self.calls_for(kernels[2])), 1, "held while it is profiled")
        first.kill()
        first.wait()
        wait_for(lambda: len(self.calls_for(kernels[2])) == 2)
        gate.touch()
        for process, name in others:
            self.finish(process, name, kernels)
        wait_for(lambda: not self.survivors())
        self.assertEqual([len(self.calls_for(kernel)) for kernel in rest], [1] * 7)
        self.assertEqual(strays(self.cache), [])


class LockTest(SharedCase):
    """The lock is the kernel file's own."""

    def is_locked(self, path: Path) -> bool:
        """Whether somebody holds a file's lock."""
        with open(path, "rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            return False

    def test_held_by_the_program_alone(self) -> None:
        self.use_torch()
        here, gate = self.tmp / "here", self.tmp / "open"
        code = GATE.format(here=str(here), open=str(gate))
        for options in ((), ("--batch", "3")):
            for path in (here, gate):
                path.unlink(missing_ok=True)
            kernels = self.kernels(3, torch=True, main=code)
            process = self.start(kernels, "out", "--force", *options)
            wait_for(here.exists)
            held = [self.is_locked(kernel) for kernel in kernels]
            self.assertEqual(held, [True, bool(options), bool(options)])
            children = [int(line.split()[0]) for line in self.survivors()]
            children.remove(process.pid)
            self.assertGreaterEqual(len(children), 2)
            for child in children:
                links = [os.readlink(entry) for entry in Path(f"/proc/{child}/fd").iterdir()]
                self.assertEqual([link for link in links if link.endswith(".py")], [])
            gate.touch()
            self.finish(process, "out", kernels)
            self.assertEqual([self.is_locked(kernel) for kernel in kernels], [False] * 3)

    def test_where_there_are_no_locks(self) -> None:
        self.write("site/sitecustomize.py", NO_LOCKS)
        kernels = self.kernels(3)
        self.go(kernels, PYTHONPATH=str(self.tmp / "site"))
        self.assert_output(kernels)
        self.assert_each_once(kernels)

    def test_read_only_kernels(self) -> None:
        kernels = self.kernels(2)
        for kernel in kernels:
            kernel.chmod(0o444)
        before = [kernel.stat().st_mtime_ns for kernel in kernels]
        self.go(kernels)
        self.assert_output(kernels)
        self.assertEqual([kernel.stat().st_mtime_ns for kernel in kernels], before)


class SlowOpensTest(SharedCase):
    """A warm cache is read by several threads where opens are slow, by one where they are not."""

    def most_at_once(self, kernels: list[Path], delay: float) -> int:
        """Read a warm cache; how many opens there were at once."""
        report = self.tmp / "most"
        shim = OPENS.format(delay=delay, cache=str(self.cache), report=str(report))
        self.write("site/sitecustomize.py", shim)
        self.go(kernels, PYTHONPATH=str(self.tmp / "site"))
        return int(report.read_text())

    def test_threads(self) -> None:
        kernels = self.kernels(150)
        self.go(kernels[:1])
        log = kernels[0].with_suffix(".ncu").read_text()
        log = log[log.index("==PROF==") :]  # without the hash of the first kernel
        for kernel in kernels[1:]:
            kernel.with_suffix(".ncu").write_text(log)
        written = []
        for delay in (0, 0.005):
            most = self.most_at_once(kernels, delay)
            written.append(self.out.read_bytes())
            if delay:
                self.assertGreaterEqual(most, 4)
                self.assertLessEqual(most, 64, "a bounded window")
            else:
                self.assertEqual(most, 1)
        self.assertEqual(written[0], written[1])
        self.assertEqual(len(self.rows(self.out)), 150)
        self.assertEqual(len(self.calls()), 1)
