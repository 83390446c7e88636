"""Runs that are stopped: by signals, time limits, closed streams; and that then go on."""

from __future__ import annotations

import fcntl
import functools
import os
import signal
import subprocess
import termios
import time
import unittest
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support import FAULTS, FIGURES, Case, strays, together, wait_for

NAME = "triton_poi_fused_add_{}"
STATUSES = {signal.SIGHUP: 129, signal.SIGINT: 130, signal.SIGTERM: 143}
# Durations in ns, and the cells that follow exactly from them at 500 GB/s and 0.027 ms.
CELLS = {2000: "27.0,2.0,500.0,0.001", 4000: "27.0,4.0,500.0,0.002", 8000: "27.0,8.0,500.0,0.004"}
# A process that lets TERM and INT pass by; "started" once it does.
DEAF = (
    "import signal, sys, time\n"
    "for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):\n"
    "    signal.signal(number, signal.SIG_IGN)\n"
    "open(sys.argv[1], 'w').close()\n"
    "time.sleep(600)\n"
)


def is_empty(pipe: int) -> bool:
    """Whether all that was written into a pipe has been read."""
    return not any(fcntl.ioctl(pipe, termios.FIONREAD, b"\0" * 4))


def ignores(process: int, signum: int) -> bool:
    """Whether a process ignores a signal."""
    status = Path(f"/proc/{process}/status").read_text()
    mask = next(line for line in status.splitlines() if line.startswith("SigIgn:"))
    return bool(int(mask.split()[1], 16) >> (signum - 1) & 1)


class StopCase(Case):
    """Three kernels, of which one can be made to wait until a gate opens."""

    def setUp(self) -> None:
        super().setUp()
        self.out = self.write("out.csv", "old\n")
        self.gate = self.tmp / "gate"
        self.started = self.tmp / "started"
        self.told = self.tmp / "told"  # to end, by TERM
        self.waits = (
            f"import time\nopen({str(self.started)!r}, 'w').close()\n"
            f"while not os.path.exists({str(self.gate)!r}):\n    time.sleep(0.02)"
        )

    def kernels(self, waiting: int = 1, **options: Any) -> list[Path]:
        """Three kernels; the one with that number waits at the gate."""
        return [
            self.kernel(
                NAME.format(number),
                file=f"k{number}.py",
                directives=f"duration={nanoseconds} bandwidth=500000000000",
                main=self.waits if number == waiting else "",
                **options,
            )
            for number, nanoseconds in enumerate(CELLS)
        ]

    def expected(self, table: Path) -> str:
        """The whole output of an undisturbed run over the three kernels."""
        header, *rows = table.read_text().splitlines()
        lines = [",".join([header, *FIGURES])]
        lines += [f"{row},{cells}" for row, cells in zip(rows, CELLS.values())]
        return "".join(f"{line}\n" for line in lines)

    def begin(self, table: Path, *options: object, **more: Any) -> subprocess.Popen[str]:
        """Start a run, and wait until the kernel that waits is in hand."""
        process = self.start_program("-i", table, "-o", self.out, *options, **more)
        self.wait_until_started(process)
        return process

    def wait_until_started(self, process: subprocess.Popen[str]) -> None:
        """Wait until a kernel said so; not for a program that is gone."""
        wait_for(lambda: self.started.exists() or process.poll() is not None)
        self.assertTrue(self.started.exists(), process.poll())

    def end(self, process: subprocess.Popen[str], status: int) -> str:
        """Wait for the end of a run, check it, and return what was said."""
        said, stderr = process.communicate(timeout=60)
        # To die of the signal looks the same to a shell.
        ends = (status, 128 - status) if status > 128 else (status,)
        self.assertIn(process.returncode, ends, stderr)
        self.assertEqual(said or "", "")
        self.assertNotIn("Traceback", stderr or "")
        return stderr or ""

    def assert_nothing_left(self) -> None:
        """No process lives, no file lies about."""
        self.assertEqual(self.survivors(), [])
        self.assertEqual(strays(self.cache), [])
        self.assertEqual([path for path in self.files() if path.endswith(".tmp")], [])

    def files(self) -> list[str]:
        """The names beside the output."""
        return sorted(path.name for path in self.tmp.iterdir())

    def goes_on(self, table: Path, *options: object) -> None:
        """The same command brings the output of an undisturbed run."""
        self.gate.touch()
        done = self.run_program("-i", table, "-o", self.out, *options)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.out.read_text(), self.expected(table))


