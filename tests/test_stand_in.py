"""Tests of the stand-in ncu: what it claims of the real one must hold before others rely on it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support import FIGURES, STAND_IN, Case, expected_figures, strays, wait_for

NAME = "triton_poi_fused_add_0"
FULL = ("-k", "regex:triton", "-c", "1", "--set", "full")
QUICK = ("--metrics", "gpu__time_duration.sum,dram__bytes.sum.per_second")
BASE = ("--print-units", "base")
BATCH = ("--profile-from-start", "off", "--nvtx", "--print-nvtx-rename", "kernel")
DRIVER = """
import runpy, sys, torch
for path in sys.argv[1:]:
    names = runpy.run_path(path, run_name='__main__')
    args = names['get_args']()
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    torch.cuda.nvtx.range_push('k7')
    names['call'](args)
    torch.cuda.synchronize()
    torch.cuda.nvtx.range_pop()
    torch.cuda.profiler.stop()
"""


class StandInCase(Case):
    """Runs the stand-in on one kernel file."""

    def profile(self, kernel: Path, *options: str, **env: str) -> subprocess.CompletedProcess[str]:
        """The stand-in's run of a kernel file."""
        return self.run_ncu(*(options or FULL), sys.executable, kernel, env=env)

    def drive(self, *kernels: Path) -> subprocess.CompletedProcess[str]:
        """The stand-in's run of a batch."""
        self.use_torch()
        command = [*QUICK, *BASE, *BATCH, sys.executable, "-c", DRIVER]
        return self.run_ncu(*command, *kernels)


