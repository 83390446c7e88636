"""The table: what is read, what is left out, what is written, and where."""

from __future__ import annotations

import csv
import gzip
import io
import os
import re
import shutil
import stat
import subprocess
import sys
import unittest
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tests import logs_by_hand as hand
from tests import support

try:
    from hypothesis import given, settings
    from hypothesis import strategies as st
except ImportError:
    st = None  # type: ignore[assignment]

HEADER = ",".join(support.COLUMNS)
ADDED = "," + ",".join(support.FIGURES)
NARROW = "kernel_name,kernel_path,kernel_category"


csv.field_size_limit(1 << 30)


def cells_of(text: str) -> list[list[str]]:
    """A table's cells."""
    return list(csv.reader(io.StringIO(text, newline="")))


class TableCase(support.Case):
    """Tests that put logs with figures of their own into the cache, and look tables up in it."""

    def setUp(self) -> None:
        super().setUp()
        self.out = self.tmp / "out.csv"
        self.table_path = self.tmp / "in.csv"

    def cached(
        self, number: int = 0, path: str | bytes = "", *, bandwidth: bool = True, chip: str = "8.6"
    ) -> str:
        """Store a log for the kernel `path`, without its file; return the path.

        Its duration is 10 us, its bandwidth 1 GB/s, for number 1; multiples for others.
        """
        file = os.path.join(os.fsencode(self.cache), os.fsencode(path or f"{number}.py"))
        os.makedirs(os.path.dirname(file), exist_ok=True)
        rate = ("Gbyte/second", f"{number}.00") if bandwidth else None
        text = hand.log(hand.result(("usecond", f"{number}0.00"), rate, chip=chip, brief=True))
        with open(file[:-3] + b".ncu", "w") as stream:
            stream.write(text)
        return os.fsdecode(file)

    def figures(self, number: int) -> str:
        """The output's four cells for that log, behind a comma."""
        return f",31.0,{number * 10}.0,{number}.0,{number * number * 10 / 1e6}"

    def augment(
        self, text: str | bytes, *options: object, status: int = 0, **run: Any
    ) -> tuple[bytes, str]:
        """Look a table up in the cache; the output, and what was said."""
        data = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
        self.table_path.write_bytes(data)
        self.out.unlink() if self.out.exists() else None
        done = self.run_program(
            "-i", self.table_path, "-o", self.out, "--cached-only", *options, text=False, **run
        )
        said = done.stderr.decode("utf-8", "backslashreplace")
        self.assertNotIn("Traceback", said)
        self.assertEqual((done.returncode, done.stdout), (status, b""), said)
        self.assertFalse(self.log.exists(), "ncu was started")
        self.assertEqual(support.strays(self.tmp), [])
        return self.out.read_bytes() if self.out.exists() else b"", said

    def assert_refused(self, text: str | bytes, *options: object, **run: Any) -> str:
        """The program ends with status 2 and one line, having written nothing; the line."""
        output, said = self.augment(text, *options, status=2, **run)
        self.assertEqual(output, b"")
        self.assertRegex(said, r"\Aerror: [^\n]+\n\Z")
        return said

    def row(self, kernel: Path, **columns: object) -> dict[str, str]:
        return super().row(kernel, **columns)


class ColumnTest(TableCase):
    """Which columns there are, and in what order."""

    def test_table_of_torch(self) -> None:
        rows = [
            f',triton_poi_fused_add_0,{self.cached(1)},pointwise,"[2048, 16]",,13,2,1,0,0,5,'
            "32768,,,0.393216",
            f"BertForMaskedLM,triton_red_fused_sum_1,{self.cached(2)},reduction,,INNER,"
            "24,3,1,1,0,7,96,,5000,0.001920",
        ]
        output, said = self.augment("\n".join([HEADER, *rows, ""]))
        expected = [HEADER + ADDED, rows[0] + self.figures(1), rows[1] + self.figures(2), ""]
        self.assertEqual(output.decode(), "\n".join(expected))
        self.assertRegex(
            said,
            r"\Arows +2\nkernels +2\ncached +2\nprofiled +0\nfailed +0\n(.*\n)*time +0:00:0\d\n\Z",
        )

    def test_only_the_required_columns_in_another_order(self) -> None:
        path = self.cached(3)
        output, _ = self.augment(
            f"kernel_category,kernel_path,kernel_name\npointwise,{path},triton_a\n"
        )
        self.assertEqual(
            output.decode(),
            f"kernel_category,kernel_path,kernel_name{ADDED}\n"
            f"pointwise,{path},triton_a{self.figures(3)}\n",
        )

    def test_further_columns_among_the_known(self) -> None:
        path = self.cached(4)
        header = "Kernel_Name,num_load,kernel_path,new column,kernel_name,,rnumel,kernel_category,x"
        row = f'a,1e3,{path},"new, ""cell""",b, padded ,007,persistent_reduction,'
        output, _ = self.augment(f"{header}\n{row}\n")
        self.assertEqual(output.decode(), f"{header}{ADDED}\n{row}{self.figures(4)}\n")

    def test_two_columns_of_one_name(self) -> None:
        path = self.cached(5)
        header = "kernel_name,kernel_path,kernel_category,kernel_name,xnumel,xnumel,other,other"
        row = f"a,{path},pointwise,b,1,2,3,4"
        output, _ = self.augment(f"{header}\n{row}\n")
        self.assertEqual(output.decode(), f"{header}{ADDED}\n{row}{self.figures(5)}\n")

    def test_augmented_columns_are_dropped_and_added_anew(self) -> None:
        path, lost = self.cached(6), f"{self.cache}/lost.py"
        first = f"{NARROW}\na,{path},pointwise\nb,{lost},pointwise\n"
        once, _ = self.augment(first, status=1)
        again, _ = self.augment(once, status=1)
        self.assertEqual(again, once)
        old = f"ncu_duration_us,{NARROW},ncu_mem_accessed_gb,latency_us_under_profiling"
        output, _ = self.augment(
            f"{old}\n9,a,{path},pointwise,9,9\n9,b,{lost},pointwise,9,9\n", status=1
        )
        self.assertEqual(
            output.decode(),
            f"{NARROW}{ADDED}\na,{path},pointwise,31.0,60.0,6.0,0.00036\nb,{lost},pointwise,,,,\n",
        )

    def test_header_only(self) -> None:
        for text in (HEADER, f"{HEADER}\r\n\r\n"):
            output, said = self.augment(text)
            self.assertEqual(output.decode(), HEADER + ADDED + "\n")
            self.assertRegex(said, r"\Arows +0\n")

    def test_repeated_header(self) -> None:
        row, other = f"a,{self.cached(1)},pointwise", f"b,{self.cached(2)},pointwise"
        text = f"{NARROW}\n{NARROW}\n{row}\n{NARROW}\n{other}\n{NARROW}\n"
        output, said = self.augment(text)
        expected = f"{NARROW}{ADDED}\n{row}{self.figures(1)}\n{other}{self.figures(2)}\n"
        self.assertEqual(output.decode(), expected)
        self.assertNotIn("torn", said)

    def test_byte_order_marks(self) -> None:
        """Also where tables that have one were concatenated, and before a quote."""
        row, other = f"a,{self.cached(1)},pointwise", f"b,{self.cached(2)},pointwise"
        expected = f"{NARROW}{ADDED}\n{row}{self.figures(1)}\n{other}{self.figures(2)}\n"
        quoted = ",".join(f'"{column}"' for column in NARROW.split(","))
        for text in (
            f"\ufeff{NARROW}\n{row}\n{other}\n",
            f"\ufeff{quoted}\n{row}\n{other}\n",
            f"\ufeff{NARROW}\r\n{row}\r\n{other}",
            f"\ufeff{NARROW}\n{row}\n\ufeff{NARROW}\n{other}\n",
        ):
            with self.subTest(text):
                self.assertEqual(self.augment(text)[0].decode(), expected)

    def test_line_ends(self) -> None:
        row, other = f"a,{self.cached(1)},pointwise", f"b,{self.cached(2)},pointwise"
        expected = f"{NARROW}{ADDED}\n{row}{self.figures(1)}\n{other}{self.figures(2)}\n"
        for end, last in (("\n", ""), ("\r\n", "\r\n"), ("\r\n", ""), ("\r\n\n", "\n")):
            text = end.join((NARROW, row, other)) + last
            self.assertEqual(self.augment(text)[0].decode(), expected, repr(text))


