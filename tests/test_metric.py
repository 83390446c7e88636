"""--metric: any figure that ncu has, as a column."""

from __future__ import annotations

import random
import re
import sys
import unittest
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path

from tests import logs_by_hand as hand
from tests.runs import NAME, RunCase
from tests.support import FIGURES
from tests.test_logs import REAL, REAL_LOGS
from tests.test_quick import BOTH

REGISTERS = "launch__registers_per_thread"
SECTORS = "lts__t_sectors.sum"
THROUGHPUT = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
BANDWIDTH_LABEL = "Memory Workload Analysis/Memory Throughput"


def asked(*names: str) -> list[str]:
    """The options that ask for some metrics."""
    return [word for name in names for word in ("--metric", name)]


class ProfiledTest(RunCase):
    """Names, and rows of the full set, of kernels that are profiled."""

    def kernels(self, count: int, **options: object) -> list[Path]:
        directives = "duration=6210 bandwidth=1227906976.74"
        return super().kernels(count, directives=directives, **options)

    def test_whole_output(self) -> None:
        kernels = self.kernels(2)
        metrics = {
            "L2 Hit Rate": "67.29",
            BANDWIDTH_LABEL: "1227906976.74",
            SECTORS: "1234567",
            "Duration": "6210",
            "L1/TEX Hit Rate": "0",
            REGISTERS: "32",
        }
        done = self.go(kernels, *asked(*metrics))
        self.assert_output(kernels, metrics=metrics)
        self.assertNotIn("warning", done.stderr)
        self.assertEqual(self.metrics(), [f"{SECTORS},{REGISTERS}"] * 2)
        for call in self.calls():
            self.assertEqual(call["argv"].count("--set"), 1)
        self.log.unlink()
        self.go(kernels, *asked(*metrics), "--cached-only")
        self.assert_output(kernels, metrics=metrics)

    def test_rows_of_the_full_set_ask_for_nothing_more(self) -> None:
        (kernel,) = self.kernels(1)
        self.go([kernel], *asked("Achieved Occupancy"))
        self.assert_output([kernel], metrics={"Achieved Occupancy": "78.16"})
        self.assertEqual(self.metrics(), [""])

    def test_quick_batch_and_gpus(self) -> None:
        metrics = {THROUGHPUT: "17.33", SECTORS: "1234567"}
        self.use_torch()
        for options, torch in (
            (("--quick",), False),
            (("--quick", "--batch", "3"), True),
            (("--batch", "2"), True),
            (("--gpus", "0,1", "--quick"), False),
        ):
            with self.subTest(options):
                self.log.unlink(missing_ok=True)
                kernels = self.kernels(3, torch=torch)
                self.go(kernels, *options, *asked(*metrics), "--force")
                self.assert_output(kernels, metrics=metrics)
                ours = BOTH + "," if "--quick" in options else ""
                self.assertEqual({*self.metrics()}, {f"{ours}{THROUGHPUT},{SECTORS}"})

    def test_joined_with_the_user_s_own(self) -> None:
        (kernel,) = self.kernels(1)
        self.go([kernel], *asked(THROUGHPUT), f"--ncu-args=--metrics {SECTORS},{THROUGHPUT}")
        self.assert_output([kernel], metrics={THROUGHPUT: "17.33"})
        self.assertEqual(self.metrics(), [f"{THROUGHPUT},{SECTORS}"])

    def test_in_base_units_in_every_dialect(self) -> None:
        metrics = {"Duration": "6210", BANDWIDTH_LABEL: "1230000000"}
        for dialect in ("2022", "2024", "2025"):
            kernels = [
                self.kernel(f"{NAME}{dialect}", directives="duration=6210 bandwidth=1230000000.00")
            ]
            options = (*asked(*metrics), "--ncu-args=--print-units auto")
            done = self.run_program(
                "-i", self.table(kernels), "-o", self.out, *options,
                env={"NCU_STAND_IN_DIALECT": dialect},
            )  # fmt: skip
            self.assertEqual(done.returncode, 0, done.stderr)
            (row,) = self.rows(self.out)
            self.assertEqual({name: row[name] for name in metrics}, metrics, dialect)

    def test_dry_run(self) -> None:
        kernels = self.kernels(1)
        done = self.run_program(
            "-i", self.table(kernels), "-o", self.out, "--dry-run", *asked(THROUGHPUT)
        )
        self.assertIn(f" --metrics {THROUGHPUT} {sys.executable} ", done.stdout)
        self.assertFalse(self.log.exists())

    def test_a_failed_kernel_is_blank(self) -> None:
        good, bad = self.kernels(1)[0], self.kernel(f"{NAME}bad", main="raise SystemExit(3)")
        done = self.go([good, bad], *asked("Duration", REGISTERS), status=1)
        self.assert_output([good, bad], [bad], metrics={"Duration": "6210", REGISTERS: "32"})
        self.assertNotIn("blank cells", done.stderr)

    def test_a_column_of_that_name_is_replaced(self) -> None:
        kernels = self.kernels(2)
        self.go(kernels, *asked("Duration", REGISTERS))
        first = self.out.read_bytes()
        again = self.tmp / "again.csv"
        done = self.run_program("-i", self.out, "-o", again, *asked("Duration", REGISTERS))
        self.assertEqual((done.returncode, again.read_bytes()), (0, first), done.stderr)
        done = self.run_program("-i", self.out, "-o", again, *asked(REGISTERS))
        header = again.read_text().splitlines()[0]
        self.assertTrue(
            header.endswith(f"kernel_args_num_gb,Duration,{','.join(FIGURES)},{REGISTERS}")
        )


