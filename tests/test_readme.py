"""What the README promises: its first command, and mistakes that a new user makes."""

from __future__ import annotations

import re
import shlex
import unittest
from pathlib import Path

from tests.support import FIGURES, PROGRAM, Case, read_rows

README = (PROGRAM.parent / "README.md").read_text(encoding="utf-8")


class FirstCommandTest(Case):
    def test_it_needs_neither_gpu_nor_ncu(self) -> None:
        block = README.split("```sh\n")[1].split("```")[0]
        command = shlex.split(block.splitlines()[0])
        self.assertEqual(command[1], PROGRAM.name)
        output = self.tmp / "augmented.csv"
        arguments = [str(output) if word == "augmented.csv" else word for word in command[2:]]
        done = self.run_program(*arguments, cwd=PROGRAM.parent, env={"PATH": "/nowhere"})
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = read_rows(output)
        self.assertEqual([row["ncu_duration_us"] for row in rows][:4], [
            "9.152",
            "28.384",
            "5.216",
            "942.144",
        ])  # fmt: skip
        self.assertTrue(all(row[figure] for row in rows for figure in FIGURES))

    def test_the_example_is_a_cache_too(self) -> None:
        folder = PROGRAM.parent / "tests" / "example"
        done = self.run_program("-i", folder, "-o", "-", "--table-only")
        self.assertEqual((done.returncode, len(done.stdout.splitlines())), (0, 5), done.stderr)

    def test_every_option_is_there(self) -> None:
        helped = self.run_program("--help").stdout
        for option in re.findall(r"(?m)^ +(?:-\w [A-Z/]+, )?(--[a-z-]+)", helped):
            self.assertIn(f"`{option}", README.replace(", `", " `"), option)


class MistakeTest(Case):
    def refuse(self, *arguments: object) -> str:
        """Run a command line that is a mistake; return the one line that says so."""
        done = self.run_program(*arguments)
        self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
        self.assertRegex(done.stderr, r"\Aerror: .*\n\Z")
        return str(done.stderr)

    def test_options_that_exclude_each_other(self) -> None:
        table = self.table([self.kernel("triton_poi_fused_add_0")])
        both = ("-i", table, "-o", "out.csv", "--force", "--cached-only")
        self.assertIn("--force and --cached-only", self.refuse(*both))
        both = ("-i", self.cache, "-o", "out.csv", "--table-only", "--dry-run")
        self.assertIn("--table-only and --dry-run", self.refuse(*both))
        self.assertFalse((self.tmp / "out.csv").exists())

    def test_a_value_that_begins_with_a_dash(self) -> None:
        said = self.refuse("-i", "in.csv", "-o", "out.csv", "--ncu-args", "--clock-control=none")
        self.assertIn("--option=VALUE", said)

    def test_a_cache_that_was_moved(self) -> None:
        kernels = [self.kernel(f"triton_poi_fused_add_{number}") for number in range(10)]
        table = self.table(kernels)
        self.cache.rename(self.tmp / "moved")
        said = self.refuse("-i", table, "-o", "out.csv")
        self.assertIn(f"none of the 10 kernel files exists (the first is {kernels[0]})", said)
        self.assertEqual(self.calls(), [])

    def test_dry_run_where_ncu_is_not_installed(self) -> None:
        kernel = self.kernel("triton_poi_fused_add_0")
        bare = self.kernel("triton_poi_fused_add_1", harness=False)
        done = self.run_program(
            "-i", self.table([kernel, bare]), "-o", "o.csv", "--dry-run", env={"PATH": "/nowhere"}
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, rf"\ALC_ALL=C.UTF-8 ncu -k .* {kernel}\n\Z")
        self.assertIn("1 commands would run for 1 kernels", done.stderr)
        self.assertIn("1 cannot: no benchmark harness", done.stderr)

    def test_gpus_are_not_asked_for_when_nothing_runs(self) -> None:
        table = self.table([self.kernel("triton_poi_fused_add_0")])
        done = self.run_program("-i", table, "-o", "o.csv", "--cached-only", "-q", "--gpus", "all")
        self.assertEqual(
            (done.returncode, done.stderr), (1, "warning: 1 of 1 kernels have no log\n")
        )
        self.assertTrue(Path(self.tmp / "o.csv").exists())


if __name__ == "__main__":
    unittest.main()