class CellTest(TableCase):
    """Every input cell reaches the output with the same value."""

    def assert_cells_kept(self, rows: Iterable[Sequence[str]], **style: Any) -> None:
        """Whatever stands in further columns and in the known ones comes out equal."""
        path = self.cached(1)
        columns = ["extra", *NARROW.split(","), "size_hints", "rnumel"]
        given_rows = [[row[0], "k", path, "pointwise", *row[1:]] for row in rows]
        text = io.StringIO(newline="")
        csv.writer(text, **style).writerows([columns, *given_rows])
        output, _ = self.augment(text.getvalue())
        self.assertNotIn(b"\r\n", output.partition(b"\n")[0] + b"\n")
        found = cells_of(output.decode("utf-8", "surrogateescape"))
        self.assertEqual(found[0], columns + list(support.FIGURES))
        self.assertEqual([row[: len(columns)] for row in found[1:]], given_rows)
        figures = self.figures(1)[1:].split(",")
        self.assertEqual([row[len(columns) :] for row in found[1:]], [figures] * len(given_rows))

    def test_odd_cells(self) -> None:
        cells = ["", " ", "  a  ", '"', '""', "'", ",", ",,", "a\nb", "\n", "a\r\nb", "\\", "\\n"]
        cells += ["\t", "007", "1e3", "0.100", "nan", "None", "-", "=1+1", "#", "\x7f", "\x1b[31m"]
        cells += ["\ufeff", "\u2028", "\u00e9", "e\u0301", "\u6838", "\U0001f600", "\x0b\x0c"]
        cells += ["a" * 5000]
        rows = [[cell, cells[at - 1], cells[at - 2]] for at, cell in enumerate(cells)]
        self.assert_cells_kept(rows)
        self.assert_cells_kept(rows[::-1], quoting=csv.QUOTE_ALL)

    def test_quotes_where_none_are_needed(self) -> None:
        """Cells as csv reads them, however they are written."""
        path = self.cached(1)
        lines = [
            f'a"b,{path},pointwise',
            f'a"",{path},pointwise',
            f' "a" ,{path},pointwise',
            f'"",{path},""',
            f'"""",{path},"a"',
            f'a,"{path}","""a"""',
            f'""" ,"",",{path},pointwise',
            f"'a,{path},'",
            f'a\\",{path},pointwise',
        ]
        output, _ = self.augment("\n".join([NARROW, *lines, ""]))
        expected = cells_of("\n".join(lines))
        self.assertEqual([row[:3] for row in cells_of(output.decode())[1:]], expected)
        output, _ = self.augment("\r\n".join([NARROW, *lines]))
        self.assertEqual([row[:3] for row in cells_of(output.decode())[1:]], expected)

    def test_carriage_return_in_a_cell(self) -> None:
        rows = [["a\rb", "\r", "c\r"], ["\rc", "\n\r", "x"], ["x", "y", "\r\r\n"]]
        self.assert_cells_kept(rows)
        self.assert_cells_kept(rows, quoting=csv.QUOTE_ALL)

    def test_bytes_that_are_no_utf8(self) -> None:
        self.assert_cells_kept([["\udcff\udcfe", "caf\udce9", "\udced\udca0\udc80"]])

    def test_huge_cell(self) -> None:
        self.assert_cells_kept([["a" * 1_000_000, 'b"' * 200_000, "c,\n" * 50_000]])

    def test_in_other_locales(self) -> None:
        """The output is the same bytes whatever the locale says."""
        path = self.cached(1)
        row = b"caf\xe9 \xc3\xa9 \xff," + os.fsencode(path) + b",pointwise"
        expected = f"{NARROW}{ADDED}\n".encode() + row + self.figures(1).encode() + b"\n"
        ascii_only = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
        for setting in ({"LC_ALL": "C"}, {"LC_ALL": "C", **ascii_only}, {"LC_ALL": "C.UTF-8"}):
            output, _ = self.augment(NARROW.encode() + b"\n" + row + b"\n", env=setting)
            self.assertEqual(output, expected, setting)

    if st is not None:

        @settings(max_examples=6, deadline=None)
        @given(
            rows=st.lists(
                st.lists(
                    st.one_of(
                        st.text(
                            st.characters(exclude_characters="\0", exclude_categories=["Cs"]),
                            max_size=12,
                        ),
                        st.text('ab",\n\r \\', max_size=8),
                        st.binary(max_size=6).map(
                            lambda data: data.replace(b"\0", b"").decode("utf-8", "surrogateescape")
                        ),
                    ),
                    min_size=3,
                    max_size=3,
                ),
                min_size=1,
                max_size=20,
            ),
            quoting=st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_MINIMAL]),
        )
        def test_round_trip(self, rows: list[list[str]], quoting: int) -> None:
            self.assert_cells_kept(rows, quoting=quoting)