class RefusedTest(RunCase):
    """A name that ncu does not know is a mistake of the user's."""

    def test_ends_the_run_at_the_first_kernel(self) -> None:
        name = "sm__no_such_thing.sum"
        self.use_torch()
        for options in ((), ("--quick",), ("--quick", "--batch", "4")):
            with self.subTest(options):
                self.log.unlink(missing_ok=True)
                kernels = self.kernels(12, torch=True)
                self.out.write_text("as it was")
                done = self.go(kernels, *asked(THROUGHPUT, name), *options, status=2)
                self.assertIn(f"==ERROR== Failed to find metric {name}\n  remedy: ", done.stderr)
                self.assertIn("--metric", done.stderr.partition("remedy: ")[2])
                self.assertEqual(len(self.calls()), 1)
                self.assertEqual(self.out.read_text(), "as it was")
                self.assertEqual(list(self.cache.rglob("*.ncu*")), [])

    def test_a_gpu_without_dram_counters(self) -> None:
        """Our own bandwidth metric is given up, and what the user asks for is not."""
        kernels = self.kernels(2)
        self.go(kernels, "--quick", *asked(THROUGHPUT), NCU_STAND_IN_NO_DRAM="1")
        self.assert_output(kernels, no_bandwidth=True, metrics={THROUGHPUT: "17.33"})
        bandwidth = BOTH.partition(",")[2]
        done = self.go(
            kernels, "--quick", *asked(bandwidth), "--force", status=2, NCU_STAND_IN_NO_DRAM="1"
        )
        self.assertIn(f"Failed to find metric {bandwidth}", done.stderr)

    def test_a_path_with_the_name_of_a_metric(self) -> None:
        name = "dram__bytes_no_such.sum"
        kernel = self.kernel(f"{NAME}0", folder=self.cache / BOTH.partition(",")[2], file="k.py")
        self.go([kernel], "--quick", *asked(name), status=2)
        self.assertEqual(len(self.calls()), 2, "without our own, which it could mean, once more")

    def test_not_without_figures(self) -> None:
        done = self.run_program(
            "-i", self.cache, "-o", self.out, "--table-only", *asked("Duration")
        )
        self.assertEqual(done.stderr, "error: --table-only and --metric exclude each other\n")
        self.assertEqual(done.returncode, 2)

    def test_what_cannot_be_a_column(self) -> None:
        table = self.table(self.kernels(1))
        for names, options, what in (
            (["Duration", "Duration"], (), "'Duration' is given twice"),
            (["kernel_name"], (), "'kernel_name' is a column already"),
            (["ncu_duration_us"], (), "'ncu_duration_us' is a column already"),
            ([""], (), "'' is no name"),
            (["L2\nHit Rate"], (), "'L2\\nHit Rate' is no name"),
            ([f"{REGISTERS},{SECTORS}"], (), "is not one metric"),
            (["regex:sm__.*"], (), "'regex:sm__.*' is not one metric"),
            (["L2 Hit Rate"], ("--quick",), "'L2 Hit Rate' is a row of the full set"),
        ):
            with self.subTest(names):
                done = self.run_program("-i", table, "-o", self.out, *asked(*names), *options)
                self.assertEqual((done.returncode, done.stdout), (2, ""))
                self.assertRegex(done.stderr, r"\Aerror: --metric: .*\n\Z")
                self.assertIn(what, done.stderr)
                self.assertFalse(self.out.exists() or self.log.exists())


