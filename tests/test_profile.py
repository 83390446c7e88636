"""Running ncu, and the cache: the command, what counts as success, what is kept and said."""

from __future__ import annotations

import csv
import functools
import hashlib
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import unittest
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support import (
    FIGURES,
    STAND_IN,
    TOKEN,
    Case,
    expected_figures,
    strays,
    together,
    wait_for,
)

NAME = "triton_poi_fused_add_{}"
OURS = (
    "-k regex:triton -c 1 --set full --print-units base --target-processes application-only"
).split()
DIALECTS = ("2022", "2024", "2025")
BLANK = dict.fromkeys(FIGURES, "")
NOT_THERE = "/nowhere/bin/ncu"

# What ncu says when every kernel would fail, by the stand-in's name, and a word of the remedy.
FATAL = {
    "permission": ("ERR_NVGPUCTRPERM", "NVreg_RestrictProfilingToAdminUsers=0"),
    "permission-vgpu": ("ERR_NVGPUCTRPERM", "CAP_SYS_ADMIN"),
    "unsupported-device": ("Profiling is not supported on device 0", "GPU"),
    "insufficient-driver": ("Insufficient driver version to profile on device 0", "driver"),
    "driver-incompatible": ("Cuda driver is not compatible with Nsight Compute", "driver"),
    "driver-stub": ("failed to connect to the CUDA driver", "driver"),
    "library-not-loaded": ("LibraryNotLoaded", "container"),
    "lock-file": ("Failed to open/create lock file /tmp/nsight-compute-lock", "TMPDIR"),
    "interprocess-lock": ("InterprocessLockFailed", "TMPDIR"),
    "temp-file": ("Failed to create temporary file", "TMPDIR"),
    "clocks": ("Failed to lock GPU clock frequencies!", "clock-control"),
    "clocks-mig": ("Cannot lock GPU clock frequencies on MIG!", "clock-control"),
    "bad-option": ("unrecognised option '--set'", "--ncu-args"),
    "bad-section": ("did not match any section", "--ncu-args"),
    "not-executable": ("'python' does not exist or is not an executable", "--python"),
}
IN_EACH_DIALECT = ("bad-option",)