class PathTest(TableCase):
    """Where kernels are looked for."""

    def test_odd_paths(self) -> None:
        names = [
            "two words.py",
            "it's.py",
            'say "hi".py',
            "-dash.py",
            "--help.py",
            "line\nbreak.py",
        ]
        names += ["\u00e9\u6838\U0001f600.py", "\udcff\udcfe.py", "a,b.py", "$HOME.py", "`x`.py"]
        names += ["*.py", "%s.py", "tab\t.py", "a\\b.py", "#.py", " .py", "x.py.py"]
        names += ["deep/er/\u00e9/k.py"]
        paths = [self.cached(number, name) for number, name in enumerate(names)]
        text = io.StringIO(newline="")
        csv.writer(text).writerows([NARROW.split(","), *(["k", p, "pointwise"] for p in paths)])
        output, _ = self.augment(text.getvalue())
        rows = cells_of(output.decode("utf-8", "surrogateescape"))[1:]
        expected = [
            ["k", path, "pointwise", *self.figures(number)[1:].split(",")]
            for number, path in enumerate(paths)
        ]
        self.assertEqual(rows, expected)

    def test_relative_from_the_current_folder_then_from_the_tables(self) -> None:
        here, there = self.tmp / "here", self.tmp / "there"
        for folder, number, name in (
            (here, 1, "both.py"),
            (there, 2, "both.py"),
            (there, 3, "one.py"),
            (there, 4, "sub/k.py"),
            (there, 5, "-k.py"),
        ):
            self.cached(number, str(folder / name))
        here.mkdir(exist_ok=True)
        names = {"both.py": 1, "./both.py": 1, "one.py": 3, "sub/k.py": 4, "-k.py": 5}
        rows = [f"k,{name},pointwise" for name in [*names, "../there/both.py", "nowhere.py"]]
        (there / "in.csv").write_text("\n".join([NARROW, *rows, ""]))
        numbers = [*names.values(), 2]
        filled = [f"{row}{self.figures(n)}" for row, n in zip(rows, numbers)]
        expected = "\n".join([NARROW + ADDED, *filled, rows[-1] + ",,,,", ""])
        for given_path in (there / "in.csv", Path("../there/in.csv")):
            done = self.run_program(
                "-i", given_path, "-o", self.out, "--cached-only", "-q", cwd=here
            )
            self.assertEqual(
                (done.returncode, done.stdout, done.stderr),
                (1, "", "warning: 1 of 6 kernels have no log\n"),
            )
            self.assertEqual(self.out.read_text(), expected)

    def test_relative_kernel_file_without_a_log_yet(self) -> None:
        """The kernel file counts where it is, also for what is to be profiled."""
        there = self.tmp / "there"
        path = self.kernel("triton_poi_fused_0", folder=there, file="k.py")
        (there / "in.csv").write_text(f"{NARROW}\na,k.py,pointwise\n")
        done = self.run_program("-i", there / "in.csv", "-o", self.out)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assert_figures(self.rows(self.out)[0], path)
        self.assertEqual(self.calls()[0]["argv"][-1], str(path))
        self.assertTrue((there / "k.ncu").exists())

    def test_one_kernel_by_several_paths_and_rows(self) -> None:
        path = self.kernel("triton_poi_fused_0", folder=self.tmp, file="k.py")
        names = [str(path), "k.py", "./k.py", f"{self.tmp}/cache/../k.py", str(path)]
        rows = [f"{number},{name},pointwise" for number, name in enumerate(names)]
        self.table_path.write_text("\n".join([NARROW, *rows, ""]))
        done = self.run_program("-i", self.table_path, "-o", self.out)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(len(self.calls()), 1)
        self.assertRegex(done.stderr, r"rows +5\nkernels +1\ncached +0\nprofiled +1\n")
        for row, name in zip(self.rows(self.out), names):
            self.assertEqual(row["kernel_path"], name)
            self.assert_figures(row, path)

    def test_leading_dash_is_profiled_by_absolute_path(self) -> None:
        path = self.kernel("triton_poi_fused_0", folder=self.tmp, file="-c 'x' \".py")
        self.table_path.write_text(f'{NARROW}\na,"-c \'x\' "".py",pointwise\n')
        done = self.run_program("-i", self.table_path, "-o", self.out)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.calls()[0]["argv"][-1], str(path))
        self.assert_figures(self.rows(self.out)[0], path)

    def test_parent_of_a_linked_folder(self) -> None:
        """`link/..` is the parent of what the link leads to, as the system has it."""
        self.cached(1, "far/k.py")
        self.cached(2, "k.py")
        (self.cache / "far" / "sub").mkdir()
        (self.cache / "link").symlink_to("far/sub")
        output, _ = self.augment(f"{NARROW}\na,{self.cache}/link/../k.py,pointwise\n")
        self.assertIn(self.figures(1).encode(), output)


class WrongInputTest(TableCase):
    """Found before anything runs: status 2, one line."""

    def test_no_header(self) -> None:
        for text in ("", "\n\r\n", "\ufeff"):
            self.assert_refused(text)

    def test_missing_columns(self) -> None:
        header = HEADER.replace("kernel_category,", "")
        self.assertRegex(self.assert_refused(header + "\n"), "kernel_category\n")
        said = self.assert_refused("a,b,c\n1,2,3\n")
        for column in NARROW.split(","):
            self.assertIn(column, said)

    def test_no_table_at_all(self) -> None:
        for data in (bytes(range(256)) * 5, HEADER.encode("utf-16")):
            self.assert_refused(data)

    def test_what_it_is_and_what_to_do(self) -> None:
        text = f"{HEADER}\n{'x,' * 20}\n".encode()
        utf_16 = "save it as comma-separated UTF-8"
        for data, said in (
            (gzip.compress(text), "compressed by gzip: `gunzip -c FILE | ... -i -` reads it"),
            (text.decode().encode("utf-16"), f"UTF-16 text: {utf_16}"),
            (text.decode().encode("utf-16-be"), f"UTF-16 text: {utf_16}"),
            (b"\xef\xbb\xbf" + text.replace(b",", b";"), f"separated by semicolons: {utf_16}"),
            (text.replace(b",", b"\t"), f"separated by tabs: {utf_16}"),
            (b"PK\x03\x04" + bytes(100), f"a spreadsheet or zip archive: {utf_16}"),
        ):
            with self.subTest(said):
                self.assertEqual(self.assert_refused(data), f"error: the input is {said}\n")

    def test_columns_that_may_be_meant(self) -> None:
        header = HEADER.replace("kernel_path", " kernel_path").replace("kernel_name", "Kernel_Name")
        self.assertEqual(
            self.assert_refused(header + "\n"),
            "error: the input has no column kernel_name and no kernel_path; "
            "'Kernel_Name' and ' kernel_path' may be meant\n",
        )

    def test_unreadable(self) -> None:
        (self.tmp / "loop.csv").symlink_to("loop.csv")
        for name in ("nowhere.csv", "loop.csv", "/proc/self/mem", "", "x" * 300):
            self.table_path.write_text(HEADER)
            done = self.run_program("-i", name, "-o", self.out, "--cached-only")
            self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
            self.assertRegex(done.stderr, r"\Aerror: [^\n]*\n\Z")
            self.assertIn(name, done.stderr)
            self.assertFalse(self.out.exists())

    @unittest.skipIf(os.geteuid() == 0, "root may read everything")
    def test_no_permission(self) -> None:
        self.table_path.write_text(HEADER)
        self.table_path.chmod(0)
        done = self.run_program("-i", self.table_path, "-o", self.out)
        self.assertEqual(done.returncode, 2)
        self.assertRegex(done.stderr, r"\Aerror: cannot read [^\n]*Permission denied\n\Z")

    def test_ncu_is_not_needed_for_that(self) -> None:
        """Nothing is started before the whole table has been read."""
        path = self.kernel("triton_poi_fused_0")
        self.table_path.write_text(f"kernel_path\n{path}\n")
        done = self.run_program("-i", self.table_path, "-o", self.out)
        self.assertEqual(done.returncode, 2)
        self.assertEqual(self.calls(), [])