class CacheCase(RunCase):
    """Asks logs that are there already."""

    said = ""  # on stderr, by the last run

    def cells(self, logs: Sequence[bytes | str], *names: str) -> list[dict[str, str]]:
        """What each log has for some names, in one run of the program."""
        paths = [self.cache / f"{number}.py" for number in range(len(logs))]
        for path, log in zip(paths, logs):
            text = log.encode() if isinstance(log, str) else log
            path.with_suffix(".ncu").write_bytes(text)
        rows = [{"kernel_name": "triton_", "kernel_path": str(path)} for path in paths]
        table = self.table(rows)
        done = self.run_program("-i", table, "-o", self.out, "--cached-only", *asked(*names))
        self.said = done.stderr
        self.assertEqual(done.returncode, 0, done.stderr)
        return [{name: row[name] for name in names} for row in self.rows(self.out)]


class ValueTest(CacheCase):
    """What a row's unit and digits mean."""

    def occupancy(self, rows: Sequence[tuple[str, str, str]], layout: str = "2024") -> str:
        """A log with a section more."""
        section = hand.table("Launch Statistics", rows, hand.LAYOUTS[layout])
        return hand.log(hand.result(layout=layout) + section)

    def assert_values(self, values: Mapping[tuple[str, str], str], layout: str = "2024") -> None:
        """Each unit and text gives what it must."""
        rows = [(f"Row Number {at}", *quantity) for at, quantity in enumerate(values)]
        (found,) = self.cells([self.occupancy(rows, layout)], *(name for name, _, _ in rows))
        self.assertEqual(dict(zip(values, found.values())), values)

    def test_base_units(self) -> None:
        values = {
            ("usecond", "6.21"): "6210",
            ("us", "6.20"): "6200",
            ("ns", "6210"): "6210",
            ("nsecond", "16.448"): "16448",
            ("msecond", "1,234.50"): "1234500000",
            ("ms", "0.05"): "50000",
            ("second", "1.01"): "1010000000",
            ("s", "0"): "0",
            ("Gbyte/second", "412.09"): "412090000000",
            ("Tbyte/s", "1.20"): "1200000000000",
            ("byte/second", "1227906976.74"): "1227906976.74",
            ("Kbyte", "102.40"): "102400",
            ("Mbyte", "25.17"): "25170000",
            ("Kbyte/block", "1.02"): "1020",
            ("cycle/nsecond", "1.41"): "1410000000",
            ("cycle/usecond", "999.57"): "999570000",
            ("cycle/second", "1471875000"): "1471875000",
            ("Ghz", "5.21"): "5210000000",
            ("Mhz", "765.25"): "765250000",
            ("inst/cycle", "2.30"): "2.30",
            ("register/thread", "56"): "56",
            ("%", "99.48"): "99.48",
            ("%", "0.05"): "0.05",
            ("", "132"): "132",
            ("SM", "132"): "132",
            ("warp", "27,66"): "27.66",
            ("thread", "270,336"): "270336",
            ("cycle", "10.171"): "10171",
            ("cycle", "7.653,73"): "7653.73",
            ("cycle", "10 171"): "10171",
            ("", "10\u202f171"): "10171",
            ("", "1 234 567,50"): "1234567.50",
            ("inst", "12,34,567"): "1234567",
        }
        for layout in ("2020", "2024"):
            self.assert_values(values, layout)

    def test_what_is_no_number_is_blank(self) -> None:
        texts = ("(!) n/a", "(!) nan", "nan", "n/a", "inf", "CachePreferNone", "-", "1,2,3", "1e5",
                 "0x10", "7 (8; 9)", "12 %", "1.2.3")  # fmt: skip
        self.assert_values({(unit, text): "" for unit in ("", "%", "usecond") for text in texts})

    def test_words_that_end_in_a_number(self) -> None:
        rows = [
            ("Device Name", "", "Quadro 5000"),
            ("Driver", "", "CUDA 12.4"),
            ("Device", "", "GPU 0"),
            ("Some Longer Label", "usecond", "6.21"),
        ]
        right = {"Device Name": "", "Driver": "", "Device": "", "Some Longer Label": "6210"}
        for layout in ("2020", "2024"):
            self.assertEqual(self.cells([self.occupancy(rows, layout)], *right), [right])

    def test_a_name_that_is_no_row(self) -> None:
        text = """\
    Section: Extra
    ----- ------- -----
    Lat A usecond  6.21
    SMs             132
    ----- ------- -----
    Section: Narrow
    --- -- ----
    Foo Bar   5
    --- -- ----
"""
        right = {
            "Extra/Lat A": "6210",
            "SMs": "132",
            "Lat A usecond": "",
            "Extra/Lat A usecond": "",
            "Extra/": "",
            "/SMs": "",
            "Foo": "",
            "Narrow/Foo": "",
        }
        self.assertEqual(self.cells([hand.log(hand.result()) + text], *right), [right])

    def test_a_label_that_begins_like_another(self) -> None:
        rows = [("Threads Peak", "", "7"), ("Threads Per Block", "thread", "64")]
        more = [*rows, ("Threads", "thread", "8")]
        for layout in ("2020", "2024"):
            logs = [self.occupancy(rows, layout), self.occupancy(more, layout)]
            cells = [row["Threads"] for row in self.cells(logs, "Threads")]
            self.assertEqual(cells, ["", "8"])

    def test_a_name_wider_than_its_column(self) -> None:
        name = f"smsp__{'x' * 80}.sum"
        log = self.occupancy([(name, "inst", "5")], "2020")
        self.assertEqual(self.cells([log], name), [{name: "5"}])

    def test_several_rows(self) -> None:
        def log(*sections: tuple[str, Sequence[tuple[str, str, str]]]) -> str:
            tables = (hand.table(name, rows, hand.LAYOUTS["2024"]) for name, rows in sections)
            return hand.log(hand.result() + "".join(tables))

        row = ("Spills", "byte", "512")
        other = ("Spills", "byte", "513")
        unit = ("Spills", "sector", "512")
        logs = {
            log(("Launch Statistics", [row])): ("512", "512"),
            log(("Launch Statistics", [row]), ("Source Counters", [row])): ("512", "512"),
            log(("Launch Statistics", [row]), ("Source Counters", [other])): ("", "512"),
            log(("Launch Statistics", [row]), ("Source Counters", [unit])): ("", "512"),
            log(("Launch Statistics", [row, other])): ("", ""),
            log(("Launch Statistics", [row, row])): ("512", "512"),
            log(("Launch Statistics", [row]), ("Launch Statistics", [other])): ("", ""),
            log(("Source Counters", [row])): ("512", ""),
            log(("Launch Statistics", [row])).replace("    Spills", "    Spilt"): ("", ""),
            log(("Launch Statistics", [row])).rstrip("-\n"): ("", ""),
        }
        names = ("Spills", "Launch Statistics/Spills")
        found = [tuple(cells.values()) for cells in self.cells([*logs], *names)]
        self.assertEqual(found, [*logs.values()])

    def test_of_the_triton_kernel(self) -> None:
        other = hand.result(layout="2024", name=hand.AT_NATIVE, brief=True)
        table = hand.table("Occupancy", [("Spills", "byte", "1")], hand.LAYOUTS["2024"])
        log = hand.log(other + table, hand.result(), names=("at", "triton_poi_fused_mul_sin_2"))
        (found,) = self.cells([log], "Achieved Occupancy", "Spills")
        self.assertEqual(found, {"Achieved Occupancy": "71.15", "Spills": ""})

    def test_hostile_text_takes_no_time(self) -> None:
        many = b"Section: Occupancy\n --- --- ---\n Spills byte 1\n" * 20_000
        logs = [
            hand.log(hand.result()).encode() + text
            for text in (many, b"Spills " * 200_000, b"Section: " + b" " * 1_000_000 + b"Spills 1")
        ]
        names = ("Spills", "Occupancy/Spills", "Launch Statistics/Spills")
        self.assertEqual(self.cells(logs, *names), [dict.fromkeys(names, "")] * 3)