class Signals(StopCase):
    """One kernel is done, one in hand, one to come."""

    def stopped_by(self, signum: int) -> None:
        """Stop a run, look at what it left, go on."""
        kernels = self.kernels()
        table = self.table(kernels)
        process = self.begin(table)
        process.send_signal(signum)
        said = self.end(process, STATUSES[signal.Signals(signum)])
        self.assert_nothing_left()
        self.assertEqual(self.out.read_text(), "old\n")
        lines = [line for line in said.splitlines() if "1 of 3" in line]
        self.assertEqual(len(lines), 1, said)
        self.assertIn("same command", lines[0])
        self.assertEqual(said.splitlines()[-1], lines[0])
        self.assertEqual(sorted(path.name for path in self.cache.iterdir()), self.kept())
        self.goes_on(table)
        self.assertEqual([len(self.calls_for(kernel)) for kernel in kernels], [1, 2, 1])

    def kept(self) -> list[str]:
        """The cache after the stop: what was in hand has neither log nor error."""
        return ["k0.ncu", "k0.py", "k1.py", "k2.py"]

    def test_term(self) -> None:
        self.stopped_by(signal.SIGTERM)

    def test_int(self) -> None:
        self.stopped_by(signal.SIGINT)

    def test_hup(self) -> None:
        self.stopped_by(signal.SIGHUP)

    def test_kill(self) -> None:
        kernels = self.kernels()
        table = self.table(kernels)
        process = self.begin(table)
        process.kill()
        process.wait(60)
        self.assertEqual(self.out.read_text(), "old\n")
        # The orphan is still there when the same command is given again.
        self.goes_on(table)
        self.assertEqual([len(self.calls_for(kernel)) for kernel in kernels], [1, 2, 1])
        wait_for(lambda: not self.survivors())
        self.assertEqual(strays(self.cache), [])

    def test_twice_stopped(self) -> None:
        """TERM, then kill -9, and still nothing is measured twice."""
        kernels = self.kernels()
        table = self.table(kernels)
        for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGINT):
            self.started.unlink(missing_ok=True)
            process = self.begin(table)
            process.send_signal(number)
            process.communicate(timeout=60)
        self.goes_on(table)
        self.assertEqual([len(self.calls_for(kernel)) for kernel in kernels], [1, 4, 1])

    def test_ctrl_c_on_a_terminal(self) -> None:
        kernels = self.kernels(waiting=0)
        table = self.table(kernels)
        status, said = self.run_in_pty(
            "-i", table, "-o", self.out, type_after=(b"0/3 done", b"\x03")
        )
        self.assertEqual(status, 130)
        self.assertIn(b"0 of 3", said.splitlines()[-1])
        self.assert_nothing_left()
        self.goes_on(table)

    def test_ignored_signals_stay_ignored(self) -> None:
        """nohup: HUP; a job in the background of a script: INT too. TERM still counts."""

        def ignore() -> None:
            for number in (signal.SIGHUP, signal.SIGINT):
                signal.signal(number, signal.SIG_IGN)

        table = self.table(self.kernels())
        process = self.begin(table, preexec_fn=ignore)
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGINT):
            process.send_signal(number)
        self.gate.touch()
        self.end(process, 0)
        self.assertEqual(self.out.read_text(), self.expected(table))
        self.gate.unlink()
        self.started.unlink()
        process = self.begin(table, "--force", preexec_fn=ignore)
        process.terminate()
        self.assertIn("1 of 3", self.end(process, 143))
        self.assert_nothing_left()

    def test_quiet_says_it_all_the_same(self) -> None:
        process = self.begin(self.table(self.kernels()), "-q")
        process.terminate()
        said = self.end(process, 143)
        self.assertEqual((said.count("\n"), "1 of 3" in said), (1, True), said)

    def test_the_kernel_forks_while_it_is_stopped(self) -> None:
        """What a kernel started in its group goes with it, even when it ends in time itself."""
        child = self.tmp / "child"
        main = f"import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', {DEAF!r}, "
        main += f"{str(child)!r}])\nimport time\nwhile not os.path.exists({str(child)!r}):\n"
        main += f"    time.sleep(0.02)\n{self.waits}"
        kernel = self.kernel(NAME.format(0), main=main)
        process = self.begin(self.table([kernel]))
        process.terminate()
        self.end(process, 143)
        self.assert_nothing_left()