class TornTest(TableCase):
    """Rows that are left out; the others are not touched by that."""

    def assert_torn(self, lines: Sequence[str], torn: dict[int, str]) -> str:
        """The lines of a narrow table that are torn (by number) are left out and named."""
        output, said = self.augment("\n".join([NARROW, *lines, ""]), status=1)
        good = [text for number, text in enumerate(lines, 2) if number not in torn]
        rows = cells_of(output.decode("utf-8", "surrogateescape"))
        self.assertEqual([row[:3] for row in rows[1:]], [cells_of(text)[0] for text in good])
        named = [int(n) for n in re.findall(r"\bline (\d+)\b", said)]
        self.assertEqual(named, sorted(torn)[:10], said)
        self.assertRegex(said, rf"rows +{len(good)}\nleft out +{len(torn)}  .*{len(torn)} torn\n")
        return said

    def test_each_kind(self) -> None:
        path = self.cached(1)
        good = f"a,{path},pointwise"
        self.assert_torn(
            [
                good,
                f"a,{path}",
                good,
                f"a,{path},pointwise,a,{path},pointwise",
                "a",
                good,
                "a,,pointwise",
                "a, ,pointwise",
                "a,/x/y.cubin,pointwise",
                "a,/x/y.p,pointwise",
                f"a,{path} ,pointwise",
                good,
                f"a,{path}\0,pointwise",
            ],
            dict.fromkeys((3, 5, 6, 8, 9, 10, 11, 12, 14), ""),
        )

    def test_first_ten_named_and_how_many_more(self) -> None:
        path = self.cached(1)
        lines = [f"a,{path},pointwise", *["torn"] * 13, f"b,{path},pointwise"]
        said = self.assert_torn(lines, dict.fromkeys(range(3, 16), ""))
        self.assertRegex(said, r"line 12\b[^\n]*\n[^\n]*\b3 more\b[^\n]*\n")
        lines = [f"a,{path},pointwise", *["torn"] * 10]
        said = self.assert_torn(lines, dict.fromkeys(range(3, 13), ""))
        self.assertNotIn(" more", said)

    def test_no_usable_row(self) -> None:
        for rows in ("a,,pointwise\n", 'a,"\n', f"{NARROW}\n" + "torn\n" * 20):
            output, said = self.augment(f"{NARROW}\n{rows}", status=2)
            self.assertEqual(output, b"")
            self.assertRegex(said, r"line \d+ [^\n]*\n(.*\n)*error: [^\n]*\n\Z")

    def test_a_torn_quote_takes_nothing_with_it(self) -> None:
        path = self.cached(1)
        good = f"a,{path},pointwise"
        torn = ('a,"', f'a,{path},"poi', f'"a"",{path},pointwise', f'a,"{path}')
        for after in (good, f'"b, ""c""","{path}","pointwise"'):
            lines = [line for one in torn for line in (one, after, after)]
            self.assert_torn(lines, dict.fromkeys(range(2, 14, 3), ""))

    def test_a_quote_that_is_never_closed_takes_nothing_with_it(self) -> None:
        path = self.cached(1)
        good = f"a,{path},pointwise"
        for torn in ('a,"', f'a,{path},"poi', f'a,{path},"'):
            with self.subTest(torn):
                self.assert_torn([good, torn, good, good], {3: ""})

    def test_torn_at_every_byte(self) -> None:
        """A row of torch's, cut and closed by a line end, before a good row each time."""
        path = self.cached(1)
        row = f'm,k,{path},pointwise,"[32, 64]",DEFAULT,24,3,1,1,0,7,96,,5000,0.001920'
        good = f'm,good,{path},pointwise,"[32, 64]",,13,2,1,0,0,5,32768,,,0.393216'
        cuts = [row[:end] for end in range(1, len(row) - len("0.001920"))]
        lines = [HEADER, *(line for cut in cuts for line in (cut, good)), ""]
        output, said = self.augment("\n".join(lines), status=1)
        rows = cells_of(output.decode())
        self.assertEqual(rows[0], [*support.COLUMNS, *support.FIGURES])
        expected = cells_of(good + self.figures(1))[0]
        self.assertEqual(rows[1:], [expected] * len(cuts))
        self.assertIn(f"{len(cuts)} torn\n", said)

    def test_torn_inside_a_quoted_hint(self) -> None:
        """The next row's first quote closes it, and can leave the right number of cells."""
        path = self.cached(1)
        lines = [HEADER]
        for hint in ('"[64]"', '"[64, 8]"', '"[64, 8, 8]"', '"64, 8"', "[64]"):
            for commas in range(12):
                torn = f'm,torn,{path},pointwise,"[32' + ",1" * commas
                good = f"m,good,{path},pointwise,{hint},,13,2,1,0,0,5,32768,,,0.393216"
                lines += [torn, good, good]
        output, _ = self.augment("\n".join(lines), status=1)
        names = [row[1] for row in cells_of(output.decode())]
        self.assertEqual(names, ["kernel_name"] + ["good"] * (len(lines) // 3 * 2))

    def test_two_tears_on_one_line(self) -> None:
        """Two processes append: one's row stands within the other's."""
        path = self.cached(1)
        row = f'm,k,{path},pointwise,"[32, 64]",DEFAULT,24,3,1,1,0,7,96,,5000,0.001920'
        good = f'm,good,{path},pointwise,"[8, 16]",,13,2,1,0,0,5,32768,,,0.393216'
        # Not in the first or last cell, where nothing tells that it is torn.
        cuts = range(3, len(row) - len("0.001920") - 1)
        lines = [HEADER, *(line for at in cuts for line in (row[:at] + row + row[at:], good)), ""]
        output, said = self.augment("\n".join(lines), status=1)
        rows = cells_of(output.decode())[1:]
        self.assertEqual([row for row in rows if row[1] == "good"], [rows[0]] * len(cuts))
        self.assertEqual(len(rows), len(cuts), "a torn row got through")
        self.assertIn(f"{len(cuts)} torn\n", said)

    def test_many_torn_quotes_cost_no_more_than_other_rows(self) -> None:
        path = self.cached(1)
        good = f"a,{path},pointwise"
        lines = [good] * 20_000
        lines[::100] = ['a,"torn'] * 200
        output, _ = self.augment("\n".join([NARROW, *lines, ""]), status=1, timeout=10)
        self.assertEqual(output.count(b"\n"), 1 + 20_000 - 200)

    def test_cell_of_several_lines_counts_its_lines(self) -> None:
        path = self.cached(1)
        good = f'"a\n\nb",{path},pointwise'
        output, said = self.augment(f"{NARROW}\n{good}\ntorn\n{good}\n", status=1)
        self.assertEqual(output.decode().count(f"{good}{self.figures(1)}\n"), 2)
        self.assertRegex(said, r"\bline 5\b")


class CategoryTest(TableCase):
    """Rows without a benchmark harness, and rows that share a kernel."""

    def test_foreach_rows_are_left_out_and_counted(self) -> None:
        path = self.cached(1)
        rows = [f"{name},{path},{name}" for name in ("foreach", "pointwise", "foreach", "template")]
        rows += [f"b,{self.cache}/none.py,foreach"]
        output, said = self.augment("\n".join([NARROW, *rows, ""]))
        kept = [rows[1], rows[3]]
        expected = "\n".join([NARROW + ADDED, *(row + self.figures(1) for row in kept), ""])
        self.assertEqual(output.decode(), expected)
        self.assertRegex(said, r"rows +2\nleft out +3  3 foreach, 0 torn\nkernels +1\n")

    def test_unknown_categories_are_kept(self) -> None:
        path = self.cached(1)
        rows = [f"k,{path},{name}" for name in ("", "unknown", "Foreach", "cooperative_reduction")]
        output, _ = self.augment("\n".join([NARROW, *rows, ""]))
        self.assertEqual(output.count(self.figures(1).encode()), 4)


class WarningTest(TableCase):
    """What a reader of the figures must know, once, at the end."""

    def warnings(
        self, rows: Sequence[str], *options: str, header: str = NARROW, status: int = 0
    ) -> list[str]:
        _, said = self.augment("\n".join([header, *rows, ""]), *options, status=status)
        return [line for line in said.splitlines() if line.startswith("warning")]

    def test_no_dram_counters(self) -> None:
        rows = [f"a,{self.cached(n, bandwidth=n > 2)},pointwise" for n in (1, 2, 3)]
        output, said = self.augment("\n".join([NARROW, *rows, rows[0], ""]))
        lines = output.decode().splitlines()
        self.assertEqual(lines[1], rows[0] + ",31.0,10.0,,")
        self.assertEqual(lines[3], rows[2] + self.figures(3))
        warnings = [line for line in said.splitlines() if line.startswith("warning")]
        self.assertEqual(len(warnings), 1)
        self.assertRegex(warnings[0], r"\b2\b.*DRAM")

    def test_mixed_generations(self) -> None:
        rows = [
            f"a,{self.cached(n, chip=chip)},pointwise"
            for n, chip in enumerate(["8.0", "9.0", "8.0", "10.0", "9.0", "8.0"])
        ]
        warnings = self.warnings([*rows, rows[0]])
        self.assertEqual(len(warnings), 1)
        for part in (r"CC 8\.0\D+3\b", r"CC 9\.0\D+2\b", r"CC 10\.0\D+1\b"):
            self.assertRegex(warnings[0], part)
        self.assertEqual(self.warnings(rows, "-q"), warnings)
        self.assertEqual(self.warnings(rows[:1] + rows[2:3]), [])

    def test_old_logs_name_no_generation(self) -> None:
        path = self.cached(1)
        old = self.cache / "old.ncu"
        old.write_text(hand.log(hand.result(layout="2022")))
        self.assertEqual(
            self.warnings([f"a,{path},pointwise", f"b,{old.with_suffix('.py')},x"]), []
        )

    def test_misread_exponents(self) -> None:
        """torch writes 5.600000 for a kernel_num_gb of 5.6e-06."""
        rows, columns = [], f"{NARROW},kernel_args_num_gb"
        for number, (source, cell) in enumerate(
            [
                ("5.6e-06", "5.600000"),
                ("5.6", "5.600000"),
                ("5.6e-06", "0.000006"),
                ("3e-05", "3.000000"),
            ]
        ):
            path = self.cached(number)
            self.write(Path(path), f"inductor_meta={{'kernel_num_gb': {source}}},\n")
            rows.append(f"k,{path},pointwise,{cell}")
        rows.append(rows[0])
        warnings = self.warnings(rows, header=columns)
        self.assertEqual(len(warnings), 1)
        self.assertRegex(warnings[0], r"kernel_args_num_gb\D+3 rows\b")
        self.assertEqual(self.warnings(rows[1:3], header=columns), [])


class StreamTest(TableCase):
    """Standard input and output."""

    def setUp(self) -> None:
        super().setUp()
        self.row_text = f"a,{self.cached(1)},pointwise"
        self.text = f"{NARROW}\n{self.row_text}\n"
        self.expected = f"{NARROW}{ADDED}\n{self.row_text}{self.figures(1)}\n"

    def test_both(self) -> None:
        done = self.run_program("-i", "-", "-o", "-", "--cached-only", stdin=self.text)
        self.assertEqual((done.returncode, done.stdout), (0, self.expected))
        self.assertRegex(done.stderr, r"\Arows +1\n")

    def test_quiet(self) -> None:
        done = self.run_program("-i", "-", "-o", "-", "--cached-only", "-q", stdin=self.text)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, self.expected, ""))

    def test_relative_path_from_stdin(self) -> None:
        text = f"{NARROW}\na,cache/1.py,pointwise\n"
        done = self.run_program("-i", "-", "-o", "-", "--cached-only", stdin=text)
        self.assertEqual(done.stdout, f"{NARROW}{ADDED}\na,cache/1.py,pointwise{self.figures(1)}\n")

    def test_device_names(self) -> None:
        for source, target in (("/dev/stdin", "/dev/stdout"), ("/dev/fd/0", "/dev/fd/1")):
            done = self.run_program(
                "-i", source, "-o", target, "--cached-only", "-q", stdin=self.text
            )
            self.assertEqual((done.returncode, done.stdout, done.stderr), (0, self.expected, ""))

    def test_stdout_that_is_a_file_is_not_replaced(self) -> None:
        """`-o /dev/stdout >> file` appends."""
        self.table_path.write_text(self.text)
        for target in ("-", "/dev/stdout"):
            self.out.write_text("before\n")
            options = ["-i", "in.csv", "-o", target, "--cached-only", "-q"]
            with open(self.out, "a") as file:
                subprocess.run(
                    [sys.executable, support.PROGRAM, *options],
                    cwd=self.tmp,
                    env=self.environment,
                    stdout=file,
                )
            self.assertEqual(self.out.read_text(), "before\n" + self.expected, target)

    def test_stdin_at_its_end(self) -> None:
        done = self.run_program("-i", "-", "-o", "-", "--cached-only", stdin="")
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertRegex(done.stderr, r"\Aerror: [^\n]*header\n\Z")

    def closed(self, redirection: str, *options: str) -> subprocess.CompletedProcess[str]:
        """Run with a descriptor closed or sent elsewhere by a shell."""
        self.table_path.write_text(self.text)
        command = f'exec "$@" {redirection}'
        return subprocess.run(
            ["/bin/sh", "-c", command, "sh", sys.executable, str(support.PROGRAM), *options],
            env=self.environment,
            capture_output=True,
            text=True,
            cwd=self.tmp,
            timeout=30,
        )

    def assert_one_error(self, done: subprocess.CompletedProcess[str]) -> None:
        self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
        self.assertRegex(done.stderr, r"\Aerror: [^\n]*\n\Z")

    def test_closed_stdin(self) -> None:
        self.assert_one_error(self.closed("<&-", "-i", "-", "-o", "out.csv", "--cached-only"))
        done = self.closed("<&-", "-i", "in.csv", "-o", "out.csv", "--cached-only", "-q")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(self.out.read_text(), self.expected)

    def test_closed_stdout(self) -> None:
        self.assert_one_error(self.closed(">&-", "-i", "in.csv", "-o", "-", "--cached-only", "-q"))
        done = self.closed(">&-", "-i", "in.csv", "-o", "out.csv", "--cached-only", "-q")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(self.out.read_text(), self.expected)

    def test_closed_stderr(self) -> None:
        for redirection in ("2>/dev/full", "2>&-"):
            done = self.closed(redirection, "-i", "in.csv", "-o", "out.csv", "--cached-only")
            self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))
            self.assertEqual(self.out.read_text(), self.expected)
            self.out.unlink()

    def test_full_device(self) -> None:
        for target, redirection in (
            ("-", ">/dev/full"),
            ("/dev/stdout", ">/dev/full"),
            ("/dev/full", ""),
        ):
            with self.subTest(target):
                done = self.closed(redirection, "-i", "in.csv", "-o", target, "--cached-only", "-q")
                self.assert_one_error(done)

    def test_reader_that_leaves(self) -> None:
        """`| head -1`: one line at most is said, and no more than that."""
        self.text += f"{self.row_text}\n" * 5000
        self.table_path.write_text(self.text)
        for target in ("-", "/dev/stdout"):
            reader, writer = os.pipe()
            os.close(reader)
            options = ["-i", "in.csv", "-o", target, "--cached-only", "-q"]
            done = subprocess.run(
                [sys.executable, support.PROGRAM, *options],
                cwd=self.tmp,
                env=self.environment,
                stdout=writer,
                stderr=subprocess.PIPE,
                text=True,
            )
            os.close(writer)
            self.assertRegex(done.stderr, r"\A(error: [^\n]*\n)?\Z")
            self.assertIn(done.returncode, (2, 141, -13))