class ProfileCase(Case):
    """Runs the program over some kernels, with an output that already exists."""

    def setUp(self) -> None:
        super().setUp()
        self.out = self.write("out.csv", "old\n")

    def kernels(self, count: int, **options: Any) -> list[Path]:
        """Some kernels with equal options."""
        return [self.kernel(NAME.format(number), **options) for number in range(count)]

    def augment(
        self, table: Path, *options: object, status: int = 0, **more: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run the program on a table, and check what holds for every run."""
        done = self.run_program("-i", table, "-o", self.out, *options, **more)
        self.assertEqual(done.returncode, status, done.stderr)
        self.assertNotIn("Traceback", done.stderr)
        if "--dry-run" not in options:
            self.assertEqual(done.stdout, "")
        if status == 2:
            self.assertEqual(self.out.read_text(), "old\n")
        self.assertEqual(strays(self.cache), [])
        self.assertEqual(self.survivors(), [])
        return done

    def assert_measured(self, *kernels: Path) -> None:
        """The output's rows are those of the kernels, with their figures."""
        rows = self.rows(self.out)
        self.assertEqual([row["kernel_path"] for row in rows], [str(path) for path in kernels])
        for row, kernel in zip(rows, kernels):
            self.assert_figures(row, kernel)

    def assert_blank(self, row: dict[str, str]) -> None:
        """The row has no figures."""
        self.assertEqual({name: row[name] for name in FIGURES}, BLANK)

    def assert_one_line(self, text: str, *parts: str) -> None:
        """The text is one line that holds the parts."""
        self.assertEqual(text.count("\n"), 1, text)
        for part in parts:
            self.assertIn(part, text)


def log_of(kernel: Path) -> Path:
    """Where a kernel's log is."""
    return kernel.with_suffix(".ncu")


def error_of(kernel: Path) -> Path:
    """Where the output of a kernel's failed run is."""
    return kernel.with_suffix(".ncu.err")


def summary(text: str) -> dict[str, int]:
    """The counts of the summary."""
    return {name: int(n) for name, n in re.findall(r"^([a-z ]+?) +(\d+)(?:  .*)?$", text, re.M)}


def without_times(text: str) -> str:
    """What was said, each time replaced by T."""
    return re.sub(r"\b\d+:\d\d:\d\d\b|\b\d+\.\d(?=s\b| s/)", "T", text)


class Command(ProfileCase):
    """What is started, with what options, in what surroundings."""

    def test_argument_list(self) -> None:
        names = ("a 'b' \"c\" $d;e.py", "caf\u00e9.py", "-dash.py", "*.py")
        files = [
            self.kernel(NAME.format(number), folder=self.tmp, file=name)
            for number, name in enumerate(names)
        ]
        table = self.table([self.row(file, kernel_path=file.name) for file in files])
        self.augment(table)
        expected = [[*OURS, sys.executable, str(file)] for file in files]
        self.assertEqual([call["argv"] for call in self.calls()], expected)
        for row, file in zip(self.rows(self.out), files):
            self.assertEqual(row["kernel_path"], file.name)
            self.assert_figures(row, file)

    def test_surroundings(self) -> None:
        dump = self.tmp / "environment"
        main = f"import json, sys; json.dump(dict(os.environ), open({str(dump)!r}, 'w'))"
        main += f"\nprint(repr(sys.stdin.read()), sys.argv, file=open({str(dump) + '2'!r}, 'w'))"
        kernel = self.kernel(NAME.format(0), main=main)
        folder = self.tmp / "elsewhere"
        folder.mkdir()
        changed = {"LC_ALL": "de_DE.UTF-8", "CUDA_VISIBLE_DEVICES": "3", "ODD": "a\nb"}
        process = self.start_program(
            *("-i", self.table([kernel]), "-o", self.out), env=changed, cwd=folder
        )
        self.assertEqual(process.communicate(timeout=60)[0], "")
        self.assert_measured(kernel)
        seen = json.loads(dump.read_text())
        del seen["NCU_STAND_IN_EVENTS"]
        # The shell that starts the stand-in, and a Python in an odd locale, may add their own.
        own = {"_", "SHLVL", "PWD", "OLDPWD", "LC_CTYPE"}
        expected = {**self.environment, **changed, "LC_ALL": "C.UTF-8"}
        self.assertEqual({k: v for k, v in seen.items() if k not in own}, expected)
        self.assertEqual(Path(str(dump) + "2").read_text(), f"'' [{str(kernel)!r}]\n")
        call = self.calls()[0]
        self.assertEqual((call["stdin"], call["cwd"]), ("/dev/null", str(folder)))
        self.assertEqual(call["pgid"], call["pid"])
        self.assertNotEqual(call["pgid"], process.pid)

    def test_options_that_displace_ours(self) -> None:
        kernel, units = self.kernel(NAME.format(0)), ["--print-units", "base"]
        table = self.table([kernel])
        name, count, full = ["-k", "regex:triton"], ["-c", "1"], ["--set", "full"]
        alone = ["--target-processes", "application-only"]
        cases: list[tuple[str, Sequence[str]]] = [
            ("--clock-control=none", [*name, *count, *full, *units, *alone]),
            ("-kX", [*count, *full, *units, *alone]),
            ("-k regex:a|b -c2", [*full, *units, *alone]),
            ("--kernel-name=X --launch-count 3", [*full, *units, *alone]),
            ("--kernel-name-base demangled", [*name, *count, *full, *units, *alone]),
            ("--print-u base", [*name, *count, *full, *alone]),
            ("--set=detailed", [*name, *count, *units, *alone]),
            ("--section SpeedOfLight --section Occupancy", [*name, *count, *units, *alone]),
            ("--section=SpeedOfLight", [*name, *count, *units, *alone]),
            ("--section-folder /x", [*name, *count, *full, *units, *alone]),
            ("--target-processes=all", [*name, *count, *full, *units]),
            ("--nvtx-include 'a b/' \"c\"", [*name, *count, *full, *units, *alone]),
        ]

        def shown(extra: str) -> subprocess.CompletedProcess[str]:
            return self.run_program("-i", table, "-o", self.out, f"--ncu-args={extra}", "--dry-run")

        results = together(functools.partial(shown, extra) for extra, _ in cases)
        for (extra, ours), done in zip(cases, results):
            expected = [str(STAND_IN), *ours, *shlex.split(extra), sys.executable, str(kernel)]
            with self.subTest(extra):
                self.assertEqual(shlex.split(done.stdout), ["LC_ALL=C.UTF-8", *expected])

    def test_metrics_are_added(self) -> None:
        """Next to the full set, or joined with those of --quick: ncu refuses --metrics twice."""
        kernel = self.kernel(NAME.format(0))
        ours = "gpu__time_duration.sum,dram__bytes.sum.per_second"
        full = f"{ours},sm__warps_active.avg.pct_of_peak_sustained_active"
        narrow = "--section SpeedOfLight --section MemoryWorkloadAnalysis"
        cases: tuple[tuple[str, tuple[str, ...], list[str], str], ...] = (
            ("--metrics a,b", (), ["--set", "full"], "a,b"),
            ("--metrics=a --metric b,a", (), ["--set", "full"], "a,b"),
            (f"--metrics=a {narrow}", (), [], "a"),
            ("--metrics a,b", ("--quick",), [], f"{ours},a,b"),
            (f"--metrics={full}", ("--quick",), [], full),
        )
        for extra, options, collected, metrics in cases:
            with self.subTest(extra, options=options):
                self.log.unlink(missing_ok=True)
                self.augment(self.table([kernel]), f"--ncu-args={extra}", "--force", *options)
                self.assert_measured(kernel)
                argv = self.calls()[0]["argv"]
                self.assertEqual(
                    [word for word in argv if word.startswith("--metric")], ["--metrics"]
                )
                self.assertEqual(argv[argv.index("--metrics") + 1], metrics)
                self.assertEqual([word for word in argv if word in ("--set", "full")], collected)

    def test_sections_without_our_figures(self) -> None:
        """The first failure says where to look."""
        kernel = self.kernel(NAME.format(0))
        for narrow in ("--section Occupancy", "--set=basic --metrics a"):
            table = self.table([kernel])
            done = self.augment(table, f"--ncu-args={narrow}", "-q", status=1)
            self.assert_one_line(done.stderr, "no figures", "do --ncu-args leave out")

    def test_displaced_options_reach_ncu(self) -> None:
        """ncu refuses one given twice, so this works only where ours gave way."""
        kernel = self.kernel(NAME.format(0))
        self.augment(self.table([kernel]), "--ncu-args=-ktriton_poi_fused_add_0 --set=detailed")
        self.assert_measured(kernel)

    def test_unbalanced_quote(self) -> None:
        table = self.table([self.kernel(NAME.format(0))])
        self.assert_one_line(self.augment(table, "--ncu-args='a", status=2).stderr, "--ncu-args")
        self.assertEqual(self.calls(), [])

    def test_python_behind_a_wrapper(self) -> None:
        asked = self.tmp / "asked"
        wrapper = self.write(
            "shims/python",
            f'#!/bin/sh\necho x >>{shlex.quote(str(asked))}\nexec {sys.executable} "$@"\n',
        )
        wrapper.chmod(0o755)
        kernels = self.kernels(2)
        self.augment(self.table(kernels), "--python", "shims/python")
        self.assert_measured(*kernels)
        self.assertEqual([call["argv"][-2] for call in self.calls()], [sys.executable] * 2)
        self.assertEqual(asked.read_text(), "x\n")

    def test_python_that_is_none(self) -> None:
        table = self.table(self.kernels(1))
        for python in ("/nowhere/python", "/bin/false"):
            with self.subTest(python):
                done = self.augment(table, "--python", python, status=2)
                self.assert_one_line(done.stderr, "--python", python)
        self.assertEqual(self.calls(), [])

    def test_where_ncu_is_found(self) -> None:
        """PATH comes before $CUDA_HOME/bin; --ncu before both, also as a relative path."""
        for folder in ("path", "cuda/bin", "own"):
            (self.tmp / folder).mkdir(parents=True)
            (self.tmp / folder / "ncu").symlink_to(STAND_IN)
        table = self.table(self.kernels(1))
        env = {"CUDA_HOME": str(self.tmp / "cuda"), "PATH": f"{self.tmp}/path:/usr/bin:/bin"}
        bare = {**env, "PATH": "/usr/bin:/bin"}
        wanted = [("path/ncu", (), env), ("own/ncu", ("--ncu", "own/ncu"), env)]
        if not shutil.which("ncu", path="/usr/bin:/bin"):
            wanted.append(("cuda/bin/ncu", (), bare))
        for place, options, environment in wanted:
            with self.subTest(place):
                done = self.augment(table, *options, "--dry-run", env=environment)
                self.assertEqual(shlex.split(done.stdout)[1], str(self.tmp / place))

    def test_ncu_is_missing(self) -> None:
        kernel = self.kernel(NAME.format(0))
        table = self.table([kernel])
        done = self.augment(table, "--ncu", NOT_THERE, status=2)
        self.assert_one_line(done.stderr, NOT_THERE)
        self.augment(table, "--ncu", NOT_THERE, "--cached-only", status=1)
        self.augment(table)
        self.augment(table, "--ncu", NOT_THERE)
        self.assert_measured(kernel)

    def test_ncu_is_missing_and_not_needed(self) -> None:
        """No kernel would be started: one has no harness, the other no file."""
        kernel = self.kernel(NAME.format(0), harness=False)
        table = self.table([kernel, self.row(kernel, kernel_path=self.cache / "gone.py")])
        self.augment(table, "--ncu", NOT_THERE, status=1)
        self.assertEqual(len(self.rows(self.out)), 2)

    def test_from_cron(self) -> None:
        ncu = self.write("ncu", f'#!/bin/sh\nexec {sys.executable} -S -E {STAND_IN} "$@"\n')
        ncu.chmod(0o755)
        kernel = self.kernel(NAME.format(0))
        table = self.table([kernel])
        env: dict[str, str | None] = dict.fromkeys(self.environment)
        env.update({"PATH": "/usr/bin:/bin", TOKEN: self.token})
        done = self.augment(table, "--ncu", ncu, env=env, cwd=Path("/"))
        self.assertEqual(summary(done.stderr)["profiled"], 1)
        self.assert_measured(kernel)


class Log(ProfileCase):
    """What is kept of a run that went well."""

    def test_whole_log(self) -> None:
        main = "import sys; print('to stdout'); print('to stderr', file=sys.stderr)"
        kernel = self.kernel(NAME.format(0), main=main)
        self.augment(self.table([kernel]))
        ours = self.calls()[0]
        alone = self.run_ncu(*ours["argv"], env={"LC_ALL": "C.UTF-8"})
        theirs = self.calls()[1]
        self.assertEqual(alone.stderr, "to stderr\n")
        text = log_of(kernel).read_text()
        printed = alone.stdout.replace(str(theirs["application"]), str(ours["application"]))
        self.assertIn("\nto stdout\n", printed)
        header, _, rest = text.partition(printed)
        self.assertEqual(rest, "")
        self.assertIn(hashlib.sha256(kernel.read_bytes()).hexdigest(), header)
        self.assertIn(f"LC_ALL=C.UTF-8 {shlex.join([str(STAND_IN), *ours['argv']])}\n", header)
        self.assertIn("first launch", header)
        self.assertIn("to stderr\n", header)
        self.assertEqual(len(header.splitlines()), 4, header)

    def test_dialects(self) -> None:
        """Base units give exact figures; others are read too, and are rounded."""

        def run(job: tuple[str, Sequence[str]]) -> tuple[Path, dict[str, str]]:
            dialect, options = job
            kernel = self.kernel(NAME.format(len(options)), folder=self.tmp / f"cache/{dialect}")
            out = self.tmp / f"{dialect}-{len(options)}.csv"
            table = self.table([kernel], f"in-{out.name}")
            env = {"NCU_STAND_IN_DIALECT": dialect}
            done = self.run_program("-i", table, "-o", out, *options, env=env)
            self.assertEqual(done.returncode, 0, done.stderr)
            return kernel, self.rows(out)[0]

        exact: list[tuple[str, Sequence[str]]] = [(dialect, ()) for dialect in DIALECTS]
        rounded = [(dialect, ("--ncu-args=--print-units=auto",)) for dialect in DIALECTS]
        for kernel, row in together(functools.partial(run, job) for job in exact):
            self.assert_figures(row, kernel)
        for kernel, row in together(functools.partial(run, job) for job in rounded):
            self.assertNotEqual(row["ncu_mem_bw_gbps"], "")
            for name in FIGURES:
                exact_value = expected_figures(kernel)[name] or 0.0
                self.assertLess(abs(float(row[name]) / exact_value - 1), 0.011, row)

    def test_exact_cells(self) -> None:
        """0.057 ms is 57.0, 1.001 ms is 1001.0, never 1000.9999999999999."""
        options: dict[str, Any] = {"directives": "duration=16448 bandwidth=500000000000"}
        times = (0.057, 1.001, 0.003, 12.345)
        kernels = [
            self.kernel(NAME.format(number), ms=ms, **options) for number, ms in enumerate(times)
        ]
        self.augment(self.table(kernels))
        cells = [[row[name] for name in FIGURES] for row in self.rows(self.out)]
        expected = [
            [text, "16.448", "500.0", "0.008224"] for text in "57.0 1001.0 3.0 12345.0".split()
        ]
        self.assertEqual(cells, expected)

    def test_the_status_is_not_judged(self) -> None:
        """A kernel that ends with an error after its benchmark was measured all the same."""
        line = 'print(f"{ms:.3f}ms    {num_gb:.3f}GB    {gb_per_s:.2f}GB/s")\nraise SystemExit(3)'
        kernel = self.kernel(NAME.format(0), line=line)
        self.augment(self.table([kernel]))
        self.assertEqual(self.calls()[0]["status"], 3)
        self.assert_measured(kernel)

    def test_a_kernel_that_talks_like_ncu(self) -> None:
        """Its own tables, error texts and warnings change neither figures nor judgement."""
        other = self.kernel(NAME.format(1), directives="duration=1000 bandwidth=1000000000")
        fake = self.run_ncu(*OURS, sys.executable, other).stdout
        fake = "".join(line for line in fake.splitlines(True) if "GB/s" not in line)
        fake += "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission\n"
        fake += "==WARNING== No kernels were profiled.\n"
        fake += "==ERROR== Profiling failed because a driver resource was unavailable.\n"
        main = f"import sys\nsys.stdout.write({fake!r})\nsys.stderr.write({fake!r})"
        kernel = self.kernel(NAME.format(0), main=main)
        self.augment(self.table([kernel]))
        self.assertEqual(len(self.calls_for(kernel)), 1)
        self.assert_measured(kernel)

    def test_what_is_to_be_noted_is_no_failure(self) -> None:
        kernels = [
            self.kernel(NAME.format(0), directives="notes slow-warning"),
            self.kernel(NAME.format(1), directives="first-other-kernel"),
        ]
        done = self.augment(self.table(kernels))
        self.assert_measured(*kernels)
        self.assertNotIn("warning", done.stderr)

    def test_warnings_about_the_gpu(self) -> None:
        words = ("cc=8.0", "cc=9.0 no-bandwidth-row", "cc=9.0 no-bandwidth-row")
        kernels = [
            self.kernel(NAME.format(number), directives=words) for number, words in enumerate(words)
        ]
        table = self.table(kernels)
        for run in ("profiled", "cached"):
            with self.subTest(run):
                done = self.augment(table, "-q")
                self.assert_measured(*kernels)
                lines = done.stderr.splitlines()
                self.assertEqual(len(lines), 2, lines)
                counters = [line for line in lines if "DRAM" in line]
                self.assertRegex(counters[0], r"^warning: 2 .*bandwidth")
                chips = [line for line in lines if "CC 8.0" in line]
                self.assertRegex(chips[0], r"^warning: .*\b1\b.*CC 9\.0.*\b2\b")

    def test_permissions_that_umask_gives(self) -> None:
        kernels = self.kernels(2)
        bad = self.kernel(NAME.format(9), directives="nothing-profiled")
        log_of(kernels[0]).write_text("not valid\n")
        log_of(kernels[0]).chmod(0o600)
        table = self.table([*kernels, bad])
        fresh = self.tmp / "fresh.csv"
        process = self.start_program(
            *("-i", table, "-o", fresh), preexec_fn=functools.partial(os.umask, 0o026)
        )
        process.communicate(timeout=60)
        self.assertEqual(process.returncode, 1)
        for path in (log_of(kernels[0]), log_of(kernels[1]), error_of(bad), fresh):
            with self.subTest(path.name):
                self.assertEqual(oct(path.stat().st_mode & 0o777), "0o640")

    def test_a_folder_in_place_of_the_log(self) -> None:
        """Figures that cannot be stored still reach the output, with one warning."""
        kernels = self.kernels(3)
        for kernel in kernels[:2]:
            log_of(kernel).mkdir()
        done = self.augment(self.table(kernels), "-q")
        self.assert_measured(*kernels)
        self.assert_one_line(done.stderr, "warning: ", str(self.cache))
        self.assertTrue(log_of(kernels[2]).is_file())


class Cache(ProfileCase):
    """What is measured again, and what is not."""

    def test_nothing_is_measured_twice(self) -> None:
        kernels = self.kernels(2)
        linked = self.tmp / "link.py"
        table = self.table([*kernels, *kernels[::-1], kernels[0]])
        self.augment(table)
        self.assert_measured(*kernels, *kernels[::-1], kernels[0])
        first = self.out.read_bytes()
        self.assertEqual(len(self.calls()), 2)
        done = self.augment(table)
        self.assertEqual((self.out.read_bytes(), len(self.calls())), (first, 2))
        counts = summary(done.stderr)
        self.assertEqual((counts["rows"], counts["kernels"], counts["cached"]), (5, 2, 2))
        self.assertFalse(linked.exists())

    def test_an_edited_kernel_has_no_log(self) -> None:
        kernels = self.kernels(2)
        table = self.table(kernels)
        self.augment(table)
        with open(kernels[1], "a") as file:
            file.write("# ncu: duration=4711\n")
        self.augment(table, "--cached-only", status=1)
        rows = self.rows(self.out)
        self.assert_figures(rows[0], kernels[0])
        self.assert_blank(rows[1])
        self.augment(table)
        self.assert_measured(*kernels)
        self.assertEqual(self.rows(self.out)[1]["ncu_duration_us"], "4.711")
        self.assertEqual([len(self.calls_for(kernel)) for kernel in kernels], [1, 2])

    def test_a_log_outlives_its_kernel(self) -> None:
        kernel = self.kernel(NAME.format(0))
        table = self.table([kernel])
        self.augment(table)
        first = self.out.read_bytes()
        kernel.unlink()
        self.augment(table, "--ncu", NOT_THERE)
        self.assertEqual(self.out.read_bytes(), first)

    def test_logs_without_our_header_are_taken(self) -> None:
        kernel = self.kernel(NAME.format(0))
        printed = self.run_ncu("-k", "regex:triton", "--set", "full", sys.executable, kernel).stdout
        log_of(kernel).write_text(printed)
        self.augment(self.table([kernel]), "--ncu", NOT_THERE)
        row = self.rows(self.out)[0]
        self.assertNotIn("", [row[name] for name in FIGURES])
        self.assertEqual(log_of(kernel).read_text(), printed)

    def test_logs_that_are_not_valid(self) -> None:
        """Each is measured again."""
        words = ("nan", "truncated", "nothing-profiled", "na", "launch-failed")
        kernels = []
        for number, word in enumerate((*words, "csv", "empty")):
            directives = word if word in words else ""
            kernel = self.kernel(NAME.format(number), directives=directives)
            options = [*OURS, "--csv"] if word == "csv" else OURS
            text = self.run_ncu(*options, sys.executable, kernel).stdout
            kernel = self.kernel(NAME.format(number))
            log_of(kernel).write_text("" if word == "empty" else text)
            kernels.append(kernel)
        table = self.table(kernels)
        self.augment(table, "--cached-only", status=1)
        for row in self.rows(self.out):
            self.assert_blank(row)
        done = self.augment(table)
        self.assertEqual(summary(done.stderr)["profiled"], len(kernels))
        self.assert_measured(*kernels)

    def test_force(self) -> None:
        kernels = self.kernels(2)
        table = self.table(kernels)
        self.augment(table)
        before = log_of(kernels[0]).read_text()
        done = self.augment(table, "--force")
        self.assertEqual([len(self.calls_for(kernel)) for kernel in kernels], [2, 2])
        self.assertEqual(summary(done.stderr)["profiled"], 2)
        after = log_of(kernels[0]).read_text()
        self.assertNotEqual(before, after)
        process = str(self.calls()[2]["application"])
        self.assertIn(f"==PROF== Connected to process {process} ", after)

    def test_cached_only(self) -> None:
        kernels = self.kernels(3)
        self.augment(self.table(kernels[:1]))
        done = self.augment(self.table(kernels), "--cached-only", status=1)
        self.assertEqual(len(self.calls()), 1)
        rows = self.rows(self.out)
        self.assert_figures(rows[0], kernels[0])
        self.assert_blank(rows[1])
        self.assert_blank(rows[2])
        self.assertEqual(summary(done.stderr)["cached"], 1)
        self.assertEqual([error_of(kernel).exists() for kernel in kernels], [False] * 3)


class EveryKernelFails(ProfileCase):
    """The run stops after the first kernel, and says what to do."""

    def run_failing(self, job: tuple[str, str]) -> tuple[list[Path], Any, str]:
        """Run over two kernels; the kernels, what was said, the output."""
        name, dialect = job
        folder = self.cache / f"{name}-{dialect}"
        kernels = [self.kernel(NAME.format(number), folder=folder) for number in range(2)]
        table = self.table(kernels, f"{folder.name}.csv")
        out = self.write(f"out-{folder.name}.csv", "old\n")
        env = {"NCU_STAND_IN_FAIL": name, "NCU_STAND_IN_DIALECT": dialect}
        done = self.run_program("-i", table, "-o", out, env=env)
        return kernels, done, out.read_text()

    def test_each_way(self) -> None:
        jobs = [
            (name, dialect)
            for at, name in enumerate(FATAL)
            for number, dialect in enumerate(DIALECTS)
            if name in IN_EACH_DIALECT or number == at % len(DIALECTS)
        ]
        results = together(functools.partial(self.run_failing, job) for job in jobs)
        for (name, dialect), (kernels, done, out) in zip(jobs, results):
            with self.subTest(name, dialect=dialect):
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertEqual((done.stdout, out), ("", "old\n"))
                said, remedy = FATAL[name]
                self.assertIn(said, done.stderr)
                at = done.stderr.rindex(said) + len(said)
                self.assertIn(remedy, done.stderr[at:])
                self.assertNotIn("Traceback", done.stderr)
                self.assertEqual([len(self.calls_for(kernel)) for kernel in kernels], [1, 0])
                self.assertFalse(any(log_of(kernel).exists() for kernel in kernels))
        self.assertEqual((strays(self.cache), self.survivors()), ([], []))

    def test_option_errors(self) -> None:
        """Of the user's own options, as each version words them."""
        kernels = self.kernels(2)
        table = self.table(kernels)
        cases = {
            "--no-such-option=1": "unrecognised option '--no-such-option'",
            "--clock-control=maybe": "the argument for option '--clock-control' is invalid",
            "--cache-control=all --cache-control=all": "cannot be specified more than once",
            "--section=Nothing": "did not match any section",
        }
        for number, (options, said) in enumerate(cases.items()):
            dialect = DIALECTS[number % 2]
            with self.subTest(options, dialect=dialect):
                self.log.unlink(missing_ok=True)
                env = {"NCU_STAND_IN_DIALECT": dialect}
                done = self.augment(table, f"--ncu-args={options}", status=2, env=env)
                self.assertIn(said, done.stderr)
                self.assertIn("--ncu-args", done.stderr)
                self.assertEqual(self.calls_for(kernels[1]), [])

    def test_the_remedy_for_clocks_works(self) -> None:
        kernels = self.kernels(1)
        env = {"NCU_STAND_IN_FAIL": "clocks"}
        self.augment(self.table(kernels), "--ncu-args=--clock-control=none", env=env)
        self.assert_measured(*kernels)

    def test_what_was_measured_before_is_kept(self) -> None:
        kernels = self.kernels(2)
        self.augment(self.table(kernels[:1]))
        self.out.write_text("old\n")
        table = self.table(kernels)
        self.augment(table, status=2, env={"NCU_STAND_IN_FAIL": "permission"})
        self.augment(table)
        self.assert_measured(*kernels)
        self.assertEqual([len(self.calls_for(kernel)) for kernel in kernels], [1, 2])

    def test_the_first_ten_fail(self) -> None:
        """It is the set-up, time and again; what the last said is in a file of its own."""
        main = "raise ImportError('no torch, number %s' % __file__[-4])"
        kernels = [self.kernel(NAME.format(n), file=f"k{n:02}.py", main=main) for n in range(12)]
        before = sorted(self.cache.rglob("*"))
        for order in (kernels, kernels[::-1], kernels):
            self.log.unlink(missing_ok=True)
            done = self.augment(self.table(order), status=2)
            self.assertEqual([call["kernel"] for call in self.calls()], list(map(str, order[:10])))
            last = f"ImportError: no torch, number {str(order[9])[-4]}"
            self.assertIn(last, "\n".join(done.stderr.splitlines()[-5:]))
            [kept] = re.findall(r"\(all that it said: (.*)\)", done.stderr)
            self.assertIn(f"{last}\n", Path(kept).read_text())
            os.unlink(kept)
            self.assertEqual(sorted(self.cache.rglob("*")), before)

    def test_the_first_ten_fail_that_have_not_failed_before(self) -> None:
        """Those that are known to fail come last, and say nothing of the set-up."""
        kernels = self.kernels(12, main="raise ImportError('no torch')")
        for kernel in kernels:
            error_of(kernel).write_text("")
        done = self.augment(self.table(kernels), status=1)
        self.assertEqual(summary(done.stderr)["failed"], 12)
        self.assertTrue(all("no torch" in error_of(kernel).read_text() for kernel in kernels))

    def test_unable_after_some_failures(self) -> None:
        """Kernels that failed before ncu was found unable to profile here are not marked."""
        kernels = self.kernels(3, directives="nothing-profiled")
        kernels.append(self.kernel(NAME.format(3), directives="fail=permission"))
        for kernel in kernels[2:]:  # those come last
            error_of(kernel).write_text("")
        self.augment(self.table(kernels), status=2)
        self.assertEqual(len(self.calls()), 4)
        marked = sorted(self.cache.rglob("*.err"))
        self.assertEqual(marked, sorted(map(error_of, kernels[2:])))

    def test_nine_of_the_first_ten_fail(self) -> None:
        kernels = [
            self.kernel(NAME.format(number), directives="nothing-profiled" * (number != 9))
            for number in range(10)
        ]
        self.augment(self.table(kernels), status=1)
        self.assertEqual(len(self.calls()), 10)


class OneKernelFails(ProfileCase):
    """Its reason is said, its output kept, and the others go on."""

    # Options of the kernel, and what its reason holds.
    WAYS: tuple[tuple[dict[str, Any], str], ...] = (
        ({"directives": "nothing-profiled"}, "no kernel was profiled"),
        ({"directives": "launch-failed"}, "launch failed"),
        ({"directives": "fail=launch-failed"}, "launch failed"),
        ({"directives": "crash"}, "The application returned an error code (11)"),
        ({"main": "raise ValueError('the tensor is odd')"}, "ValueError: the tensor is odd"),
        ({"line": ""}, "no benchmark line"),
        ({"directives": "nan"}, "nan"),
        ({"directives": "truncated"}, "cut short"),
    )

    def test_whole_stderr(self) -> None:
        """Of a run in which one is measured, each other fails in its way, one is gone."""
        good = self.kernel(NAME.format(0))
        bad = [
            self.kernel(NAME.format(number), **options)
            for number, (options, _) in enumerate(self.WAYS, 1)
        ]
        gone = self.row(good, kernel_path=self.cache / "gone.py", kernel_name="triton_gone")
        done = self.augment(self.table([good, *bad, gone]), "-q", status=1)
        lines = done.stderr.splitlines()
        self.assertEqual(len(lines), len(bad) + 1, done.stderr)
        for number, (line, path) in enumerate(zip(lines, [*bad, self.cache / "gone.py"]), 1):
            reason = self.WAYS[number - 1][1] if number <= len(self.WAYS) else "no kernel file"
            name = NAME.format(number) if number <= len(self.WAYS) else "triton_gone"
            with self.subTest(reason):
                start = f"[{number + 1:2}/{len(lines) + 1}] "
                self.assertTrue(line.startswith(start), line)
                self.assertRegex(line[len(start) :], rf"^\d+\.\ds {name} {re.escape(str(path))} ")
                self.assertIn(reason, line)
        rows = self.rows(self.out)
        self.assert_figures(rows[0], good)
        for row in rows[1:]:
            self.assert_blank(row)

    def test_output_is_kept_until_it_succeeds(self) -> None:
        """And the failed one is tried last, again and again: failures are not cached."""
        line = "import sys\nprint('half a result')\nsys.exit('the reason')"
        kernels = [
            self.kernel(NAME.format(0), line=line),
            self.kernel(NAME.format(1)),
            self.kernel(NAME.format(2)),
        ]
        self.augment(self.table(kernels[:2]), status=1)
        kept = error_of(kernels[0]).read_text()
        process = self.calls()[0]["application"]
        self.assertIn("half a result\n==PROF== Disconnected from process", kept)
        self.assertIn(f"==PROF== Connected to process {process} ", kept)
        self.assertIn("the reason\n", kept)
        self.assertFalse(log_of(kernels[0]).exists())
        self.assertFalse(error_of(kernels[1]).exists())
        table = self.table(kernels)
        self.augment(table, status=1)
        again = [call["kernel"] for call in self.calls()[2:]]
        self.assertEqual(again, [str(kernels[2]), str(kernels[0])])
        self.assertTrue(error_of(kernels[0]).exists())
        self.kernel(NAME.format(0))
        self.augment(table)
        self.assert_measured(*kernels)
        self.assertFalse(error_of(kernels[0]).exists())

    def test_a_failure_leaves_an_old_log_alone(self) -> None:
        """--force that fails must not lose what was measured."""
        kernel = self.kernel(NAME.format(0))
        table = self.table([kernel])
        self.augment(table)
        before = log_of(kernel).read_bytes()
        self.augment(table, "--force", status=1, env={"NCU_STAND_IN_FAIL": "launch-failed"})
        self.assertEqual(log_of(kernel).read_bytes(), before)

    def test_no_harness(self) -> None:
        kernels = [self.kernel(NAME.format(0), harness=False), self.kernel(NAME.format(1))]
        done = self.augment(self.table(kernels), "-q", status=1)
        self.assert_one_line(done.stderr, str(kernels[0]), "TORCHINDUCTOR_BENCHMARK_KERNEL=1")
        self.assertEqual(self.calls_for(kernels[0]), [])
        self.assert_blank(self.rows(self.out)[0])

    def test_twelve_without_harness_are_not_the_set_up(self) -> None:
        """Only kernels that this run starts count as the first ten."""
        kernels = self.kernels(12, harness=False)
        done = self.augment(self.table(kernels), "-q", status=1)
        self.assertEqual(done.stderr.count("TORCHINDUCTOR_BENCHMARK_KERNEL=1"), 12)

    def test_a_script_that_is_no_inductor_kernel_is_run(self) -> None:
        text = 'def triton_by_hand(x):\n    pass\n\n\nprint("0.030ms    0.001GB    33.33GB/s")\n'
        kernel = self.write("cache/by_hand.py", text)
        self.augment(self.table([kernel]), status=1)  # the stand-in sees no launch in it
        self.assertIn("\n0.030ms    0.001GB    33.33GB/s\n", error_of(kernel).read_text())

    def test_a_kernel_that_changes_while_it_is_measured(self) -> None:
        mark = str(self.tmp / "mark")
        main = f"if not os.path.exists({mark!r}):\n"
        main += f"    open({mark!r}, 'w').close()\n    open(__file__, 'a').write('# edited\\n')"
        kernel = self.kernel(NAME.format(0), main=main)
        table = self.table([kernel])
        done = self.augment(table, "-q", status=1)
        self.assert_one_line(done.stderr, str(kernel), "changed")
        self.assertFalse(log_of(kernel).exists())
        self.assert_blank(self.rows(self.out)[0])
        self.augment(table)
        self.assert_measured(kernel)

    def test_the_whole_output_of_a_changed_kernel_is_kept(self) -> None:
        main = "open(__file__, 'a').write('# edited\\n')"
        kernel = self.kernel(NAME.format(0), main=main)
        self.augment(self.table([kernel]), status=1)
        self.assertIn("==PROF== Disconnected", error_of(kernel).read_text())

    def test_a_resource_that_is_unavailable(self) -> None:
        """Tried again after 2 and 4 seconds; then it is a failure."""
        passing = self.kernel(NAME.format(0), directives="resource-unavailable=2")
        lasting = self.kernel(NAME.format(1), directives="fail=resource-or-permission")
        done = self.augment(self.table([passing, lasting]), "-q", status=1)
        self.assert_one_line(done.stderr, str(lasting), "driver resource was unavailable")
        rows = self.rows(self.out)
        self.assert_figures(rows[0], passing)
        self.assert_blank(rows[1])
        for kernel in (passing, lasting):
            calls = self.calls_for(kernel)
            pauses = [b["started"] - a["ended"] for a, b in zip(calls, calls[1:])]
            self.assertEqual([pauses[0] >= 2, pauses[1] >= 4, len(pauses)], [True, True, 2])
        self.assertIn("driver resource was unavailable", error_of(lasting).read_text())
        self.assertFalse(error_of(passing).exists())


BENCHMARKER = """\
class benchmarker:
    benchmark = staticmethod(lambda call, device, rep: 0.027)
"""
SLIP = "ms = benchmarker.benchmark(lambda: call(args), device=%s, rep=40)"


class BareDevice(ProfileCase):
    """torch 2.10 forgot the quotes around the device of each harness."""

    def bare(self, number: int, **options: Any) -> Path:
        """A kernel file that ends with a NameError where nothing defines cuda."""
        line = "assert sys.argv == [__file__] and __name__ == '__main__'"
        place = "assert sys.path[0] == os.path.dirname(__file__), sys.path"
        main = f"import sys\n{line}\n{options.pop('more', place)}\n{SLIP % 'cuda'}"
        return self.kernel(NAME.format(number), top=BENCHMARKER, main=main, **options)

    def test_it_is_run_all_the_same(self) -> None:
        kernels = [self.bare(0), self.kernel(NAME.format(1)), self.bare(2)]
        self.write("runpy.py", "raise SystemExit('the wrong runpy')\n")
        with_name, without, _ = self.augment_from(self.tmp, kernels)
        self.assertEqual(without[-2:], [sys.executable, str(kernels[1])])
        self.assertEqual(
            (with_name[-4:-2], with_name[-1]), ([sys.executable, "-c"], str(kernels[0]))
        )
        self.assert_measured(*kernels)

    def augment_from(self, folder: Path, kernels: Sequence[Path]) -> list[list[str]]:
        """Run the program from a folder; return the command lines that ncu was given."""
        done = self.run_program("-i", self.table(kernels), "-o", self.out, cwd=folder)
        self.assertEqual(done.returncode, 0, done.stderr)
        return [call["argv"] for call in self.calls()]

    def test_dry_run(self) -> None:
        kernel = self.bare(0)
        done = self.augment(self.table([kernel]), "--dry-run")
        self.assertEqual(done.stdout.count("\n"), 1)
        pasted = subprocess.run(
            ["sh", "-c", done.stdout], env=self.environment, capture_output=True, text=True
        )
        self.assertEqual(pasted.returncode, 0, pasted.stdout + pasted.stderr)
        self.assertIn("Section: GPU Speed Of Light", pasted.stdout)

    def test_in_a_batch(self) -> None:
        self.use_torch()
        kernels = [self.bare(0, torch=True, more=""), self.kernel(NAME.format(1), torch=True)]
        kernels.append(self.bare(2, torch=True, more=""))
        self.augment(self.table(kernels), "--quick", "--batch", "3")
        self.assert_measured(*kernels)
        self.assertEqual(len(self.calls()), 1)

    def test_another_type_of_device(self) -> None:
        """ncu profiles on NVIDIA's GPUs alone: it is not started, and the reason says so."""
        kernels = [
            self.kernel(NAME.format(number), main=f"device = dict(device={device})")
            for number, device in enumerate(("'xpu'", "'hip'", "xpu"))
        ]
        done = self.augment(self.table(kernels), "-q", status=1)
        for kind, count in (("xpu", 2), ("hip", 1)):
            self.assertEqual(done.stderr.count(f"compiled for {kind}, which ncu cannot"), count)
        self.assertEqual(self.calls(), [])


class DryRun(ProfileCase):
    """What would run, ready to paste."""

    def test_whole_output(self) -> None:
        odd = self.kernel(NAME.format(0), file="it's $HOME.py")
        cached, bare = self.kernel(NAME.format(1)), self.kernel(NAME.format(2), harness=False)
        plain = self.kernel(NAME.format(3))
        self.augment(self.table([cached]))
        self.out.write_text("old\n")
        before = sorted(self.tmp.rglob("*"))
        table = self.table([odd, cached, bare, plain])
        done = self.augment(table, "--dry-run", "--ncu-args=--nvtx-include 'a b/'")
        command = ["env", "LC_ALL=C.UTF-8", str(STAND_IN), *OURS, "--nvtx-include", "a b/"]
        expected = [
            shlex.join([*command, sys.executable, str(kernel)])[len("env ") :] + "\n"
            for kernel in (odd, plain)
        ]
        self.assertEqual(done.stdout, "".join(expected))
        self.assertRegex(done.stderr, r"\b2\b")
        self.assertEqual((len(self.calls()), self.out.read_text()), (1, "old\n"))
        self.assertEqual(sorted(self.tmp.rglob("*")), before)
        pasted = subprocess.run(
            ["/bin/sh"], input=done.stdout, env=self.environment, capture_output=True, text=True
        )
        self.assertEqual(pasted.stderr, "")
        calls = self.calls()[1:]
        self.assertEqual([call["kernel"] for call in calls], [str(odd), str(plain)])
        self.assertEqual([call["lc_all"] for call in calls], ["C.UTF-8"] * 2)
        self.assertEqual(pasted.stdout.count("Section: Memory Workload Analysis\n"), 2)

    def test_nothing_would_run(self) -> None:
        """Then nothing is printed, and nothing is written."""
        kernel = self.kernel(NAME.format(0))
        table = self.table([kernel])
        self.augment(table)
        self.out.write_text("old\n")
        for options in ((), ("--cached-only",)):
            with self.subTest(options):
                done = self.augment(table, "--dry-run", *options)
                self.assertEqual((done.stdout, self.out.read_text()), ("", "old\n"))
                self.assertRegex(done.stderr, r"\b0\b")
        self.assertEqual(len(self.calls()), 1)

    def test_an_empty_table(self) -> None:
        done = self.augment(self.table([]), "--dry-run")
        self.assertEqual((done.stdout, self.out.read_text()), ("", "old\n"))


class Said(ProfileCase):
    """What a person reads, whole."""

    SUMMARY = (
        "rows            7\n"
        "left out        2  1 foreach, 1 torn\n"
        "kernels         6\n"
        "cached          1\n"
        "profiled        2\n"
        "failed          3  2 no kernel was profiled, 1 no benchmark harness\n"
        "no log          0\n"
        "time      T\n"
    )

    def prepare(self) -> tuple[Path, list[Path]]:
        """A table with one of everything; and its kernels."""
        kernels = self.kernels(3)
        self.augment(self.table(kernels[:1]))
        kernels += [
            self.kernel(NAME.format(3), directives="nothing-profiled"),
            self.kernel(NAME.format(4), directives="nothing-profiled"),
            self.kernel(NAME.format(5), harness=False),
        ]
        foreach = self.row(kernels[0], kernel_category="foreach")
        torn = self.row(kernels[0], kernel_path="")
        return self.table([*kernels[:2], torn, foreach, *kernels[2:], kernels[0]]), kernels

    def test_through_a_pipe(self) -> None:
        table, kernels = self.prepare()
        done = self.augment(table, status=1)
        reasons = {3: "no kernel was profiled", 4: "no kernel was profiled"}
        reasons[5] = "no benchmark harness"
        lines = done.stderr.split("\n")
        self.assertRegex(lines[0], r"^warning: line 4 .*left out$")
        for number, line in enumerate(lines[1:6], 1):
            start = f"[{number + 1}/6] Ts {NAME.format(number)} {kernels[number]}"
            line = without_times(line)
            if number in reasons:
                self.assertTrue(line.startswith(f"{start} failed: {reasons[number]}"), line)
            else:
                self.assertEqual(line, start)
        self.assertEqual(without_times("\n".join(lines[6:])), self.SUMMARY)

    def test_through_a_terminal(self) -> None:
        table, kernels = self.prepare()
        status, said = self.run_in_pty("-i", table, "-o", self.out)
        text = said.decode()
        self.assertEqual(status, 1)
        self.assertNotIn("\x1b", text)
        screen, drawn = show(text)
        self.assertEqual(without_times("\n".join(screen[-9:])), self.SUMMARY)
        self.assertRegex(screen[0], "^warning: line 4 ")
        failed = screen[1:-9]
        for line, number in zip(failed, (3, 4, 5)):
            self.assertIn(f" {NAME.format(number)} {kernels[number]} failed: ", line)
        self.assertEqual(len(failed), 3, failed)
        self.assertTrue(drawn)
        for line in drawn:
            self.assertLess(len(line), 80)
            self.assertRegex(
                without_times(line),
                r"^\d/6 done, \d cached, \d profiled, \d failed(, T s/kernel, ETA T)?$",
            )

    def test_the_estimate_counts_what_is_still_to_be_profiled(self) -> None:
        """Three of five are cached; of the two others, one is done."""
        cached, slow = self.kernels(3), "import time; time.sleep(0.6)"
        self.augment(self.table(cached))
        rest = [self.kernel(NAME.format(20 + n), main=slow) for n in range(2)]
        _, said = self.run_in_pty("-i", self.table([*cached, *rest]), "-o", self.out)
        _, drawn = show(said.decode())
        pattern = (
            r"^4/5 done, 3 cached, 1 profiled, 0 failed, (\S+) s/kernel, ETA (\d+):(\d+):(\d+)$"
        )
        found = [match for match in (re.match(pattern, line) for line in drawn) if match]
        self.assertTrue(found, drawn)
        rate = float(found[0][1])
        left = int(found[0][2]) * 3600 + int(found[0][3]) * 60 + int(found[0][4])
        self.assertGreaterEqual(rate, 0.6)
        self.assertLessEqual(abs(left - rate), 0.6)

    def test_quiet(self) -> None:
        table, _ = self.prepare()
        done = self.augment(table, "-q", status=1)
        self.assertEqual(len(done.stderr.splitlines()), 4, done.stderr)
        self.assertEqual(self.augment(self.table(self.kernels(2)), "-q").stderr, "")
        status, said = self.run_in_pty("-q", "-i", self.table(self.kernels(2)), "-o", self.out)
        self.assertEqual((status, said), (0, b""))

    def test_output_to_stdout_is_the_table_alone(self) -> None:
        kernels = self.kernels(2)
        done = self.run_program("-i", self.table(kernels), "-o", "-")
        rows = list(csv.DictReader(io.StringIO(done.stdout)))
        self.assertEqual((done.returncode, len(rows)), (0, 2))
        for row, kernel in zip(rows, kernels):
            self.assert_figures(row, kernel)
        self.assertEqual(len(done.stderr.splitlines()), 9, done.stderr)

    def test_lines_come_as_kernels_end(self) -> None:
        """Not all at the end: a person follows a batch job's log."""
        gate = self.tmp / "gate"
        main = f"import time\nwhile not os.path.exists({str(gate)!r}):\n    time.sleep(0.02)"
        kernels = [self.kernel(NAME.format(0)), self.kernel(NAME.format(1), main=main)]
        said = self.tmp / "said"
        with open(said, "w") as stderr:
            process = self.start_program("-i", self.table(kernels), "-o", self.out, stderr=stderr)
            wait_for(lambda: str(kernels[0]) in said.read_text())
            gate.touch()
            process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0)


def show(text: str) -> tuple[list[str], list[str]]:
    """What a terminal shows in the end, by lines, and each status line that it showed before."""
    screen, drawn = [""], []
    for line in text.replace("\r\n", "\n").split("\n"):
        shown = ""
        for part in line.split("\r"):
            shown = part + shown[len(part) :]
            if "done" in part:
                drawn.append(part.rstrip())
        screen.append(shown.rstrip())
    return screen[1:], drawn


if __name__ == "__main__":
    unittest.main()