class Moments(StopCase):
    """Stopped just before each thing that it does to a file, and then gone on."""

    def environment_of(self, folder: Path, faults: str = "") -> dict[str, str]:
        """Where the faults are."""
        path = [str(FAULTS), *filter(None, [self.environment.get("PYTHONPATH")])]
        return {
            "PYTHONPATH": ":".join(path),
            "FAULTS": faults,
            "FAULTS_LOG": str(folder / "operations"),
            "NCU_STAND_IN_LOG": str(folder / "ncu.jsonl"),
        }

    def prepare(self, name: str) -> tuple[Path, Path, Path]:
        """A folder with a kernel, a table and an output in a folder of its own; the last two."""
        folder = self.tmp / name
        kernel = self.kernel(
            NAME.format(0),
            folder=folder / "cache",
            file="k.py",
            directives="duration=2000 bandwidth=500000000000",
        )
        self.write(folder / "cache/k.ncu.err", "it failed\n")
        out = self.write(folder / "out/out.csv", "old\n")
        return folder, self.table([kernel], f"{name}/in.csv"), out

    def operations(self) -> list[str]:
        """Each change that a run makes to a file of the cache or beside the output."""
        folder, table, out = self.prepare("all")
        done = self.run_program("-i", table, "-o", out, env=self.environment_of(folder))
        self.assertEqual(done.returncode, 0, done.stderr)
        noted = (folder / "operations").read_text().splitlines()
        return [
            f"{operation} {place}"
            for operation, _, path in (line.partition(" ") for line in noted)
            for place in ("cache", "out")
            if path.startswith(f"{folder}/{place}/")
        ]

    def stop_at(self, job: tuple[int, str, int, str]) -> tuple[str, Any, str, list[str]]:
        """Stop one run at one moment; its name, what came of it, the output, what lies about."""
        number, operation, nth, name = job
        folder, table, out = self.prepare(f"{number}-{name}")
        what, _, place = operation.partition(" ")
        rule = f"{what} {name} {nth} {folder / place}"
        env = self.environment_of(folder, rule)
        done = self.run_program("-i", table, "-o", out, env=env)
        left = [*strays(folder / "cache"), *strays(folder / "out")]
        output = out.read_text()
        if name == "SIGKILL" or output == "old\n":
            again = self.run_program("-i", table, "-o", out, env={"FAULTS": None})
            if again.returncode != 0:
                raise AssertionError((job, again.stderr))
        return output, done, self.whole(table), [out.read_text(), *left]

    def whole(self, table: Path) -> str:
        """The output of an undisturbed run."""
        header, row = table.read_text().splitlines()
        return f"{','.join([header, *FIGURES])}\n{row},{CELLS[2000]}\n"

    def test_at_each_change_of_a_file(self) -> None:
        counts: dict[str, int] = {}
        jobs = []
        for number, operation in enumerate(self.operations()):
            counts[operation] = counts.get(operation, 0) + 1
            for name in ("SIGKILL", "SIGTERM"):
                jobs.append((number, operation, counts[operation], name))
        self.assertGreater(len(jobs), 20)
        results = together(functools.partial(self.stop_at, job) for job in jobs)
        for (_, operation, nth, name), (output, done, whole, after) in zip(jobs, results):
            with self.subTest(operation, nth=nth, signal=name):
                self.assertIn(output, ("old\n", whole))
                self.assertEqual(after[0], whole)
                self.assertNotIn("Traceback", done.stderr)
                if name == "SIGTERM":
                    self.assertEqual(after[1:], [])
                    complete = output == whole
                    self.assertIn(done.returncode, (0,) if complete else (143, -signal.SIGTERM))
                else:
                    self.assertEqual(done.returncode, -signal.SIGKILL)
        self.assertEqual(self.survivors(), [])

    def test_a_leftover_is_never_taken_for_a_log(self) -> None:
        folder, table, out = self.prepare("rename")
        env = self.environment_of(folder, f"rename SIGKILL 1 {folder / 'cache'}")
        self.run_program("-i", table, "-o", out, env=env)
        self.assertEqual(len(strays(folder / "cache")), 1)
        done = self.run_program("-i", table, "-o", out, "--cached-only")
        self.assertEqual((done.returncode, self.rows(out)[0][FIGURES[0]]), (1, ""))

    def test_during_the_look_up(self) -> None:
        kernels = self.kernels()
        table = self.table(kernels)
        for number in (signal.SIGTERM, signal.SIGINT):
            name = signal.Signals(number).name
            with self.subTest(name):
                env = self.environment_of(self.tmp, f"open {name} 1 {self.cache}")
                done = self.run_program("-i", table, "-o", self.out, env=env)
                self.assertEqual(done.returncode, STATUSES[number])
                self.assertIn("0 of 3", done.stderr.splitlines()[-1])
        self.assertEqual((self.calls(), self.out.read_text()), ([], "old\n"))
        self.assert_nothing_left()

    def test_while_the_interpreter_is_asked(self) -> None:
        """A wrapper that hangs (a network file system) does not keep the program from ending."""
        wrapper = self.write("python", f"#!/bin/sh\n: >{self.started}\nexec sleep 600\n")
        wrapper.chmod(0o755)
        process = self.begin(self.table(self.kernels()), "--python", wrapper)
        process.terminate()
        process.communicate(timeout=60)
        self.assertIn(process.returncode, (143, -signal.SIGTERM))
        self.assert_nothing_left()

    def test_while_the_input_is_awaited(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            with self.subTest(number):
                process = self.start_program("-i", "-", "-o", self.out, stdin=subprocess.PIPE)
                stdin = process.stdin
                assert stdin
                stdin.write("model_name,")
                stdin.flush()
                wait_for(functools.partial(is_empty, stdin.fileno()))
                process.send_signal(number)
                said = process.communicate(timeout=60)[1]
                self.assertIn(process.returncode, (STATUSES[number], -number))
                self.assertNotIn("Traceback", said)
        self.assertEqual(self.out.read_text(), "old\n")
        self.assert_nothing_left()

    def test_during_the_pause_before_a_retry(self) -> None:
        kernel = self.kernel(NAME.format(0), directives="resource-unavailable")
        process = self.start_program("-i", self.table([kernel]), "-o", self.out)
        wait_for(lambda: self.calls() and self.calls()[0]["ended"])
        process.terminate()
        self.assertIn("0 of 1", self.end(process, 143))
        self.assertEqual(len(self.calls()), 1)
        self.assert_nothing_left()
        self.assertEqual(self.out.read_text(), "old\n")


class Ends(StopCase):
    """Nothing survives, whatever it does."""

    def deaf_kernel(self) -> Path:
        """A kernel that hangs under a deaf ncu, with children of its own that ignore TERM."""
        code = "import subprocess, sys, time\n"
        for number in range(2):
            path = str(self.tmp / f"deaf{number}")
            code += f"subprocess.Popen([sys.executable, '-c', {DEAF!r}, {path!r}])\n"
            code += f"while not os.path.exists({path!r}):\n    time.sleep(0.02)\n"
        code += "import signal\nsignal.signal(signal.SIGTERM, lambda *_: "
        code += f"open({str(self.told)!r}, 'w').close())\n"
        code += f"open({str(self.started)!r}, 'w').close()"
        return self.kernel(NAME.format(0), directives="hang=deaf", main=code)

    def test_a_time_limit(self) -> None:
        """TERM to the group is enough for one; the other, deaf with deaf children, is killed."""
        hangs = self.kernel(NAME.format(1), directives="hang")
        kernels = [hangs, self.deaf_kernel()]
        done = self.run_program("-i", self.table(kernels), "-o", self.out, "--timeout", "1", "-q")
        self.assert_nothing_left()
        self.assertEqual(done.returncode, 1)
        lines = done.stderr.splitlines()
        self.assertEqual(len(lines), 2, lines)
        for line, kernel, row in zip(lines, kernels, self.rows(self.out)):
            self.assertIn(f" {kernel} ", line)
            self.assertIn(" 1 s", line)
            self.assertEqual({row[name] for name in FIGURES}, {""})
            kept = kernel.with_suffix(".ncu.err").read_text()
            self.assertIn(str(kernel), kept)
            self.assertFalse(kernel.with_suffix(".ncu").exists())

    def test_a_second_int_kills_at_once(self) -> None:
        """A first one leaves a deaf child a grace; the second does not wait for its end."""
        kernel = self.deaf_kernel()
        table = self.table([kernel])
        took = []
        for twice in (False, True):
            for mark in (self.started, self.told):
                mark.unlink(missing_ok=True)
            process = self.begin(table)
            wait_for(lambda: ignores(self.calls()[-1]["pid"], signal.SIGTERM))
            begin = time.monotonic()
            process.send_signal(signal.SIGINT)
            wait_for(self.told.exists)
            if twice:
                process.send_signal(signal.SIGINT)
            self.assertIn("0 of 1", self.end(process, 130))
            took.append(time.monotonic() - begin)
            self.assert_nothing_left()
        self.assertLess(took[1], took[0])

    def test_an_interrupt_during_the_imports(self) -> None:
        """One line and 130, as ever; nothing at all of a traceback."""
        self.write(
            "early/argparse.py",
            "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)\n",
        )
        for command in ([], ["-i", "no.csv", "-o", "out.csv"]):
            done = self.run_program(*command, env={"PYTHONPATH": str(self.tmp / "early")})
            self.assertEqual((done.returncode, done.stdout, done.stderr), (130, "", "stopped\n"))

    def test_a_daemon_that_keeps_the_output_open(self) -> None:
        """Its end is not waited for."""
        main = "import subprocess\nsubprocess.Popen(['sleep', '600'], start_new_session=True)"
        kernel = self.kernel(NAME.format(0), main=main)
        done = self.run_program("-i", self.table([kernel]), "-o", self.out)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assert_figures(self.rows(self.out)[0], kernel)
        self.assertEqual([line.split(" ", 1)[1] for line in self.survivors()], ["sleep 600"])

    def test_output_without_end(self) -> None:
        """Of lines or of none, on either stream; the others go on."""
        texts = ("'y' * 65536", "('y' * 79 + '\\n') * 1000")
        kernels = [
            self.kernel(
                NAME.format(number),
                main=f"import sys\nwhile True:\n    sys.std{name}.write({text})",
            )
            for number, (name, text) in enumerate(zip(("out", "err"), texts))
        ]
        kernels.append(self.kernel(NAME.format(2)))
        done = self.run_program("-i", self.table(kernels), "-o", self.out, "-q")
        self.assertEqual((done.returncode, done.stderr.count("64 MiB")), (1, 2), done.stderr)
        self.assertEqual(done.stderr.count("\n"), 2)
        self.assertLess(len(done.stderr), 2000)
        self.assert_figures(self.rows(self.out)[2], kernels[2])
        self.assert_nothing_left()


class Streams(StopCase):
    """Streams that are closed, or whose reader is gone."""

    def run_with(
        self, *options: object, close: Sequence[int] = (), **more: Any
    ) -> tuple[int, str, str]:
        """Run with some streams closed; the status and what was printed."""

        def close_them() -> None:
            for descriptor in close:
                os.close(descriptor)

        process = self.start_program(*options, preexec_fn=close_them if close else None, **more)
        out, err = process.communicate(timeout=60)
        self.assertEqual(self.survivors(), [])
        return process.returncode, out or "", err or ""

    def test_closed_stderr(self) -> None:
        """stderr closed, or all three: the run and its status are the same."""
        self.gate.touch()
        kernels = self.kernels()
        table = self.table(kernels)
        for close in ([2], [0, 1, 2]):
            with self.subTest(close):
                self.out.write_text("old\n")
                ended = self.run_with("--force", "-i", table, "-o", self.out, close=close)
                self.assertEqual((ended, self.out.read_text()), ((0, "", ""), self.expected(table)))
        for kernel in kernels:
            log = kernel.with_suffix(".ncu").read_text()
            self.assertEqual(log.count("[1/3]"), 0)

    def test_closed_stderr_and_a_failure(self) -> None:
        """What nobody hears changes nothing, neither in a failed kernel nor in a wrong use."""
        kernels = [
            self.kernel(NAME.format(0), directives="nothing-profiled"),
            self.kernel(NAME.format(1)),
        ]
        table = self.table([*kernels, self.row(kernels[0], kernel_path="")])
        status, _, _ = self.run_with("-i", table, "-o", self.out, close=[2])
        self.assertEqual(status, 1)
        self.assert_figures(self.rows(self.out)[1], kernels[1])
        for options in (("-i", "/nowhere.csv", "-o", self.out), ("--no-such-option",)):
            self.assertEqual(self.run_with(*options, close=[2])[0], 2)

    def test_a_reader_of_stderr_that_goes(self) -> None:
        """`2>&1 | head -1`: the run goes on, and its status is the same."""
        kernels = self.kernels()
        table = self.table(kernels)
        ours, theirs = os.pipe()
        process = self.begin(table, stderr=theirs)
        os.close(theirs)
        os.close(ours)
        self.gate.touch()
        process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0)
        self.assertEqual(self.out.read_text(), self.expected(table))

    def test_closed_stdout(self) -> None:
        """Needed, it is missed before a kernel runs; not needed, it is not missed."""
        self.gate.touch()
        table = self.table(self.kernels())
        status, _, said = self.run_with("-i", table, "-o", "-", close=[1])
        self.assertEqual((status, said.count("\n"), "Traceback" in said), (2, 1, False), said)
        self.assertEqual(self.calls(), [])
        status, _, said = self.run_with("-i", table, "-o", self.out, close=[1])
        self.assertEqual((status, self.out.read_text()), (0, self.expected(table)))

    def test_closed_stdin(self) -> None:
        self.gate.touch()
        table = self.table(self.kernels())
        status, _, _ = self.run_with("-i", table, "-o", self.out, close=[0])
        self.assertEqual((status, self.out.read_text()), (0, self.expected(table)))
        self.assertEqual({call["stdin"] for call in self.calls()}, {"/dev/null"})
        status, _, said = self.run_with("-i", "-", "-o", self.out, close=[0])
        self.assertEqual((status, said.count("\n"), "Traceback" in said), (2, 1, False), said)

    def test_a_reader_of_stdout_that_goes(self) -> None:
        """`-o - | head -1` and `--dry-run | head -1` end without a traceback."""
        self.gate.touch()
        table = self.table(self.kernels())
        for options in ((), ("--dry-run", "--force")):
            with self.subTest(options):
                ours, theirs = os.pipe()
                os.close(ours)
                status, _, said = self.run_with("-i", table, "-o", "-", *options, stdout=theirs)
                os.close(theirs)
                self.assertIn(status, (2, 141, -signal.SIGPIPE), said)
                self.assertNotIn("Traceback", said)
                self.assertNotIn("Exception ignored", said)
        self.assertTrue((self.cache / "k2.ncu").exists())

    def test_a_full_disk_behind_stdout(self) -> None:
        self.gate.touch()
        table = self.table(self.kernels())
        for place in ("-", "/dev/full", "/dev/stdout"):
            with self.subTest(place), open("/dev/full", "w") as full:
                status, _, said = self.run_with("-q", "-i", table, "-o", place, stdout=full)
                self.assertEqual((status, said.count("\n")), (2, 1), said)
                self.assertIn("No space left on device", said)


if __name__ == "__main__":
    unittest.main()