class OutputTest(TableCase):
    """Where the output may go, and how it gets there."""

    def setUp(self) -> None:
        super().setUp()
        self.row_text = f"a,{self.cached(1)},pointwise"
        self.text = f"{NARROW}\n{self.row_text}\n"
        self.expected = f"{NARROW}{ADDED}\n{self.row_text}{self.figures(1)}\n"
        self.table_path.write_text(self.text)

    def go(self, output: object, *options: object, **run: Any) -> subprocess.CompletedProcess[str]:
        """Look the table up in the cache, quietly."""
        return self.run_program(
            "-i", self.table_path, "-o", output, "--cached-only", "-q", *options, **run
        )

    def assert_refused_output(self, output: object, word: str = "", **run: Any) -> None:
        """Status 2, one line, and not a thing left behind."""
        before = sorted(self.tmp.rglob("*"))
        done = self.go(output, **run)
        self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
        self.assertRegex(done.stderr, r"\Aerror: [^\n]*\n\Z")
        self.assertIn(word or str(output), done.stderr)
        self.assertEqual(sorted(self.tmp.rglob("*")), before)
        self.assertEqual(self.table_path.read_text(), self.text)

    def test_is_the_input(self) -> None:
        (self.tmp / "link.csv").symlink_to("in.csv")
        (self.tmp / "link to link.csv").symlink_to("link.csv")
        os.link(self.table_path, self.tmp / "hard.csv")
        for name in ("in.csv", "./cache/../in.csv", "link to link.csv", "hard.csv"):
            self.assert_refused_output(name, "input")
        self.table_path.rename(self.tmp / "moved.csv")
        self.table_path.symlink_to("moved.csv")
        self.assert_refused_output("moved.csv", "input")
        self.assert_refused_output("in.csv", "input")

    def test_is_the_input_on_stdin(self) -> None:
        for name in ("-", "/dev/stdin"):
            with open(self.table_path) as stdin:
                done = subprocess.run(
                    [sys.executable, support.PROGRAM, "-i", name, "-o", "in.csv", "--cached-only"],
                    cwd=self.tmp,
                    stdin=stdin,
                    env=self.environment,
                    capture_output=True,
                    text=True,
                )
            self.assertEqual((done.returncode, done.stdout), (2, ""), name)
            self.assertRegex(done.stderr, r"\Aerror: [^\n]*input[^\n]*\n\Z")
            self.assertEqual(self.table_path.read_text(), self.text)

    @unittest.skipUnless(os.access("/dev/shm", os.W_OK), "needs /dev/shm")
    def test_in_shared_memory(self) -> None:
        """Files below /dev are files."""
        folder = Path("/dev/shm") / f"parse-test-{self.token}"
        folder.mkdir()
        self.addCleanup(shutil.rmtree, folder)
        self.table_path = folder / "in.csv"
        self.table_path.write_text(self.text)
        done = self.go(self.table_path)
        self.assertEqual(self.table_path.read_text(), self.text)
        self.assertEqual(done.returncode, 2)
        out = folder / "out.csv"
        out.write_text("old")
        with open(out) as old:
            self.assertEqual(self.go(out).returncode, 0)
            self.assertEqual((old.read(), out.read_text()), ("old", self.expected))

    @unittest.skipUnless(os.access("/dev/shm", os.W_OK), "needs /dev/shm")
    def test_missing_folder_in_shared_memory_is_found_before_anything_runs(self) -> None:
        kernel = self.kernel("triton_poi_fused_0")
        out = f"/dev/shm/parse-test-{self.token}/out.csv"
        done = self.run_program("-i", self.table([kernel]), "-o", out)
        self.assertEqual(done.returncode, 2)
        self.assertEqual(self.calls(), [])

    def test_folder_missing_or_no_folder(self) -> None:
        self.assert_refused_output(self.tmp / "nowhere" / "out.csv")
        self.assert_refused_output(self.table_path / "out.csv")

    def test_is_a_folder(self) -> None:
        self.assert_refused_output(self.cache)
        (self.tmp / "link").symlink_to("cache")
        self.assert_refused_output("link")
        self.assert_refused_output("", "folder")

    def test_cannot_be(self) -> None:
        self.assert_refused_output("/proc/out.csv")

    def test_long_name(self) -> None:
        name = "x" * 251 + ".csv"
        done = self.go(name)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual((self.tmp / name).read_text(), self.expected)

    @unittest.skipIf(os.geteuid() == 0, "root may write everything")
    def test_no_permission(self) -> None:
        self.out.write_text("old")
        self.out.chmod(0o444)
        self.assert_refused_output(self.out)
        self.out.chmod(0o644)
        self.tmp.chmod(0o555)
        self.addCleanup(self.tmp.chmod, 0o755)
        self.assert_refused_output(self.out)
        self.assertEqual(self.out.read_text(), "old")

    def test_found_before_anything_runs(self) -> None:
        kernel = self.kernel("triton_poi_fused_0")
        for output in ("nowhere/out.csv", self.tmp / "t.csv"):
            done = self.run_program("-i", self.table([kernel], "t.csv"), "-o", output)
            self.assertEqual(done.returncode, 2)
            self.assertEqual(self.calls(), [])

    def test_odd_names(self) -> None:
        names = ["out put", "\u00e9'\".csv", "line\nbreak.csv", "\udcff.csv"]
        for name in names:
            done = self.go(name)
            self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))
            with open(os.path.join(self.tmp, name), newline="") as file:
                self.assertEqual(file.read(), self.expected)
        done = self.run_program("-i", self.table_path, "--output-csv=-dash", "--cached-only", "-q")
        self.assertEqual((self.tmp / "-dash").read_text(), self.expected)

    def test_new_file_has_the_permissions_of_umask(self) -> None:
        for mask, mode in ((0o002, 0o664), (0o077, 0o600)):
            before = os.umask(mask)
            try:
                self.assertEqual(self.go(f"{mask}.csv").returncode, 0)
            finally:
                os.umask(before)
            self.assertEqual(stat.S_IMODE((self.tmp / f"{mask}.csv").stat().st_mode), mode)

    def test_existing_file_is_replaced_whole_and_keeps_its_permissions(self) -> None:
        for mode in (0o640, 0o666):
            self.out.write_text("old")
            self.out.chmod(mode)
            with open(self.out) as old:
                self.assertEqual(self.go(self.out).returncode, 0)
                self.assertEqual(old.read(), "old")
            self.assertEqual(self.out.read_text(), self.expected)
            self.assertEqual(stat.S_IMODE(self.out.stat().st_mode), mode)
        self.assertEqual(support.strays(self.tmp), [])

    def test_through_a_symlink(self) -> None:
        target = self.tmp / "sub" / "real.csv"
        target.parent.mkdir()
        for there in (True, False):
            if there:
                target.write_text("old")
                target.chmod(0o640)
            link = self.tmp / f"link {there}.csv"
            link.symlink_to("sub/real.csv")
            self.assertEqual(self.go(link).returncode, 0)
            self.assertTrue(link.is_symlink())
            self.assertFalse(target.is_symlink())
            self.assertEqual(target.read_text(), self.expected)
            if there:
                self.assertEqual(stat.S_IMODE(target.stat().st_mode), 0o640)
            target.unlink()
        self.assertEqual(os.listdir(target.parent), [])

    def test_fifo(self) -> None:
        fifo = self.tmp / "fifo.csv"
        os.mkfifo(fifo)
        program = self.start_program("-i", self.table_path, "-o", fifo, "--cached-only", "-q")
        self.assertEqual(fifo.read_text(), self.expected)
        self.assertEqual(program.wait(60), 0)
        self.assertTrue(stat.S_ISFIFO(fifo.stat().st_mode))

    def test_input_fifo(self) -> None:
        fifo = self.tmp / "fifo.csv"
        os.mkfifo(fifo)
        program = self.start_program("-i", fifo, "-o", self.out, "--cached-only", "-q")
        fifo.write_text(self.text)
        self.assertEqual(program.wait(60), 0)
        self.assertEqual(self.out.read_text(), self.expected)

    def test_dev_null(self) -> None:
        done = self.go("/dev/null")
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))

    def test_untouched_when_the_status_is_2(self) -> None:
        self.out.write_text("old")
        self.out.chmod(0o604)
        before = self.out.stat()
        kernel = self.kernel("triton_poi_fused_0")
        table = self.table([kernel], "k.csv")
        empty = self.write("empty.csv", "")
        runs: list[tuple[list[object], dict[str, str | None]]] = [
            (["-i", empty], {}),
            (["-i", table, "--shard", "3/2"], {}),
            (["-i", table, "--ncu", "/nowhere/ncu"], {}),
            (["-i", table, "--python", "/nowhere/python"], {}),
            (["-i", table], {"NCU_STAND_IN_FAIL": "permission"}),
        ]
        for arguments, environment in runs:
            done = self.run_program(*arguments, "-o", self.out, env=environment)
            self.assertEqual((done.returncode, done.stdout), (2, ""), arguments)
            self.assertEqual(self.out.read_text(), "old")
            after = self.out.stat()
            self.assertEqual((after.st_ino, after.st_mtime_ns), (before.st_ino, before.st_mtime_ns))
        self.assertEqual(support.strays(self.tmp), ["ncu.jsonl"])

    def test_file_size_limit(self) -> None:
        """A disk that is full at the end: the old output stays, nothing else does."""
        self.out.write_text("old")
        self.table_path.write_text(self.text + f"{self.row_text}\n" * 20_000)
        options = ["-i", "in.csv", "-o", "out.csv", "--cached-only"]
        # coverage would have to write too
        plain_env = {k: v for k, v in self.environment.items() if not k.startswith("COVERAGE_")}
        limited = ["/bin/sh", "-c", 'ulimit -f 100; trap "" XFSZ; exec "$@"', "sh"]
        done = subprocess.run(
            [*limited, sys.executable, support.PROGRAM, *options],
            cwd=self.tmp,
            env=plain_env,
            capture_output=True,
            text=True,
        )
        self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
        self.assertRegex(done.stderr, r"\Aerror: cannot write out\.csv: [^\n]*\n\Z")
        self.assertEqual(self.out.read_text(), "old")
        self.assertEqual(support.strays(self.tmp), [])


