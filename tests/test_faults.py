"""Disks that are full, files that may not be written or read: no figure is lost, nothing left."""

from __future__ import annotations

import errno
import functools
import os
import shutil
import subprocess
import sys
import unittest
from pathlib import Path
from typing import Any

from tests import logs_by_hand as hand
from tests.support import FAULTS, FIGURES, PROGRAM, Case, strays, together

NAME = "triton_poi_fused_add_{}"
CHANGES = ("create", "write", "close", "rename")
ERRORS = ("ENOSPC", "EACCES")


class FaultCase(Case):
    """Runs in folders of their own, with faults as tests/faults makes them."""

    def prepare(self, name: str, **options: Any) -> tuple[list[Path], Path, Path]:
        """Two kernels, their table, and an output in a folder of its own that already exists."""
        folder = self.tmp / name
        kernels = [
            self.kernel(
                NAME.format(number), folder=folder / "cache", file=f"k{number}.py", **options
            )
            for number in range(2)
        ]
        return (
            kernels,
            self.table(kernels, f"{name}/in.csv"),
            self.write(f"{name}/out/o.csv", "old\n"),
        )

    def run_faulty(
        self, table: Path, out: Path, *rules: str, options: tuple[str, ...] = ()
    ) -> subprocess.CompletedProcess[str]:
        """Run the program while some of its operations fail: "create ENOSPC 0 cache"."""
        path = [str(FAULTS), *filter(None, [self.environment.get("PYTHONPATH")])]
        faults = []
        for rule in rules:
            *words, place = rule.split(" ", 3)
            faults.append(" ".join([*words, str(table.parent / place)]))
        env = {"PYTHONPATH": ":".join(path), "FAULTS": "\n".join(faults)}
        return self.run_program("-i", table, "-o", out, *options, env=env)

    def assert_clean(self, out: Path) -> None:
        """Nothing lies about, in the cache or beside the output."""
        self.assertEqual(strays(out.parent.parent / "cache"), [])
        self.assertEqual(os.listdir(out.parent), [out.name])

    def assert_measured(self, out: Path, kernels: list[Path]) -> None:
        """The output holds the figures of all."""
        rows = self.rows(out)
        self.assertEqual(len(rows), len(kernels))
        for row, kernel in zip(rows, kernels):
            self.assert_figures(row, kernel)

    def assert_one_line(self, text: str, *parts: str) -> None:
        """The text is one line that holds the parts."""
        self.assertEqual(text.count("\n"), 1, text)
        for part in parts:
            self.assertIn(part, text)


def reason(name: str) -> str:
    """What a person reads of an errno."""
    return os.strerror(getattr(errno, name))


class LogsThatCannotBeStored(FaultCase):
    """Their figures reach this run's output all the same, with one warning."""

    def store(self, job: tuple[str, str, bool]) -> tuple[list[Path], Path, Any, list[bytes]]:
        """Run with one fault in the cache, perhaps over logs that exist."""
        operation, error, again = job
        kernels, table, out = self.prepare(f"{operation}-{error}-{again}")
        before = []
        if again:
            for kernel in kernels:
                kernel.with_suffix(".ncu").write_text(hand.log(), encoding="utf-8")
            before = [hand.log().encode()] * len(kernels)
        options = ("-q", *(["--force"] if again else []))
        done = self.run_faulty(table, out, f"{operation} {error} 0 cache", options=options)
        return kernels, out, done, before

    def test_each_operation_and_error(self) -> None:
        jobs = [(operation, "ENOSPC", again) for operation in CHANGES for again in (False, True)]
        jobs += [(operation, "EACCES", False) for operation in ("create", "rename")]
        results = together(functools.partial(self.store, job) for job in jobs)
        for (operation, error, again), (kernels, out, done, before) in zip(jobs, results):
            with self.subTest(operation, error=error, again=again):
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assert_one_line(done.stderr, "warning: ", reason(error))
                self.assert_measured(out, kernels)
                self.assert_clean(out)
                logs = [kernel.with_suffix(".ncu") for kernel in kernels]
                self.assertEqual([log.read_bytes() for log in logs if log.exists()], before)

    def test_one_of_two(self) -> None:
        """The other is stored, and is not measured again."""
        kernels, table, out = self.prepare("one")
        done = self.run_faulty(table, out, "write ENOSPC 1 cache", options=("-q",))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assert_one_line(done.stderr, "warning: ", reason("ENOSPC"))
        first = out.read_bytes()
        done = self.run_program("-q", "-i", table, "-o", out)
        self.assertEqual((done.returncode, done.stderr, out.read_bytes()), (0, "", first))
        self.assertEqual([len(self.calls_for(kernel)) for kernel in kernels], [2, 1])

    def fail_to_keep(self, operation: str) -> tuple[list[Path], Path, Any]:
        """Run over kernels that fail, with a fault in the cache."""
        kernels, table, out = self.prepare(f"err-{operation}", directives="nothing-profiled")
        options = ("-q",)
        return (
            kernels,
            out,
            self.run_faulty(table, out, f"{operation} ENOSPC 0 cache", options=options),
        )

    def test_output_of_failures_that_cannot_be_kept(self) -> None:
        """One more warning than there are failures, and the run goes on."""
        results = together(functools.partial(self.fail_to_keep, name) for name in CHANGES)
        for operation, (kernels, out, done) in zip(CHANGES, results):
            with self.subTest(operation):
                self.assertEqual(done.returncode, 1, done.stderr)
                lines = done.stderr.splitlines()
                self.assertEqual(len(lines), 3, lines)
                warnings = [line for line in lines if line.startswith("warning: ")]
                self.assertEqual(len(warnings), 1, lines)
                self.assertIn(reason("ENOSPC"), warnings[0])
                for row in self.rows(out):
                    self.assertEqual({row[name] for name in FIGURES}, {""})
                self.assert_clean(out)
                self.assertFalse(any(k.with_suffix(".ncu.err").exists() for k in kernels))

    def test_an_old_error_that_cannot_be_removed(self) -> None:
        kernels, table, out = self.prepare("unlink")
        old = kernels[0].with_suffix(".ncu.err")
        old.write_text("it failed\n")
        done = self.run_faulty(table, out, "unlink EACCES 0 cache")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn("Traceback", done.stderr)
        self.assert_measured(out, kernels)