class WarningTest(CacheCase):
    """What is said where a log lacks what is asked for."""

    def test_one_warning_and_the_way_out(self) -> None:
        kernels = self.kernels(3)
        self.go(kernels[:1], *asked(REGISTERS))
        self.go(kernels[1:], "--quick")
        self.log.unlink()
        names = (REGISTERS, "Achieved Occupancy")
        done = self.go(kernels, *asked(*names))
        self.assertEqual(self.calls(), [], "a log without is as valid as before")
        cells = [[row[name] for name in names] for row in self.rows(self.out)]
        self.assertEqual(cells, [["32", "78.16"], ["", ""], ["", ""]])
        warnings = [line for line in done.stderr.splitlines() if line.startswith("warning: ")]
        self.assertEqual(warnings, [
            "warning: 2 kernels have blank cells of --metric: their logs have no such number "
            "(--force profiles them again)"
        ])  # fmt: skip
        done = self.go(kernels, *asked(*names), "--force")
        self.assert_output(kernels, metrics={REGISTERS: "32", "Achieved Occupancy": "78.16"})
        self.assertNotIn("warning", done.stderr)

    def hint(self, *names: str) -> str:
        """What is said of names that no log has."""
        self.cells([hand.log(hand.result())] * 2, *names)
        return "\n".join(re.findall("warning: no log .*", self.said))

    def test_a_hint_of_the_nearest(self) -> None:
        for name, near in {
            "Achieved occupancy": "'Achieved Occupancy'",
            "L2 Hitrate": "'L2 Hit Rate'",
            "Memory Workload/Memory Throughput": f"'{BANDWIDTH_LABEL}'",
            "Memory Throughput": (
                f"'GPU Speed Of Light Throughput/Memory Throughput' or '{BANDWIDTH_LABEL}'"
            ),
        }.items():
            with self.subTest(name):
                right = f"warning: no log has one number for {name!r}; is {near} "
                self.assertEqual(self.hint(name)[: len(right)], right)
                self.assertNotIn("--force", self.said)
        self.assertEqual(self.hint("zzz", "Duration"), "")
        self.assertIn("warning: 2 kernels have blank cells of --metric", self.said)

    def test_only_what_has_a_number_is_named(self) -> None:
        """Not the name itself, not what was asked for in vain, no row of another kernel."""
        rows = [(SECTORS, "", "(!) n/a"), ("sm__cycles.avg", "cycle", "7")]
        metrics = hand.table("Command line profiler metrics", rows, hand.LAYOUTS["2024"])
        policy = hand.table("Extra", [("Policy", "", "Spread")], hand.LAYOUTS["2024"])
        other = hand.result(name=hand.AT_NATIVE) + hand.table(
            "Extra", [("Spills", "byte", "1")], hand.LAYOUTS["2024"]
        )
        log = hand.log(other, hand.result() + metrics + policy, names=("at", "triton_poi_fused"))
        for name, near in {
            SECTORS: "",
            "Policy": "",
            "Extra/Policy": "",
            "Extra/Spills": "",
            "sm__cycles": "'sm__cycles.avg'",
            "sm__cycle.avg": "'sm__cycles.avg'",
        }.items():
            with self.subTest(name):
                self.cells([log], name)
                found = re.findall("no log has one number for .*; is (.*) meant", self.said)
                self.assertEqual(found, [near] if near else [])

    def test_the_hint_takes_no_time(self) -> None:
        chance = random.Random(0)
        rule = "    " + "-" * 199 + " - -\n"
        rows = ("".join(chance.choice("ab") for _ in range(199)) for _ in range(20_000))
        table = "".join(f"    {row} x 1\n" for row in rows)
        log = f"{hand.log(hand.result())}    Section: Extra\n{rule}{table}{rule}"
        self.cells([log], "ab" * 99)
        self.assertIn("warning: ", self.said)

    def test_no_force_where_it_was_just_profiled(self) -> None:
        (kernel,) = self.kernels(1)
        done = self.go([kernel], *asked("zzz"))
        self.assertIn("1 kernels have blank cells", done.stderr)
        self.assertNotIn("--force", done.stderr)

    def test_no_log_no_hint(self) -> None:
        table = self.table(self.kernels(1))
        done = self.run_program("-i", table, "-o", self.out, "--cached-only", *asked("Duration"))
        self.assertEqual(done.returncode, 1)
        self.assertNotIn("no log has", done.stderr)


