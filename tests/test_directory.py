"""An Inductor cache as the input: which files are kernels, and torch's cells of each."""

from __future__ import annotations

import csv
import os
import random
import tempfile
import unittest
from collections.abc import Iterable
from pathlib import Path

from tests import kernels_by_hand as hand
from tests import support

REAL = Path(__file__).resolve().parent.parent.parent / "shared" / "inductor"

try:
    from hypothesis import given, settings
    from hypothesis import strategies as st
except ImportError:
    st = None  # type: ignore[assignment]


def expected_table(rows: list[tuple[Path, hand.Example]], model: str = "") -> str:
    """The whole text of the table of some kernels."""
    lines = [f"{model},{example.name},{path},{example.cells}\n" for path, example in rows]
    return hand.COLUMNS + "\n" + "".join(lines)


class DirectoryCase(support.Case):
    """Tests that write kernel files into a cache and ask for its table."""

    def put(self, name: str, source: str | None = None) -> tuple[Path, hand.Example]:
        """Write an example, or a source, as a file of the cache."""
        example = hand.EXAMPLES["pointwise_2_3"]
        return self.write(self.cache / name, source or example.source), example

    def table_of(self, folder: Path, *options: str, status: int = 0) -> tuple[str, str]:
        """Ask for the table of a folder; what was written, and said."""
        out = self.tmp / "out.csv"
        done = self.run_program("-i", folder, "-o", out, "--table-only", *options)
        self.assertEqual(done.returncode, status, done.stderr)
        self.assertEqual(done.stdout, "")
        self.assertNotIn("Traceback", done.stderr)
        self.assertEqual(out.exists(), status == 0)
        return out.read_text() if status == 0 else "", done.stderr


class TableTest(DirectoryCase):
    """The table that torch 2.6 and later cannot write."""

    def put_all(self) -> list[tuple[Path, hand.Example]]:
        """Every kernel by hand, and every file that is none, two letters a folder."""
        rows = []
        for name, example in hand.EXAMPLES.items():
            path = self.write(self.cache / name[:2] / f"{name}.py", example.source)
            rows.append((path, example))
        for name, source in hand.OTHERS.items():
            self.write(self.cache / name[:2] / f"{name}.py", source)
        return sorted(rows)

    def test_kernels_of_each_generation(self) -> None:
        rows = self.put_all()
        table, said = self.table_of(self.cache)
        self.assertEqual(table, expected_table(rows))
        self.assertRegex(said, r"\b1 foreach|foreach\D* 1\b")

    def test_two_runs_agree(self) -> None:
        self.put_all()
        self.assertEqual(self.table_of(self.cache)[0], self.table_of(self.cache)[0])

    def test_model_name(self) -> None:
        rows = self.put_all()
        table, _ = self.table_of(self.cache, "--model-name", "resnet18")
        self.assertEqual(table, expected_table(rows, "resnet18"))

    def test_to_stdout(self) -> None:
        row = self.put("k.py")
        done = self.run_program("-i", self.cache, "-o", "-", "--table-only")
        self.assertEqual((done.returncode, done.stdout), (0, expected_table([row])))

    def test_relative_folder_gives_absolute_paths(self) -> None:
        row = self.put("k.py")
        self.assertEqual(self.table_of(Path("cache"))[0], expected_table([row]))

    def test_order_is_that_of_the_paths(self) -> None:
        names = ("a/c.py", "a-b.py", "a.py", "b/a/z.py", "b/a.py", "Z.py", "a/b/c.py", "a-/x.py")
        rows = sorted((self.put(name) for name in names), key=lambda row: str(row[0]))
        self.assertEqual(self.table_of(self.cache)[0], expected_table(rows))

    def test_names_that_are_no_utf8(self) -> None:
        folder = os.fsencode(self.cache)
        source = hand.EXAMPLES["pointwise_2_3"].source.encode()
        for name in (b"k\xff.py", "k\u00e9 'q'.py".encode()):
            with open(os.path.join(folder, name), "wb") as file:
                file.write(source)
        self.run_program("-i", self.cache, "-o", self.tmp / "out.csv", "--table-only")
        written = (self.tmp / "out.csv").read_bytes()
        self.assertIn(folder + b"/k\xff.py,", written)
        self.assertIn(folder + "/k\u00e9 'q'.py,".encode(), written)

    def test_nothing_is_written_into_the_cache(self) -> None:
        self.put_all()
        before = sorted(self.cache.rglob("*"))
        self.table_of(self.cache)
        self.assertEqual(sorted(self.cache.rglob("*")), before)

    def test_windows_line_ends(self) -> None:
        path, example = self.put("k.py")
        path.write_bytes(example.source.encode().replace(b"\n", b"\r\n"))
        self.assertEqual(self.table_of(self.cache)[0], expected_table([(path, example)]))


