"""Whole runs over a table of kernels, and what they must write."""

from __future__ import annotations

import csv
import io
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support import COLUMNS, FIGURES, Case, expected_figures, strays

NAME = "triton_poi_fused_add_"
BLANK = dict.fromkeys(FIGURES)


def rounded(rows: Iterable[Sequence[str]]) -> list[list[str]]:
    """Cells, the last (a product) to 12 digits: how it is computed is the program's affair."""
    return [[*row[:-1], f"{float(row[-1]):.12g}" if row[-1] else ""] for row in rows]


class RunCase(Case):
    """Runs over a table of a few kernels."""

    def setUp(self) -> None:
        super().setUp()
        self.out = self.tmp / "out.csv"

    def kernels(self, count: int, **options: Any) -> list[Path]:
        """Kernel files, numbered."""
        return [self.kernel(f"{NAME}{number}", **options) for number in range(count)]

    def metrics(self) -> list[str]:
        """The value of --metrics of each run of ncu, empty where it had none."""
        found = []
        for call in self.calls():
            words = [word for word in call["argv"] if word.startswith("--metrics")]
            at = call["argv"].index(words[0]) if words else -1
            value = words[0].partition("=")[2] if words else ""
            found.append(value or (call["argv"][at + 1] if words else ""))
        return found

    def go(
        self,
        kernels: Sequence[Path],
        *options: object,
        status: int = 0,
        **env: str | None,
    ) -> subprocess.CompletedProcess[str]:
        """Run the program over kernels; the status, and that nothing is left over, are checked."""
        table = self.table(kernels, "in.csv")
        command = ("-i", table, "-o", self.out, *options)
        done = self.run_program(*command, env=env)
        self.assertEqual(done.returncode, status, done.stderr)
        self.assertEqual(done.stdout, "")
        self.assertNotIn("Traceback", done.stderr)
        self.assertEqual((strays(self.cache), self.survivors()), ([], []))
        return done

    def assert_output(
        self,
        kernels: Sequence[Path],
        failed: Sequence[Path] = (),
        *,
        first: Sequence[Path] = (),
        no_bandwidth: bool = False,
        metrics: Mapping[str, str] | None = None,
    ) -> None:
        """The whole output: header, every row in order, figures blank where the kernel failed.

        Of kernels in `first` the first launch was profiled, not the tuned one. `metrics` are more
        columns, the same in each row that has figures.
        """
        metrics = metrics or {}
        header, *rows = csv.reader(io.StringIO(self.out.read_text(), newline=""))
        self.assertEqual(header, [*COLUMNS, *FIGURES, *metrics])
        more = [row[len(COLUMNS) + len(FIGURES) :] for row in rows]
        blank = [""] * len(metrics)
        cells = [blank if kernel in failed else [*metrics.values()] for kernel in kernels]
        self.assertEqual(more, cells)
        rows = [row[: len(COLUMNS) + len(FIGURES)] for row in rows]
        wanted = []
        for kernel in kernels:
            figures = BLANK if kernel in failed else expected_figures(kernel, trial=kernel in first)
            if no_bandwidth:
                figures = {**figures, **dict.fromkeys(FIGURES[2:])}
            values = ["" if value is None else repr(value) for value in figures.values()]
            wanted.append([*self.row(kernel).values(), *values])
        self.assertEqual(rounded(rows), rounded(wanted))
        self.assertNotIn("\r", self.out.read_text())