class OutputThatCannotBeWritten(FaultCase):
    """The old output stays, nothing is left behind, and the logs are kept."""

    def run_one(self, job: tuple[str, str, int]) -> tuple[list[Path], Path, Path, Any]:
        """Run with one fault beside the output."""
        operation, error, nth = job
        kernels, table, out = self.prepare(f"{operation}-{error}-{nth}")
        done = self.run_faulty(table, out, f"{operation} {error} {nth} out", options=("-q",))
        return kernels, table, out, done

    def test_at_the_end(self) -> None:
        """The first file that is made there is a trial; the second is the output."""
        jobs = [("create", "ENOSPC", 2), ("write", "ENOSPC", 0), ("write", "EIO", 0)]
        jobs += [("close", "EIO", 2), ("rename", "EACCES", 0)]
        results = together(functools.partial(self.run_one, job) for job in jobs)
        for (operation, error, nth), (kernels, table, out, done) in zip(jobs, results):
            with self.subTest(operation, error=error, nth=nth):
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assert_one_line(done.stderr, "error: ", str(out), reason(error))
                self.assertEqual(out.read_text(), "old\n")
                self.assert_clean(out)
                again = self.run_program("-i", table, "-o", out, "--ncu", "/nowhere")
                self.assertEqual(again.returncode, 0, again.stderr)
                self.assert_measured(out, kernels)

    def test_known_before_the_first_kernel(self) -> None:
        jobs = [("create", error, 1) for error in ERRORS]
        results = together(functools.partial(self.run_one, job) for job in jobs)
        for (_, error, _), (_, _, out, done) in zip(jobs, results):
            with self.subTest(error):
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assert_one_line(done.stderr, "error: ", str(out), reason(error))
                self.assertEqual(out.read_text(), "old\n")
                self.assert_clean(out)
        self.assertEqual(self.calls(), [])

    def test_an_old_output_that_may_not_be_written(self) -> None:
        """It may be replaced by rename, but its owner said no."""
        _, table, out = self.prepare("open")
        done = self.run_faulty(table, out, "open EACCES 0 out/o.csv", options=("-q",))
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assert_one_line(done.stderr, "error: ", str(out), reason("EACCES"))
        self.assertEqual((self.calls(), out.read_text()), ([], "old\n"))

    def test_places_where_nothing_can_be_written(self) -> None:
        _, table, out = self.prepare("places")
        places = [out.parent, "/nowhere/o.csv", table / "o.csv", table, "/dev/full"]
        for place in places:
            with self.subTest(place):
                done = self.run_program("-q", "-i", table, "-o", place)
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assert_one_line(done.stderr, "error: ", str(place))
        self.assertLessEqual(len(self.calls()), 2)  # the device's turn comes at the end
        self.assert_clean(out)