class NothingFoundTest(DirectoryCase):
    """A folder without a kernel of the table is an error that says what was looked for."""

    def test_empty_folder(self) -> None:
        _, said = self.table_of(self.cache, status=2)
        self.assertIn(str(self.cache), said)
        self.assertIn("@triton_heuristics.", said)

    def test_only_other_files(self) -> None:
        for name, source in hand.OTHERS.items():
            if name != "no_harness":
                self.put(f"{name}.py", source)
        _, said = self.table_of(self.cache, status=2)
        self.assertIn("@triton_heuristics.", said)
        self.assertNotIn("TORCHINDUCTOR_BENCHMARK_KERNEL", said)

    def test_kernels_without_harness(self) -> None:
        for n in range(3):
            self.put(f"{n}.py", hand.NO_HARNESS)
        _, said = self.table_of(self.cache, status=2)
        self.assertIn("TORCHINDUCTOR_BENCHMARK_KERNEL=1", said)
        self.assertIn("3", said)

    def test_no_such_folder(self) -> None:
        _, said = self.table_of(self.tmp / "nowhere", status=2)
        self.assertIn("nowhere", said)


class UnreadableTest(DirectoryCase):
    """What cannot be read is passed over with a warning; the rest is there."""

    def test_links_that_lead_back(self) -> None:
        row = self.put("a/k.py")
        (self.cache / "a" / "up").symlink_to(self.cache)
        (self.cache / "a" / "self").symlink_to("self")
        (self.cache / "b").symlink_to("a")
        table, said = self.table_of(self.cache)
        self.assertEqual(table, expected_table([row]))
        self.assertIn(str(self.cache / "a" / "up"), said)

    def test_a_linked_folder_is_read(self) -> None:
        path = self.write("elsewhere/k.py", hand.EXAMPLES["pointwise_2_3"].source)
        (path.parent / "back").symlink_to(self.cache)
        (self.cache / "l").symlink_to(path.parent)
        row = (self.cache / "l" / "k.py", hand.EXAMPLES["pointwise_2_3"])
        self.assertEqual(self.table_of(self.cache)[0], expected_table([row]))

    def test_linked_files(self) -> None:
        row = self.put("k.py")
        (self.cache / "l.py").symlink_to("k.py")
        (self.cache / "gone.py").symlink_to("nothing.py")
        (self.cache / "round.py").symlink_to("round.py")
        table, said = self.table_of(self.cache)
        self.assertEqual(table, expected_table([row, (self.cache / "l.py", row[1])]))
        self.assertIn(str(self.cache / "gone.py"), said)
        self.assertIn(str(self.cache / "round.py"), said)

    def test_what_is_no_file(self) -> None:
        row = self.put("k.py")
        os.mkfifo(self.cache / "pipe.py")
        (self.cache / "linked.py").symlink_to("pipe.py")
        (self.cache / "folder.py").mkdir()
        self.assertEqual(self.table_of(self.cache)[0], expected_table([row]))

    def test_a_file_that_is_being_written(self) -> None:
        row = self.put("k.py")
        half, _ = self.put("half.py", row[1].source[:-60])
        head, _ = self.put("head.py", row[1].source[:500])
        zeros, _ = self.put("zeros.py", row[1].source[:900] + "\0" * 400)
        table, said = self.table_of(self.cache)
        self.assertEqual(table, expected_table([row]))
        for path in (half, head, zeros):
            self.assertIn(str(path), said)

    @unittest.skipIf(os.geteuid() == 0, "root can read everything")
    def test_no_permission(self) -> None:
        row = self.put("k.py")
        secret, _ = self.put("secret.py")
        secret.chmod(0)
        folder = self.put("closed/k.py")[0].parent
        folder.chmod(0)
        self.addCleanup(folder.chmod, 0o700)
        table, said = self.table_of(self.cache)
        self.assertEqual(table, expected_table([row]))
        self.assertIn(str(secret), said)
        self.assertIn(str(folder), said)