class StatusTest(TableCase):
    """Exit statuses of runs that only look up."""

    def test_every_row_has_its_figures(self) -> None:
        self.augment(f"{NARROW}\na,{self.cached(1)},pointwise\n")

    def test_a_kernel_without_a_log(self) -> None:
        row = f"b,{self.cache}/none.py,pointwise"
        good = f"a,{self.cached(1)},pointwise"
        output, said = self.augment(f"{NARROW}\n{row}\n{good}\n{row}\n", status=1)
        self.assertEqual(
            output.decode(),
            f"{NARROW}{ADDED}\n{row},,,,\n{good}{self.figures(1)}\n{row},,,,\n",
        )
        self.assertRegex(
            said, r"rows +3\nkernels +2\ncached +1\nprofiled +0\nfailed +0\nno log +1\n"
        )

    def test_a_torn_row(self) -> None:
        good = f"a,{self.cached(1)},pointwise"
        output, said = self.augment(f"{NARROW}\ntorn\n{good}\n", "-q", status=1)
        self.assertEqual(output.decode(), f"{NARROW}{ADDED}\n{good}{self.figures(1)}\n")
        self.assertRegex(said, r"\A[^\n]*line 2\b[^\n]*\n\Z")

    def test_no_dram_counters_is_complete(self) -> None:
        self.augment(f"{NARROW}\na,{self.cached(1, bandwidth=False)},pointwise\n")

    def test_usage(self) -> None:
        self.table_path.write_text(HEADER)
        for arguments in (
            [],
            ["-i", "in.csv"],
            ["-i", "in.csv", "-o", "out.csv", "more"],
            ["-i", "in.csv", "-o", "out.csv", "--cached"],
            ["-i", "in.csv", "-o", "out.csv", "--timeout", "soon"],
        ):
            done = self.run_program(*arguments)
            self.assertEqual((done.returncode, done.stdout), (2, ""), arguments)
            self.assertRegex(done.stderr, r"\Aerror: [^\n]*\n\Z")
            self.assertFalse(self.out.exists())

    def test_dry_run_with_nothing_to_do(self) -> None:
        """No commands on stdout, and still nothing is written."""
        self.table_path.write_text(f"{NARROW}\na,{self.cached(1)},pointwise\n")
        for output in (self.out, "-"):
            done = self.run_program("-i", self.table_path, "-o", output, "--dry-run")
            self.assertEqual((done.returncode, done.stdout), (0, ""), done.stderr)
            self.assertFalse(self.out.exists())


