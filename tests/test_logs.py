"""Every layout, unit, locale and mishap of a cached log, through the program."""

from __future__ import annotations

import csv
import os
import re
import unittest
from collections.abc import Mapping
from decimal import Decimal

from tests import logs_by_hand as hand
from tests import support

REAL = support.TESTS.parent.parent / "shared" / "ncu-logs"
BLANK = ("", "", "")

try:
    from hypothesis import given, settings
    from hypothesis import strategies as st
except ImportError:
    st = None  # type: ignore[assignment]


class LogCase(support.Case):
    """Tests that put logs into the cache and ask for what they hold."""

    said = ""  # on stderr, by the last run

    def cells_of(self, logs: Mapping[str, bytes]) -> dict[str, hand.Cells]:
        """The first three figures that the program finds in each log, in one run.

        The fourth must be their product. There are no kernel files: a log stays valid without.
        """
        self.cache.mkdir(exist_ok=True)
        paths = {name: f"{self.cache}/{number}" for number, name in enumerate(logs)}
        for name, log in logs.items():
            file = os.open(paths[name] + ".ncu", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.write(file, log)
            os.close(file)
        return self.look_up({name: path + ".py" for name, path in paths.items()})

    def look_up(self, paths: Mapping[str, str]) -> dict[str, hand.Cells]:
        """The figures of some kernel paths, out of the cache."""
        table, out = self.tmp / "in.csv", self.tmp / "out.csv"
        with open(table, "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["kernel_name", "kernel_path", "kernel_category"])
            writer.writerows([name, path, "pointwise"] for name, path in paths.items())
        done = self.run_program("-i", table, "-o", out, "--cached-only")
        self.said = done.stderr
        self.assertEqual(done.stdout, "")
        self.assertNotIn("Traceback", done.stderr)
        found = {}
        rows = self.rows(out)
        self.assertEqual([row["kernel_name"] for row in rows], list(paths))
        for row in rows:
            latency, duration, bandwidth, accessed = (row[name] for name in support.FIGURES)
            found[row["kernel_name"]] = (latency, duration, bandwidth)
            self.assertEqual(accessed == "", bandwidth == "", row)
            if accessed and "inf" not in (duration, bandwidth):
                product = float(Decimal(bandwidth) * Decimal(duration) / 10**6)
                self.assertAlmostEqual(float(accessed) / (product or 1), bool(product), 12, row)
        misses = sum(cells == BLANK for cells in found.values())
        self.assertEqual(done.returncode, int(misses > 0), done.stderr)
        self.assertEqual(self.log.exists(), False, "ncu was started")
        return found

    def assert_cells(self, expected: Mapping[str, hand.Example]) -> None:
        """Each log gives what it must."""
        found = self.cells_of({name: example.log for name, example in expected.items()})
        right = {name: example.cells or BLANK for name, example in expected.items()}
        wrong = {name: (found[name], right[name]) for name in right if found[name] != right[name]}
        self.assertEqual(wrong, {}, "found, right")


class FormTest(LogCase):
    """Logs by hand."""

    def test_every_form(self) -> None:
        self.assert_cells(hand.EXAMPLES)

    def test_scaling_is_exact_in_decimal(self) -> None:
        logs = {}
        for thousandths in [*range(1, 60), *range(960, 1060), *range(99_950, 100_010), 999_999_999]:
            milliseconds = f"{thousandths // 1000}.{thousandths % 1000:03}"
            text = hand.log(
                hand.result(
                    ("nsecond", str(thousandths)), ("Mbyte/second", str(thousandths)), brief=True
                ),
                benchmark=f"{milliseconds}ms    0.006GB    193.55GB/s",
            )
            scaled = str(float(Decimal(thousandths) / 1000))
            cells = (str(float(thousandths)), scaled, scaled)
            logs[str(thousandths)] = hand.Example(text.encode(), cells)
        self.assertEqual(logs["57"].cells, ("57.0", "0.057", "0.057"))
        self.assertEqual(logs["1001"].cells, ("1001.0", "1.001", "1.001"))
        self.assert_cells(logs)

    def test_a_cut_log_is_whole_or_none(self) -> None:
        """At every byte: none until the last table that counts is closed, then the right one."""
        for name, (log, cells) in hand.SAMPLES.items():
            with self.subTest(name):
                ends = range(len(log) + 1)
                found = self.cells_of({str(end): log[:end] for end in ends})
                closed = len(log.partition(hand.TAIL)[0].rstrip())
                expected = {str(end): cells if end >= closed else BLANK for end in ends}
                wrong = {end: found[end] for end in found if found[end] != expected[end]}
                self.assertEqual(wrong, {}, f"closed at {closed}")

    def test_a_cut_before_the_triton_kernel(self) -> None:
        """ncu has said that it profiled a Triton kernel: the other one's figures are not its."""
        log, cells = hand.two_results()
        found = self.cells_of({str(end): log[:end] for end in range(0, len(log) + 1, 3)})
        self.assertEqual(set(found.values()), {cells, BLANK})

    def test_lines_of_the_first_script(self) -> None:
        """The spellings that its patterns were written for."""
        lines = {
            "Duration                      usecond         6.21": ("31.0", "6.21", "4.39"),
            "Duration                      msecond         1.10": ("31.0", "1100.0", "4.39"),
            "Duration                      second          2.00": ("31.0", "2000000.0", "4.39"),
        }
        rates = {
            "Memory Throughput           Gbyte/second         4.39": "4.39",
            "Memory Throughput           Gbyte/second     1,000.00": "1000.0",
            "Memory Throughput           Tbyte/second         1.30": "1300.0",
            "Memory Throughput           Mbyte/second       810.75": "0.81075",
            "Memory Throughput           Kbyte/second        12.00": "1.2e-05",
        }
        text = (
            "  {name} (96, 1, 1)x(128, 1, 1), Context 1, Stream 7, Device 0, CC 8.0\n"
            "    Section: GPU Speed Of Light Throughput\n    ------- ------- -------\n"
            "    Metric Name Metric Unit Metric Value\n    ------- ------- -------\n"
            "    {time}\n    ------- ------- -------\n\n"
            "    Section: Memory Workload Analysis\n    ------- ------- -------\n"
            "    Metric Name Metric Unit Metric Value\n    ------- ------- -------\n"
            "    {rate}\n    ------- ------- -------\n"
        )
        logs = {}
        for time, cells in lines.items():
            for rate, bandwidth in rates.items():
                log = hand.log(text.format(name="triton_per_fused_0", time=time, rate=rate))
                logs[time + rate] = hand.Example(log.encode(), (*cells[:2], bandwidth))
        self.assert_cells(logs)


class SourceTest(LogCase):
    """Which kernel source a log measured."""

    def setUp(self) -> None:
        super().setUp()
        self.path = self.kernel("triton_poi_fused_cos_0")
        self.log_path = self.path.with_suffix(".ncu")
        self.expected = support.expected_figures(self.path)

    def profile(self) -> None:
        """Have the program write the log."""
        done = self.run_program("-i", self.table([self.path]), "-o", self.tmp / "profiled.csv")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.log.unlink()

    def assert_found(self, there: bool) -> None:
        """The log counts, with the right figures, or does not."""
        found = self.look_up({"k": str(self.path)})["k"]
        values = list(self.expected.values())[:3]
        self.assertEqual(found, tuple(map(str, values)) if there else BLANK)

    def test_log_of_this_source(self) -> None:
        self.profile()
        self.assert_found(True)
        self.assertIn("LC_ALL=C.UTF-8", self.log_path.read_text())
        self.assertIn("first launch", self.log_path.read_text())

    def test_touched_but_not_edited(self) -> None:
        self.profile()
        os.utime(self.path, (1, 1))
        self.assert_found(True)

    def test_edited_kernel_has_no_log(self) -> None:
        self.profile()
        before = self.path.read_bytes()
        for edited in (before + b"\n", before[:-1], b"", before.replace(b"1000", b"1001", 1)):
            self.path.write_bytes(edited)
            self.assert_found(False)
        self.path.write_bytes(before)
        self.assert_found(True)

    def test_kernel_file_gone(self) -> None:
        self.profile()
        self.path.unlink()
        self.assert_found(True)

    def test_log_that_names_no_source_is_taken_as_it_is(self) -> None:
        self.profile()
        lines = self.log_path.read_bytes().splitlines(keepends=True)
        digest = [line for line in lines if re.search(rb"\b[0-9a-f]{64}\b", line)]
        self.assertEqual(len(digest), 1)
        self.log_path.write_bytes(b"".join(line for line in lines if line not in digest))
        self.path.write_bytes(b"# edited\n" + self.path.read_bytes())
        self.assert_found(True)

    def test_edited_kernel_is_profiled_again(self) -> None:
        self.profile()
        self.path.write_text(support.kernel_source("triton_poi_fused_cos_0", ms=0.055))
        done = self.run_program("-i", self.table([self.path]), "-o", self.tmp / "out.csv")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(len(self.calls()), 1)
        self.assert_figures(self.rows(self.tmp / "out.csv")[0], self.path)


class NoLogTest(LogCase):
    """What lies where a log should, and is none, stops nothing."""

    def test_no_log_at_all(self) -> None:
        junk = {
            "bytes": bytes(range(256)) * 20,
            "NULs": b"\0" * 5000,
            "UTF-16": hand.log().encode("utf-16"),
            "one line": b"-" * 100_000,
            "rules": b"    Section: GPU Speed Of Light\n" + b"    -- -- --\n" * 20_000,
            "kernel lines": b"  k, Context 1, Stream 7\n" * 20_000,
            "GB/s": b"GB/s" * 50_000,
            "benchmark lines": b"1ms 1GB 1GB/s\n" * 20_000,
            "hashes": b"# source sha256: " + b"0" * 64 + b"\n",
        }
        self.assert_cells({name: hand.Example(log, None) for name, log in junk.items()})

    def test_good_log_among_junk(self) -> None:
        logs = {"junk": hand.Example(b"\xff\0" * 999, None), "good": hand.example(hand.log())}
        self.assert_cells(logs)

    def test_things_that_are_no_files(self) -> None:
        good = self.cache / "good.ncu"
        good.write_text(hand.log())
        (self.cache / "folder.ncu").mkdir()
        os.mkfifo(self.cache / "fifo.ncu")
        (self.cache / "loop.ncu").symlink_to("loop.ncu")
        (self.cache / "dangling.ncu").symlink_to("nowhere")
        (self.cache / "link.ncu").symlink_to("good.ncu")
        (self.cache / "null.ncu").symlink_to("/dev/null")
        (self.cache / "zero.ncu").symlink_to("/dev/zero")
        names = "good folder fifo loop dangling link null zero missing".split()
        found = self.look_up({name: f"{self.cache}/{name}.py" for name in names})
        expected = dict.fromkeys(names, BLANK)
        self.assertEqual(found, {**expected, "good": hand.CELLS, "link": hand.CELLS})

    def test_leftover_temporary_file_is_no_log(self) -> None:
        good = self.cache / "k.ncu"
        good.write_text(hand.log())
        for name in (".k.ncu.tmp", "k.ncu.tmp", "k.ncu~", "k.ncu.err", "k.py.ncu"):
            (self.cache / name).write_bytes(good.read_bytes())
        good.unlink()
        self.assertEqual(self.look_up({"k": f"{self.cache}/k.py"}), {"k": BLANK})


# name: duration in us and bandwidth in GB/s of its first result; None where it holds no log.
REAL_LOGS: dict[str, tuple[str, str] | None] = {
    "a100-2022-full-usecond": ("10.14", "826.98"),
    "a100-2022.3-full": ("564880.0", "86.32"),
    "a100-2024.1-full-msecond": ("564880.0", "86.32"),
    "a100-2024.1-three-kernels-tbyte": ("437.44", "1200.0"),
    "a100-2025-full-us": ("4.93", "2.21"),
    "gh200-2024.1-two-kernels-triton-second": ("145.06", "1660.0"),
    "h100-2024.1-full": ("6.88", "1.23"),
    "h100-2024.1-full-LC_ALL-de_DE": ("6.88", "1.23"),
    "h100-2024.1-full-LC_ALL-fr_FR": ("6.88", "1.23"),
    "h100-2024.1-full-csv": None,
    "h100-2024.1-full-print-fp": ("6.88", "1.23"),
    "h100-2024.1-full-print-units-base": ("6.88", "1.22790697674"),
    "h100-2024.1-full-print-units-base-LC_ALL-de_DE": ("6.88", "1.22790697674"),
    "h100-2024.1-full-print-units-base-LC_ALL-en_IN": ("6.88", "1.22790697674"),
    "h100-2024.1-print-summary": None,
    "h100-2025-tbyte-s-two-kernels": ("19.58", "3140.0"),
    "jetson-orin-no-memory-throughput": ("106.46", ""),
    "launchfailed-all-nan": None,
    "rtx40-2023.3-triton-second-no-mwa": None,
    "rtx40-2024-full": ("4770.0", "101.21"),
    "rtx5070ti-2025-no-separators": None,
    "t4-2024.3-gbyte-s": ("218.98", "21.0"),
    "t4-colab-second-warning-splits-prof": None,
    "v100-2020-decimal-comma": ("10550.0", "758.59"),
    "err-nvgpuctrperm": None,
    "export-only-no-details": None,
    "crlf-export-only": None,
}


@unittest.skipUnless(REAL.is_dir(), "needs ../shared/ncu-logs")
class RealLogTest(LogCase):
    """Output of real ncus. It is not of Inductor kernels, so the benchmark line is added."""

    def test_values(self) -> None:
        logs = {}
        for name, values in REAL_LOGS.items():
            text = (REAL / f"{name}.log").read_bytes()
            cells = ("31.0", *values) if values else None
            benchmark = hand.BENCHMARK.encode() + b"\n"
            logs[f"{name}, line first"] = hand.Example(benchmark + text, cells)
            logs[f"{name}, line last"] = hand.Example(text + b"\n" + benchmark, cells)
            logs[f"{name}, no line"] = hand.Example(text, None)
        self.assert_cells(logs)

    def test_no_log_is_untested(self) -> None:
        self.assertEqual({path.stem for path in REAL.glob("*.log")}, set(REAL_LOGS))

    def test_cut(self) -> None:
        benchmark = hand.BENCHMARK.encode() + b"\n"
        steps = {"t4-2024.3-gbyte-s": 1, "jetson-orin-no-memory-throughput": 11}
        for name, step in steps.items():
            text = benchmark + (REAL / f"{name}.log").read_bytes()
            found = self.cells_of({str(end): text[:end] for end in range(0, len(text) + 1, step)})
            values = REAL_LOGS[name]
            self.assertEqual(set(found.values()), {BLANK, ("31.0", *(values or ()))}, name)


if st is not None:
    # Hundredths: ncu prints two decimals, or an integer.
    HUNDREDTHS = st.one_of(
        st.integers(0, 99_999).map(lambda value: value * 100),
        st.integers(0, 10**15),
        st.integers(0, 10**13).map(lambda value: value * 100),
        st.integers(1000, 9999).map(lambda value: value * 100),
    )
    TIMES = {"ns": -3, "nsecond": -3, "us": 0, "usecond": 0, "ms": 3, "msecond": 3}
    TIMES.update({"s": 6, "second": 6})
    RATES = {"byte": -9, "Kbyte": -6, "Mbyte": -3, "Gbyte": 0, "Tbyte": 3}
    BASE = ("ns", "nsecond", "byte/s", "byte/second")

    def printed(hundredths: int, unit: str, locale: str) -> str:
        """The number as ncu prints it, in the locale."""
        whole, rest = divmod(hundredths, 100)
        decimals = f"{rest:02}" if rest else ""
        # Such a number does not occur: ncu goes on to the next unit. It reads as a decimal point.
        if locale == "de" and unit not in BASE and not decimals and 1000 <= whole < 10**6:
            decimals = "00"
        return hand.number(str(whole), decimals, locale)

    class PropertyTest(LogCase):
        """The same, on what hypothesis thinks of."""

        @settings(max_examples=8, deadline=None)
        @given(
            draws=st.lists(
                st.tuples(
                    HUNDREDTHS,
                    HUNDREDTHS,
                    st.sampled_from(sorted(TIMES)),
                    st.sampled_from(sorted(RATES)),
                    st.sampled_from(["/s", "/second"]),
                    st.sampled_from(hand.LOCALES),
                    st.sampled_from(sorted(hand.LAYOUTS)),
                ),
                min_size=1,
                max_size=60,
            )
        )
        def test_every_number_in_every_locale(
            self, draws: list[tuple[int, int, str, str, str, str, str]]
        ) -> None:
            logs = {}
            for number, (time, rate, unit, prefix, per, locale, layout) in enumerate(draws):
                text = hand.log(
                    hand.result(
                        (unit, printed(time, unit, locale)),
                        (prefix + per, printed(rate, prefix + per, locale)),
                        layout,
                    )
                )
                cells = (
                    "31.0",
                    str(float(Decimal(time).scaleb(TIMES[unit] - 2))),
                    str(float(Decimal(rate).scaleb(RATES[prefix] - 2))),
                )
                logs[str(number)] = hand.Example(hand.encode(text), cells)
            self.assert_cells(logs)

        @settings(max_examples=8, deadline=None)
        @given(
            draws=st.lists(
                st.tuples(
                    st.sampled_from(sorted(hand.SAMPLES)),
                    st.lists(
                        st.tuples(
                            st.integers(0, 30),
                            st.integers(0, 5),
                            st.text("aZ :=-.,%()/\t#", max_size=20),
                            st.booleans(),
                        ),
                        max_size=4,
                    ),
                    st.integers(0, 3000),
                ),
                min_size=1,
                max_size=60,
            )
        )
        def test_mangled(
            self, draws: list[tuple[str, list[tuple[int, int, str, bool]], int]]
        ) -> None:
            """Lines lost, strange lines between, then cut: right figures, or blank ones."""
            logs = {}
            for number, (name, edits, end) in enumerate(draws):
                lines = hand.SAMPLES[name].log.split(b"\n")
                for at, lost, new, insert in edits:
                    lines[at : at + lost] = [new.encode()] if insert else []
                logs[f"{number} {name}"] = b"\n".join(lines)[: end if end < 2000 else None]
            for name, found in self.cells_of(logs).items():
                expected = hand.SAMPLES[name.partition(" ")[2]].cells or BLANK
                for value, right in zip(found, expected):
                    self.assertIn(value, ("", right), logs[name])

        @settings(max_examples=5, deadline=None)
        @given(junk=st.lists(st.binary(max_size=300), min_size=1, max_size=40))
        def test_any_bytes(self, junk: list[bytes]) -> None:
            log = hand.encode(hand.log())
            logs = {f"junk {n}": hand.Example(some, None) for n, some in enumerate(junk)}
            for number, some in enumerate(junk):
                text = some.replace(b"\n", b"") + b"\n" + log
                logs[f"log {number}"] = hand.Example(text, hand.CELLS)
            self.assert_cells(logs)


if __name__ == "__main__":
    unittest.main()