class TogetherTest(DirectoryCase):
    """A directory as the input of the whole program, and a table beside its kernel files."""

    def test_cached_only(self) -> None:
        path, example = self.put("k.py")
        out = self.tmp / "out.csv"
        done = self.run_program("-i", self.cache, "-o", out, "--cached-only")
        self.assertEqual(done.returncode, 1, done.stderr)
        header = ",".join((hand.COLUMNS, *support.FIGURES))
        row = f",{example.name},{path},{example.cells},,,,"
        self.assertEqual(out.read_text(), f"{header}\n{row}\n")

    def test_an_exponent_that_torch_misread(self) -> None:
        path, example = self.put("k.py")
        large = self.write(self.cache / "l.py", hand.EXAMPLES["tiled_2_3"].source)
        columns = {"kernel_args_num_gb": "3.072000", "kernel_name": example.name}
        rows = [self.row(path, **columns), self.row(large, kernel_args_num_gb="1.500000")]
        out = self.tmp / "out.csv"
        done = self.run_program("-i", self.table(rows), "-o", out, "--cached-only")
        warnings = [line for line in done.stderr.splitlines() if "kernel_args_num_gb" in line]
        self.assertEqual(len(warnings), 1, done.stderr)
        self.assertRegex(warnings[0], r"\b1\b")
        cells = [row["kernel_args_num_gb"] for row in support.read_rows(out)]
        self.assertEqual(cells, ["3.072000", "1.500000"])


@unittest.skipUnless(REAL.is_dir(), "needs ../shared/inductor")
class RealCachesTest(DirectoryCase):
    """Caches that TorchInductor wrote."""

    def real_rows(self, torch: str) -> dict[str, dict[str, str]]:
        """The table of one of the caches, by kernel file name."""
        self.table_of(REAL / torch / "cache")
        rows = support.read_rows(self.tmp / "out.csv")
        self.assertEqual([r["kernel_path"] for r in rows], sorted(r["kernel_path"] for r in rows))
        return {os.path.basename(row["kernel_path"]): row for row in rows}

    def test_the_table_that_torch_wrote(self) -> None:
        ours = self.real_rows("torch-2.3.1")
        with open(REAL / "torch-2.3.1" / "metric_table_kernel_metadata.csv", newline="") as file:
            theirs = [row for row in csv.DictReader(file) if row["kernel_category"] != "foreach"]
        self.assertEqual(len({row["kernel_path"] for row in theirs}), 200)
        misread = 0
        for row in theirs:
            our_row = ours[os.path.basename(row["kernel_path"])]
            if row["kernel_args_num_gb"] != our_row["kernel_args_num_gb"]:
                misread += 1
                digits = our_row["kernel_args_num_gb"].replace(".", "").strip("0")
                self.assertEqual(float(row["kernel_args_num_gb"]), shifted(digits))
            same = {name: row[name] for name in ("kernel_path", "kernel_args_num_gb")}
            self.assertEqual({**our_row, **same}, row)
        self.assertEqual(misread, 45)

    def test_every_kernel_with_a_harness_and_no_wrapper(self) -> None:
        for torch in ("torch-2.3.1", "torch-2.13.0", "torch-2.13.0-plain-names"):
            kernels = set()
            for path in (REAL / torch / "cache").rglob("*.py"):
                text = path.read_text()
                named = "async_compile" not in text and "Placeholder." not in text
                if named and text.rstrip().endswith('GB/s")'):
                    kernels.add(path.name)
            self.assertEqual(set(self.real_rows(torch)), kernels)


def shifted(digits: str) -> float:
    """What torch reads of 3.072e-05, of which the digits are 3072: the digits up to the e."""
    return round(float(f"{digits[:1]}.{digits[1:] or 0}"), 6)