@unittest.skipUnless(REAL.is_dir(), "needs ../shared/ncu-logs")
class RealLogTest(CacheCase):
    """Output of real ncus. It is not of Inductor kernels, so the benchmark line is added."""

    def read(self, *names: str) -> list[bytes]:
        """Some logs."""
        benchmark = hand.BENCHMARK.encode() + b"\n"
        return [benchmark + (REAL / f"{name}.log").read_bytes() for name in names]

    def rows_of(self, name: str) -> dict[str, tuple[str, str]]:
        """Units and values in base units without separators, by Section/Label."""
        text = (REAL / f"{name}.log").read_text()
        found = {}
        for section, rule, rest in re.findall(
            r"Section: (.*)\n(    -+ -+ -+\n)(.*\n(?s:.*?))\n\n", text
        ):
            first, second, _ = (len(run) for run in rule.split())
            for line in rest.replace(rule, "").splitlines()[1:-1]:
                label, unit, value = line[4 : 4 + first], line[5 + first : 5 + first + second], ""
                value = line[5 + first + second :].strip()
                found[f"{section}/{label.strip()}"] = (unit.strip(), value)
        return found

    def test_every_row_under_every_locale(self) -> None:
        base = "h100-2024.1-full-print-units-base"
        rows = self.rows_of(base)
        self.assertGreater(len(rows), 80)
        number = re.compile(r"[0-9]+(\.[0-9]+)?")
        right = {
            name: value if number.fullmatch(value) else "" for name, (_, value) in rows.items()
        }
        logs = self.read(base, f"{base}-LC_ALL-de_DE", f"{base}-LC_ALL-en_IN")
        self.assertEqual(self.cells(logs, *rows), [right] * 3)
        short = "h100-2024.1-full"
        logs = self.read(short, f"{short}-LC_ALL-de_DE", f"{short}-LC_ALL-fr_FR")
        rounded, *others = self.cells(logs, *rows)
        self.assertEqual(others, [rounded] * 2)
        for name, value in rounded.items():
            self.assertEqual(value == "", right[name] == "", name)
            exact = Decimal(right[name] or 0)
            self.assertLessEqual(abs(Decimal(value or 0) - exact), exact / 200, name)

    def test_known_values(self) -> None:
        known = {name: values for name, values in REAL_LOGS.items() if values}
        found = self.cells(self.read(*known), "Duration", BANDWIDTH_LABEL)
        for cells, (name, values) in zip(found, known.items()):
            right = [Decimal(values[0]) * 1000, values[1] and Decimal(values[1]) * 10**9]
            self.assertEqual([value and Decimal(value) for value in cells.values()], right, name)