class Pages(StandInCase):
    """What a good run prints."""

    def test_whole_output(self) -> None:
        kernel = self.kernel(NAME, directives="duration=6880 bandwidth=1227906976.74 cc=9.0")
        done = self.profile(kernel, *FULL[:4], *QUICK, *BASE)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        process = self.calls()[0]["application"]
        executable = os.path.realpath(sys.executable)
        expected = (
            f"==PROF== Connected to process {process} ({executable})\n"
            f'==PROF== Profiling "{NAME}" - 0: 0%....50%....100% - 1 pass\n'
            "0.027ms    0.004GB    148.15GB/s\n"
            f"==PROF== Disconnected from process {process}\n"
            f"[{process}] {os.path.basename(executable)}@127.0.0.1\n"
            f"  {NAME} (2785, 1, 1)x(128, 1, 1), Context 1, Stream 7, Device 0, CC 9.0\n"
            "    Section: Command line profiler metrics\n"
            "    -------------------------- ----------- -------------\n"
            "    Metric Name                Metric Unit  Metric Value\n"
            "    -------------------------- ----------- -------------\n"
            "    dram__bytes.sum.per_second byte/second 1227906976.74\n"
            "    gpu__time_duration.sum         nsecond          6880\n"
            "    -------------------------- ----------- -------------\n\n"
        )
        self.assertEqual(done.stdout, expected)

    def test_dialects_and_units(self) -> None:
        kernel = self.kernel(NAME, directives="duration=6880 bandwidth=1227906976.74")
        wanted = {
            ("2022", ()): ("usecond", "6.88", "Gbyte/second", "1.23"),
            ("2024", ()): ("usecond", "6.88", "Gbyte/second", "1.23"),
            ("2025", ()): ("us", "6.88", "Gbyte/s", "1.23"),
            ("2022", BASE): ("nsecond", "6880", "byte/second", "1227906976.74"),
            ("2025", BASE): ("ns", "6880", "byte/s", "1227906976.74"),
        }
        for (dialect, units), values in wanted.items():
            with self.subTest(dialect=dialect, units=units):
                out = self.profile(kernel, *FULL, *units, NCU_STAND_IN_DIALECT=dialect).stdout
                lines = [" ".join(line.split()) for line in out.splitlines()]
                self.assertIn("Duration {} {}".format(*values[:2]), lines)
                self.assertIn("Memory Throughput {} {}".format(*values[2:]), lines)
                self.assertIn(f'Profiling "{NAME}" - 0: 0%....50%....100% - 38 passes', out)
                self.assertEqual("Metric Name" in out, dialect != "2022")
                self.assertEqual("Memory [%]" in out, dialect == "2022")

    def test_locale(self) -> None:
        kernel = self.kernel(NAME, directives="duration=16448 bandwidth=1227906976.74")
        for locale, duration, rate in (
            ("C.UTF-8", "16448", "1227906976.74"),
            ("en_US.UTF-8", "16,448", "1,227,906,976.74"),
            ("de_DE.UTF-8", "16.448", "1.227.906.976,74"),
        ):
            out = self.profile(kernel, *FULL, *BASE, LANG="fr_FR.UTF-8", LC_ALL=locale).stdout
            self.assertRegex(out, rf"Duration +nsecond +{duration}\n")
            self.assertRegex(out, rf"Memory Throughput +byte/second +{rate}\n")

    def test_directives(self) -> None:
        for words, wanted, missing in (
            ("nan", "Duration +nsecond +\\(!\\) nan", "Duration +nsecond +[0-9]"),
            ("na", "Throughput +byte/second +\\(!\\) n/a", "n/a +[0-9]"),
            ("no-bandwidth-row", "Section: Memory Workload Analysis\n", "byte/second"),
            ("nothing-profiled", "==WARNING== No kernels were profiled.", "Section"),
            ("launch-failed", "LaunchFailed(.|\n)*code \\(9\\)(.|\n)*nan", "nsecond +[0-9]"),
            ("truncated bandwidth=1227906976.74", "byte/second +122790$", "Occupancy"),
            ("first-other-kernel", "  void at::(.|\n)*  triton_poi_fused_add_0 \\(", "ERROR"),
            ("notes slow-warning", "0%\n==WARNING== Launching(.|\n)*\\.{4}50%", "ERROR"),
            ("crash", "returned an error code \\(11\\)", "Section"),
        ):
            with self.subTest(words):
                out = self.profile(self.kernel(NAME, directives=words), *FULL, *BASE).stdout
                self.assertRegex(out, wanted)
                self.assertNotRegex(out, missing)

    def test_other_kernels_do_not_match(self) -> None:
        kernel = self.kernel(NAME)
        for pattern, profiled in (
            ("regex:poi", True), ("regex:^poi", False), ("triton", False), (NAME, True),
            ('"regex:triton"', False), ("regex:TRITON", False),
        ):  # fmt: skip
            out = self.profile(kernel, "-k", pattern, "--set", "full").stdout
            self.assertEqual("No kernels were profiled" not in out, profiled, pattern)

    def test_a_file_that_reports_nothing(self) -> None:
        source = f"@triton_heuristics.pointwise(\ndef {NAME}(x):\n"
        code = f'"""\n{source}"""\nprint("0.001ms    0.000GB    0.00GB/s")\n'
        out = self.profile(self.write("cache/silent.py", code)).stdout
        self.assertIn(f'Profiling "{NAME}"', out)
        out = self.profile(self.write("cache/silent.py", code + "raise SystemExit(3)\n")).stdout
        self.assertIn("returned an error code (3)", out)
        self.assertIn("No kernels were profiled", out)