class MangledCase(DirectoryCase):
    """Tests of sources that no torch wrote, many in one run of the program."""

    sources = tuple(example.source.encode() for example in hand.EXAMPLES.values())

    def rows_of(self, sources: Iterable[bytes]) -> list[dict[str, str] | None]:
        """The row of each source, less its path; None where it has none."""
        with tempfile.TemporaryDirectory(dir=self.tmp) as folder:
            # With a kernel that has a row: a folder without any is an error.
            paths = []
            for number, source in enumerate((self.sources[0], *sources)):
                paths.append(os.path.join(folder, f"{number}.py"))
                with open(paths[-1], "wb") as file:
                    file.write(source)
            self.table_of(Path(folder))
            rows = {row.pop("kernel_path"): row for row in support.read_rows(self.tmp / "out.csv")}
        self.assertIn(paths[0], rows)
        return [rows.get(path) for path in paths[1:]]

    def assert_right(self, sources: list[bytes]) -> None:
        """The rows hold what the sources say, in the form of the table."""
        for row, source in zip(self.rows_of(sources), sources):
            if row is None:
                continue
            self.assertIn(f"'{row['kernel_name']}'".encode(), source)
            self.assertRegex(row["line_of_code"], r"\A[1-9][0-9]*\Z")
            for column, pattern in (("num_load", b"tl.load"), ("num_for_loop", b"for ")):
                self.assertLessEqual(int(row[column]), source.count(pattern))
            for column in ("xnumel", "ynumel", "rnumel"):
                self.assertRegex(row[column], r"\A[0-9]*\Z")
            self.assertRegex(row["kernel_args_num_gb"], r"\A([0-9]+\.[0-9]{6,})?\Z")


class MangledTest(MangledCase):
    """No source stops the program, and none that was cut gives a row."""

    def test_cut_anywhere(self) -> None:
        """Each source at every third byte, and the next one's third is another."""
        for number, source in enumerate(self.sources):
            needed = source.rindex(b'GB/s")') + len(b'GB/s")')
            ends = [*range(number % 3, len(source), 3), len(source)]
            *cut, whole = self.rows_of(source[:end] for end in ends)
            self.assertIsNotNone(whole)
            for end, row in zip(ends, cut):
                self.assertEqual(row, whole if end >= needed else None, end)

    def test_bytes_that_python_would_refuse(self) -> None:
        mangled = []
        for source in self.sources:
            for junk in (b"\0", b"\xff"):
                at = source.index(b"tl.load")
                mangled.append(source[:at] + junk + source[at:])
        self.assertEqual(self.rows_of(mangled), [None] * len(mangled))

    def test_two_kernels_in_one_file(self) -> None:
        self.assertEqual(self.rows_of([self.sources[0] + self.sources[1]]), [None])

    def test_lines_around_the_function_do_not_change_its_row(self) -> None:
        comment = b"\n# \xc3\xa9 for tl.load\n\ndef get_args"
        padded = [source.replace(b"\ndef get_args", comment) for source in self.sources]
        self.assertNotEqual(padded[0], self.sources[0])
        self.assertEqual(self.rows_of(padded), self.rows_of(self.sources))

    def test_spliced_at_random(self) -> None:
        chosen = random.Random(7)
        mangled = []
        for _ in range(2000):
            one, other = chosen.choice(self.sources), chosen.choice(self.sources)
            mangled.append(
                one[: chosen.randrange(len(one))] + other[chosen.randrange(len(other)) :]
            )
        self.assert_right(mangled)


if st is not None:
    EDITS = st.lists(
        st.tuples(st.integers(0, 4000), st.integers(0, 300), st.binary(max_size=20)), max_size=6
    )

    class PropertyTest(MangledCase):
        """The same, on sources that hypothesis mangles, thirty in a run."""

        @settings(max_examples=10, deadline=None)
        @given(
            examples=st.lists(
                st.tuples(st.sampled_from(MangledCase.sources), EDITS), min_size=30, max_size=30
            )
        )
        def test_mangled(self, examples: list[tuple[bytes, list[tuple[int, int, bytes]]]]) -> None:
            mangled = []
            for source, edits in examples:
                for at, length, new in edits:
                    source = source[:at] + new + source[at + length :]
                mangled.append(source)
            self.assert_right(mangled)

        @settings(max_examples=10, deadline=None)
        @given(
            examples=st.lists(
                st.tuples(st.binary(max_size=400), st.sampled_from(MangledCase.sources)),
                min_size=30,
                max_size=30,
            )
        )
        def test_any_bytes(self, examples: list[tuple[bytes, bytes]]) -> None:
            self.assertEqual(self.rows_of(junk for junk, _ in examples), [None] * len(examples))
            self.assert_right([junk + source for junk, source in examples])


if __name__ == "__main__":
    unittest.main()
