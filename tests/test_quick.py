"""--quick: the two metrics that the columns need, in one pass."""

from __future__ import annotations

import os

from tests.runs import NAME, RunCase
from tests.support import FIGURES

DURATION = "gpu__time_duration.sum"
BANDWIDTH = "dram__bytes.sum.per_second"
BOTH = f"{DURATION},{BANDWIDTH}"


class OnePassTest(RunCase):
    """What ncu is asked for, and what comes of it."""

    def test_whole_output(self) -> None:
        kernels = self.kernels(3)
        done = self.go(kernels, "--quick")
        self.assert_output(kernels)
        self.assertNotIn("warning", done.stderr)
        self.assertEqual(self.metrics(), [BOTH] * 3)
        for kernel in kernels:
            text = kernel.with_suffix(".ncu").read_text()
            self.assertIn("Section: Command line profiler metrics", text)
            self.assertIn(" 1 pass\n", text)
            self.assertNotIn("Speed Of Light", text)

    def test_command(self) -> None:
        (kernel,) = self.kernels(1)
        self.go([kernel], "--quick", "--ncu-args=--clock-control=none")
        (call,) = self.calls()
        words = set(call["argv"])
        self.assertFalse({"--set", "full", "--set=full"} & words)
        self.assertTrue({"-k", "regex:triton", "-c", "1", "--print-units", "base"} <= words)
        self.assertIn("--clock-control=none", words)

    def test_every_dialect(self) -> None:
        for dialect in ("2022", "2024", "2025"):
            kernels = [self.kernel(f"{NAME}{dialect}")]
            self.go(kernels, "--quick", NCU_STAND_IN_DIALECT=dialect)
            self.assert_output(kernels)

    def test_dry_run(self) -> None:
        kernels = self.kernels(2)
        table = self.table(kernels)
        done = self.run_program("-i", table, "-o", self.out, "--quick", "--dry-run")
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = done.stdout.splitlines()
        self.assertEqual(len(lines), 2)
        for line in lines:
            self.assertIn(BOTH, line)
            self.assertNotIn("--set", line)
        self.assertFalse(self.out.exists() or self.log.exists())

    def test_not_available_is_a_gpu_without_dram_counters(self) -> None:
        kernels = [
            self.kernel(f"{NAME}na", directives="na"),
            self.kernel(f"{NAME}row", directives="no-bandwidth-row"),
            self.kernel(f"{NAME}both"),
        ]
        done = self.go(kernels, "--quick")
        self.assert_output(kernels)
        self.assertEqual(done.stderr.count("warning:"), 1, done.stderr)
        self.assertRegex(done.stderr, "warning: 2 kernels have no bandwidth")

    def test_nan_is_a_failure(self) -> None:
        bad = self.kernel(f"{NAME}nan", directives="nan")
        good = self.kernel(f"{NAME}good")
        done = self.go([bad, good], "--quick", status=1)
        rows = self.rows(self.out)
        self.assertEqual([rows[0][name] for name in FIGURES], [""] * 4)
        self.assert_figures(rows[1], good)
        self.assertRegex(done.stderr, f"{bad} failed: .*nan")
        self.assertFalse(bad.with_suffix(".ncu").exists())
        self.assertIn("(!) nan", bad.with_suffix(".ncu.err").read_text())

    def test_a_table_cut_short_is_a_failure(self) -> None:
        bad = self.kernel(f"{NAME}cut", directives="truncated")
        done = self.go([bad], "--quick", status=1)
        self.assertEqual([self.rows(self.out)[0][name] for name in FIGURES], [""] * 4)
        self.assertIn(f"{bad} failed: ", done.stderr)


class RefusedTest(RunCase):
    """A GPU that does not know the bandwidth metric: ncu refuses to run with it."""

    def test_both_texts(self) -> None:
        for value in "12":
            with self.subTest(value):
                kernels = [self.kernel(f"{NAME}{value}{n}") for n in range(3)]
                self.log.unlink(missing_ok=True)
                done = self.go(kernels, "--quick", NCU_STAND_IN_NO_DRAM=value)
                self.assert_output(kernels, no_bandwidth=True)
                self.assertEqual(done.stderr.count("warning:"), 1, done.stderr)
                self.assertIn("3 kernels have no bandwidth", done.stderr)
                self.assertEqual(self.metrics(), [BOTH, *[DURATION] * 3])
                self.assertEqual(list(self.cache.rglob("*.err")), [])

    def test_several_gpus(self) -> None:
        kernels = self.kernels(6)
        done = self.go(kernels, "--quick", "--gpus", "0,1", NCU_STAND_IN_NO_DRAM="1")
        self.assert_output(kernels, no_bandwidth=True)
        self.assertEqual(done.stderr.count("warning:"), 1, done.stderr)
        self.assertLessEqual(len(self.calls()), 8, "each GPU is refused once")

    def test_such_a_log_serves_a_full_run(self) -> None:
        kernels = self.kernels(2)
        self.go(kernels, "--quick", NCU_STAND_IN_NO_DRAM="2")
        self.log.unlink()
        self.go(kernels, NCU_STAND_IN_NO_DRAM="2")
        self.assert_output(kernels, no_bandwidth=True)
        self.assertEqual(self.calls(), [])

    def test_refused_by_the_user_s_own_metrics(self) -> None:
        """What the user asks for by name is theirs to mend: the run ends at once."""
        (kernel,) = self.kernels(1)
        for options in (
            (f"--ncu-args=--metrics={BOTH}",),
            ("--quick", f"--ncu-args=--metrics={BOTH}"),
        ):
            with self.subTest(options):
                self.log.unlink(missing_ok=True)
                table = self.table([kernel], "in.csv")
                done = self.run_program(
                    "-i", table, "-o", self.out, *options,
                    env={"NCU_STAND_IN_NO_DRAM": "1"},
                )  # fmt: skip
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertIn(f"Failed to find metric {BANDWIDTH}\n  remedy: ", done.stderr)
                self.assertEqual(len(self.calls()), 1)


class CacheTest(RunCase):
    """One cache for both kinds of log: the four columns are the same."""

    def test_each_serves_the_other(self) -> None:
        for first, then in (((), ("--quick",)), (("--quick",), ())):
            with self.subTest(then):
                kernels = [self.kernel(f"{NAME}{len(first)}{n}") for n in range(2)]
                self.go(kernels, *first)
                logs = [kernel.with_suffix(".ncu").read_bytes() for kernel in kernels]
                self.log.unlink()
                done = self.go(kernels, *then)
                self.assertEqual(self.calls(), [])
                self.assert_output(kernels)
                self.assertRegex(done.stderr, r"cached +2\n")
                again = [kernel.with_suffix(".ncu").read_bytes() for kernel in kernels]
                self.assertEqual(again, logs)

    def test_force(self) -> None:
        kernels = self.kernels(2)
        for options, wanted in ((("--quick",), [BOTH] * 2), ((), [""] * 2)):
            self.go(kernels)
            self.log.unlink(missing_ok=True)
            self.go(kernels, "--force", *options)
            self.assertEqual(self.metrics(), wanted)
            self.assert_output(kernels)
            self.log.unlink(missing_ok=True)

    def test_cached_only(self) -> None:
        kernels = self.kernels(2)
        self.go(kernels, "--quick")
        os.unlink(self.log)
        self.go(kernels, "--cached-only", PATH="/nonexistent")
        self.assert_output(kernels)