class Failures(StandInCase):
    """What a bad run prints, and where."""

    def test_options_refused(self) -> None:
        for options, message in (
            (("--bogus",), "unrecognised option '--bogus'"),
            (("--set", "full", "--set=full"), "option '--set' cannot be specified more than once"),
            (("--print-units", "x"), "the argument for option '--print-units' is invalid"),
            (("--csv", "--set"), "the required argument for option '--set' is missing"),
        ):
            new = self.run_ncu(*options)
            text = f"==ERROR== {message}. Use --help for further details.\n"
            self.assertEqual((new.returncode, new.stdout, new.stderr), (1, text, ""))
            old = self.run_ncu(*options, env={"NCU_STAND_IN_DIALECT": "2022"})
            text = f"{message}\n\nUse --help for further details.\n"
            self.assertEqual((old.returncode, old.stdout, old.stderr), (255, "", text))
        done = self.run_ncu("--section", "Speed", sys.executable, "-c", "0")
        self.assertIn("'--section Speed' did not match any section.", done.stdout)
        self.assertEqual(self.run_ncu("--set", "x", sys.executable, "-c", "0").returncode, 0)

    def test_the_same_failure_for_every_kernel(self) -> None:
        kernel = self.kernel(NAME)
        benchmark = "0.027ms    0.004GB    148.15GB/s\n"
        for name, status, benchmarked in (
            ("permission", 0, True), ("permission-vgpu", 0, True), ("unsupported-device", 0, True),
            ("driver-incompatible", 9, False), ("library-not-loaded", 9, False),
            ("lock-file", 9, False), ("temp-file", 1, False), ("clocks", 9, False),
            ("driver-stub", 1, False), ("not-executable", 1, False), ("bad-section", 1, False),
            ("resource-unavailable", 9, False),
        ):  # fmt: skip
            with self.subTest(name):
                done = self.profile(kernel, *FULL, NCU_STAND_IN_FAIL=name)
                self.assertEqual(done.returncode, status)
                self.assertEqual(benchmark in done.stdout, benchmarked)
                self.assertEqual("failed to connect" in done.stderr, name == "driver-stub")
                self.assertIn("==ERROR== ", done.stdout)
                self.assertNotIn("Section: ", done.stdout)
        none = (*FULL, "--clock-control", "none")
        self.assertIn("Section", self.profile(kernel, *none, NCU_STAND_IN_FAIL="clocks").stdout)

    def test_passing_failure(self) -> None:
        kernel = self.kernel(NAME, directives="resource-unavailable=2")
        found = ["a driver resource was unavailable" in self.profile(kernel).stdout for _ in "123"]
        self.assertEqual(found, [True, True, False])

    def test_no_dram_counters(self) -> None:
        kernel = self.kernel(NAME)
        refusals = {"1": "Failed to find metric", "2": "Failed to access the following"}
        for value, text in refusals.items():
            done = self.profile(kernel, *QUICK, NCU_STAND_IN_NO_DRAM=value)
            self.assertEqual(done.returncode, 9)
            self.assertIn(f"==ERROR== {text}", done.stdout)
            duration = ("--metrics", "gpu__time_duration.sum")
            done = self.profile(kernel, *duration, NCU_STAND_IN_NO_DRAM=value)
            self.assertIn("gpu__time_duration.sum", done.stdout)
            done = self.profile(kernel, *FULL, NCU_STAND_IN_NO_DRAM="1")
            self.assertIn("Section: Memory Workload Analysis\n", done.stdout)
            self.assertNotIn("byte/second", done.stdout)

    def test_status_is_the_application_s(self) -> None:
        for main, status in (("raise SystemExit(7)", 7), ("os.kill(os.getpid(), 15)", 15)):
            done = self.profile(self.kernel(NAME, main=main))
            self.assertEqual(done.returncode, status)
            expected = (
                f"==ERROR== The application returned an error code ({status}).\n"
                "==WARNING== No kernels were profiled.\n"
            )
            self.assertEqual(done.stdout, expected)

    def test_signals(self) -> None:
        deaf = "import signal, time\nsignal.signal(15, signal.SIG_IGN)\nprint('in', flush=True)\n"
        for number, words, main, status, alive in (
            (signal.SIGTERM, "hang", "", 0, 0),
            (signal.SIGTERM, "", deaf + "time.sleep(60)", 0, 1),
            (signal.SIGKILL, "hang=deaf", "", -9, 0),
        ):
            with self.subTest(number=number, words=words):
                kernel = self.kernel(NAME, directives=words, main=main)
                ended, out = self.interrupt(kernel, number, "Launching" if words else "in\n", alive)
                self.assertEqual(ended, status)
                self.assertEqual("No kernels were profiled" in out, not status)

    def interrupt(self, kernel: Path, number: int, marker: str, alive: int) -> tuple[int, str]:
        """Signal ncu's group once a line has come; its status and the rest of its output."""
        command = [str(STAND_IN), *FULL, sys.executable, str(kernel)]
        process = subprocess.Popen(
            command,
            env=self.environment,
            start_new_session=True,
            universal_newlines=True,
            stdout=subprocess.PIPE,
        )
        assert process.stdout
        with process.stdout as lines:
            wait_for(lambda: marker in lines.readline())
            os.killpg(process.pid, number)
            status = process.wait(timeout=60)
            wait_for(lambda: len(self.survivors()) == alive)
            self._end_survivors()
            return status, lines.read()