class ShardTest(TableCase):
    """Parts of a table."""

    def setUp(self) -> None:
        super().setUp()
        self.paths = [self.cached(number) for number in range(11)]
        order = [0, 1, 2, 1, 3, 4, 0, 5, 6, 7, 8, 9, 10, 3, 3, 2]
        self.lines = [f"{row},{self.paths[n]},pointwise" for row, n in enumerate(order)]
        self.filled = [line + self.figures(n) for line, n in zip(self.lines, order)]
        self.text = "\n".join([NARROW, *self.lines, ""])

    def test_parts_are_a_partition(self) -> None:
        for count in (2, 5):
            seen: list[str] = []
            kernels: list[int] = []
            for part in range(1, count + 1):
                output, said = self.augment(self.text, "--shard", f"{part}/{count}")
                header, *rows = output.decode().splitlines()
                self.assertEqual(header, NARROW + ADDED)
                self.assertEqual(rows, [row for row in self.filled if row in rows])  # in order
                seen += rows
                kernels.append(len({row.split(",")[1] for row in rows}))
                self.assertRegex(said, rf"rows +{len(rows)}\nkernels +{kernels[-1]}\n")
            self.assertEqual(sorted(seen), sorted(self.filled), count)
            self.assertLessEqual(max(kernels) - min(kernels), 1, count)
            self.assertEqual(sum(kernels), len(self.paths))  # none in two parts

    def test_merged_equals_unsharded(self) -> None:
        kernels = [self.kernel(f"triton_poi_fused_{n}") for n in range(5)]
        table = self.table([*kernels, kernels[1]])
        alone, merged = self.tmp / "alone.csv", self.tmp / "merged.csv"
        for part in (2, 3, 1):
            done = self.run_program(
                "-i", table, "-o", self.tmp / f"{part}.csv", "--shard", f"{part}/3"
            )
            self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(len(self.calls()), 5)
        done = self.run_program("-i", table, "-o", merged, "--cached-only")
        self.assertEqual(done.returncode, 0, done.stderr)
        for kernel in kernels:
            kernel.with_suffix(".ncu").unlink()
        done = self.run_program("-i", table, "-o", alone)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(merged.read_bytes(), alone.read_bytes())

    def test_torn_rows_show_in_every_part(self) -> None:
        for part in "12":
            _, said = self.augment(f"{self.text}torn\n", "--shard", f"{part}/2", status=1)
            self.assertIn("line 18 ", said)

    def test_refused(self) -> None:
        shards = "0/2 3/2 -1/2 1/0 1 1/2/3 \u0661/\u0662".split()
        for shard in [*shards, "1 /2"]:
            said = self.assert_refused(self.text, f"--shard={shard}")
            self.assertRegex(said, r"shard.*(from 1|1-based)")
        self.assert_refused(self.text, "--shard")


class TerminalTest(TableCase):
    """On a terminal there is a status line, and what is said stays legible."""

    def test_quiet_says_nothing(self) -> None:
        self.table_path.write_text(f"{NARROW}\na,{self.cached(1)},pointwise\n")
        arguments = ["-i", self.table_path, "-o", self.out, "--cached-only"]
        self.assertEqual(self.run_in_pty(*arguments, "-q"), (0, b""))
        status, said = self.run_in_pty(*arguments)
        self.assertEqual(status, 0)
        self.assertNotIn(b"\x1b", said)
        self.assertRegex(said, rb"rows +1\r\n")


if __name__ == "__main__":
    unittest.main()