class FilesThatCannotBeRead(FaultCase):
    """Each is the fault of its kernel, or of the input."""

    def test_the_input(self) -> None:
        for operation in ("open", "read"):
            for error in ("EACCES", "EIO"):
                with self.subTest(operation, error=error):
                    _, table, out = self.prepare(f"{operation}-{error}")
                    done = self.run_faulty(table, out, f"{operation} {error} 1 in.csv")
                    self.assertEqual(done.returncode, 2, done.stderr)
                    self.assert_one_line(done.stderr, "error: ", str(table), reason(error))
                    self.assertEqual(out.read_text(), "old\n")
                    self.assert_clean(out)
        self.assertEqual(self.calls(), [])

    def test_a_kernel(self) -> None:
        """It fails, the other is measured."""
        for operation in ("open", "read"):
            with self.subTest(operation):
                kernels, table, out = self.prepare(operation)
                rule = f"{operation} EACCES 0 cache/k0.py"
                done = self.run_faulty(table, out, rule, options=("-q",))
                self.assertEqual(done.returncode, 1, done.stderr)
                self.assert_one_line(done.stderr, str(kernels[0]))
                rows = self.rows(out)
                self.assertEqual({rows[0][name] for name in FIGURES}, {""})
                self.assert_figures(rows[1], kernels[1])
                self.assert_clean(out)

    def test_a_log(self) -> None:
        """It counts as none."""
        for operation in ("open", "read"):
            with self.subTest(operation):
                kernels, table, out = self.prepare(f"log-{operation}")
                self.run_program("-i", table, "-o", out)
                rule = f"{operation} EIO 0 cache/k0.ncu"
                done = self.run_faulty(table, out, rule, options=("-q", "--cached-only"))
                self.assertEqual(
                    (done.returncode, done.stderr), (1, "warning: 1 of 2 kernels have no log\n")
                )
                rows = self.rows(out)
                self.assertEqual({rows[0][name] for name in FIGURES}, {""})
                self.assert_figures(rows[1], kernels[1])
                done = self.run_faulty(table, out, rule)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assert_measured(out, kernels)
                self.assert_clean(out)

    def test_a_log_whose_kernel_may_not_be_read_stays_valid(self) -> None:
        """As one whose kernel is gone."""
        kernels, table, out = self.prepare("unreadable")
        self.run_program("-i", table, "-o", out)
        done = self.run_faulty(table, out, "open EACCES 0 cache/k0.py", options=("-q",))
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assert_measured(out, kernels)


class RealDisk(FaultCase):
    """A small disk of its own, where this user may mount one."""

    # Its arguments: how the disk becomes useless, and the command. Says what is on it at the end.
    SCRIPT = """
        mount -t tmpfs -o size=64k none "$DISK" && cp "$KERNELS"/*.py "$DISK" || exit 99
        eval "$1"; shift
        "$@"
        status=$?
        cd "$DISK" && ls -A
        exit $status
    """

    def on_disk(self, spoil: str) -> tuple[list[Path], Path, Any]:
        """Run with the cache on a disk that was spoiled."""
        kernels, table, out = self.prepare(spoil.split()[0])
        disk = self.tmp / "disk"
        disk.mkdir(exist_ok=True)
        moved = [disk / kernel.name for kernel in kernels]
        table = self.table(
            [self.row(kernel, kernel_path=path) for kernel, path in zip(kernels, moved)]
        )
        env = {"DISK": str(disk), "KERNELS": str(kernels[0].parent)}
        command = [sys.executable, str(PROGRAM), "-q", "-i", str(table), "-o", str(out)]
        done = subprocess.run(
            ["unshare", "-m", "/bin/sh", "-c", self.SCRIPT, "sh", spoil, *command],
            env=self.merged(env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )
        if done.returncode == 99:
            self.skipTest(f"no disk can be mounted here: {done.stderr.strip()}")
        return kernels, out, done

    @unittest.skipUnless(shutil.which("unshare"), "no unshare")
    @unittest.skipIf(os.geteuid(), "only root can mount a disk")
    def test_full_and_read_only(self) -> None:
        full = 'cat /dev/zero >"$DISK/filler" 2>/dev/null'
        cases = ((full, "ENOSPC"), ('mount -o remount,ro "$DISK"; true', "EROFS"))
        for spoil, error in cases:
            with self.subTest(error):
                kernels, out, done = self.on_disk(spoil)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assert_one_line(done.stderr, "warning: ", reason(error))
                self.assertEqual(set(done.stdout.split()) - {"filler"}, {"k0.py", "k1.py"})
                self.assert_measured(out, kernels)


if __name__ == "__main__":
    unittest.main()