class Batches(StandInCase):
    """The stub torch and the stand-in together."""

    def test_only_the_tuned_launch(self) -> None:
        words = "duration=5000 trial-duration=9000"
        kernels = [self.kernel(f"{NAME}{n}", torch=True, directives=words) for n in range(2)]
        out = self.drive(*kernels).stdout
        self.assertEqual(out.count(f"  k7/{NAME}"), 2)
        self.assertEqual(out.count("NVTX Push/Pop Stack"), 2)
        self.assertEqual(len(re.findall(r"nsecond +5000\n", out)), 2)
        self.assertRegex(self.profile(kernels[0], *FULL, *BASE).stdout, r"nsecond +9000\n")

    def test_events(self) -> None:
        kernel = self.kernel(NAME, torch=True)
        self.drive(kernel)
        (call,) = self.calls()
        tuned = call["events"][3:]
        kinds = ["synchronize", "start", "push", "launch", "synchronize", "pop", "stop"]
        self.assertEqual([event["event"] for event in tuned], kinds)
        self.assertEqual(tuned[2]["label"], "k7")
        self.assertEqual(tuned[3]["file"], str(kernel))
        self.assertEqual(tuned[1]["live"], 4, "those of the benchmark are still held")
        self.assertEqual(call["profiled"], [NAME])

    def test_poisoned_context(self) -> None:
        poison = "if torch.stand_in.profiling(): torch.stand_in.poison()"
        kernels = [
            self.kernel(f"{NAME}{n}", torch=True, in_call=poison if n else "") for n in range(3)
        ]
        done = self.drive(*kernels)
        self.assertIn("an illegal memory access was encountered", done.stderr)
        self.assertIn("error code (1)", done.stdout)
        self.assertEqual(done.stdout.count("Section: "), 1, "the first result is still printed")


class Surroundings(StandInCase):
    """What is passed on, recorded and left behind."""

    def test_log(self) -> None:
        kernel = self.kernel(NAME)
        self.profile(kernel, *FULL, CUDA_VISIBLE_DEVICES="3", LC_ALL="C.UTF-8")
        (call,) = self.calls_for(kernel)
        wanted: dict[str, Any] = {
            "cuda": "3", "lc_all": "C.UTF-8", "stdin": "/dev/null", "status": 0,
            "argv": [*FULL, sys.executable, str(kernel)], "stopped": False,
        }  # fmt: skip
        self.assertEqual({name: call[name] for name in wanted}, wanted)
        self.assertLessEqual(call["started"], call["ended"])
        self.assertEqual((strays(self.cache), self.survivors()), ([], []))

    def test_descriptors_pass_through(self) -> None:
        reading, writing = os.pipe()
        code = f"import os; os.write({writing}, b'here')"
        command = [str(STAND_IN), "--set", "full", sys.executable, "-c", code]
        subprocess.run(
            command, env=self.environment, pass_fds=[writing], stdout=subprocess.DEVNULL, check=True
        )
        os.close(writing)
        with open(reading, "rb") as pipe:
            self.assertEqual(pipe.read(), b"here")

    def test_bare_environment(self) -> None:
        kernel = self.kernel(NAME)
        done = subprocess.run(
            ["/usr/bin/env", "-i", "PATH=/usr/bin:/bin", STAND_IN, *FULL, sys.executable, kernel],
            stdout=subprocess.PIPE,
        )
        self.assertIn(b"Section: Memory Workload Analysis\n", done.stdout)

    def test_expected_figures(self) -> None:
        words = "duration=6880 bandwidth=1227906976.74"
        figures = expected_figures(self.kernel(NAME, directives=words, ms=0.0314))
        wanted = dict(zip(FIGURES, (31.0, 6.88, 1.2279069767400, 1.2279069767400 * 6.88e-6)))
        self.assertEqual(list(figures), list(wanted))
        for name, value in wanted.items():
            self.assertAlmostEqual(figures[name] or 0, value, 12)

    def test_costs(self) -> None:
        kernel = self.kernel(NAME)
        self.profile(kernel, *FULL, NCU_STAND_IN_COSTS="start=0.1,first=0.1,pass=0.01")
        (call,) = self.calls()
        self.assertGreater(call["ended"] - call["started"], 0.58)
