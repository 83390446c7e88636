"""What the README promises: its first command, and mistakes that a new user makes."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import unittest
from importlib.util import find_spec
from pathlib import Path

from tests import sample_tables
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

    def test_other_figures_of_the_example(self) -> None:
        (line,) = re.findall(r"(?m)^python3 parse.*--metric.*$", README)
        command = shlex.split(line.replace("registers.csv", str(self.tmp / "registers.csv")))
        done = self.run_program(*command[2:], cwd=PROGRAM.parent, env={"PATH": "/nowhere"})
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn("--metric", done.stderr)
        rows = read_rows(self.tmp / "registers.csv")
        self.assertEqual(
            [row["Registers Per Thread"] for row in rows], ["14", "16", "40", "32", "16"]
        )
        self.assertTrue(all(row["Occupancy/Achieved Occupancy"] for row in rows))

    def test_the_example_is_a_cache_too(self) -> None:
        folder = PROGRAM.parent / "tests" / "example"
        done = self.run_program("-i", folder, "-o", "-", "--table-only")
        self.assertEqual((done.returncode, len(done.stdout.splitlines())), (0, 5), done.stderr)

    def test_every_option_is_there(self) -> None:
        helped = self.run_program("--help").stdout
        for option in re.findall(r"(?m)^ +(?:-\w [A-Z/]+, )?(--[a-z-]+)", helped):
            self.assertIn(f"`{option}", README.replace(", `", " `"), option)


@unittest.skipUnless(find_spec("pandas") and find_spec("matplotlib"), "no pandas or matplotlib")
class RecipeTest(Case):
    """The README's ways to look at a table, as they stand there."""

    def run_recipes(self, *numbers: int) -> str:
        """Run blocks of Python, one after the other; what they print."""
        blocks = [part.split("```")[0] for part in README.split("```python\n")[1:]]
        self.assertEqual(len(blocks), 3)
        script = self.write("recipe.py", "".join(blocks[number] for number in numbers))
        environment = self.merged({"MPLBACKEND": "agg", "MPLCONFIGDIR": str(self.tmp)})
        done = subprocess.run(
            [sys.executable, "-W", "error", str(script)],
            cwd=self.tmp, env=environment, capture_output=True, text=True,
        )  # fmt: skip
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout

    def setUp(self) -> None:
        super().setUp()
        sample_tables.main(str(self.tmp / "before.csv"))
        sample_tables.main(str(self.tmp / "augmented.csv"), "1.5")

    def test_what_loses_the_most_time(self) -> None:
        lines = self.run_recipes(0).splitlines()
        rows = read_rows(self.tmp / "augmented.csv")
        best = max(float(row["ncu_mem_bw_gbps"]) for row in rows)
        lost = {
            row["kernel_name"]: float(row["ncu_duration_us"])
            - float(row["kernel_args_num_gb"]) / best * 1e6
            for row in rows
        }
        worst = sorted(lost, key=lambda name: -lost[name])[:20]
        names = [name for line in lines for name in re.findall(r"triton_\w+", line)]
        self.assertEqual(sorted(names), sorted(worst))
        for category in ("persistent_reduction", "pointwise", "reduction"):
            inside = [name for name in names if name.split("_")[1] == category[:3]]
            self.assertEqual(inside, [name for name in worst if name in inside], "worst first")
            total = sum(
                lost[row["kernel_name"]] for row in rows if row["kernel_category"] == category
            )
            (summed,) = [line.split()[2] for line in lines if re.match(rf"{category} +[0-9]", line)]
            self.assertAlmostEqual(float(summed), total, 3)

    def test_a_table_with_blank_cells(self) -> None:
        rows = read_rows(self.tmp / "augmented.csv")
        rows[0].update(dict.fromkeys(FIGURES, ""))
        self.table(rows, "augmented.csv", columns=[*rows[0]])
        self.run_recipes(0)
        self.run_recipes(1, 2)

    def test_pictures(self) -> None:
        ratios = self.run_recipes(1, 2)
        self.assertEqual(len(ratios.splitlines()), 121)
        for name in ("bandwidth.png", "before_after.png"):
            self.assertEqual((self.tmp / name).read_bytes()[:8], b"\x89PNG\r\n\x1a\n")

    def test_the_picture_that_is_shown(self) -> None:
        shown = re.findall(r"!\[[^\]]*\]\(([^)]*)\)", README)
        self.assertEqual(shown, ["tests/example/bandwidth.png"])
        self.assertTrue((PROGRAM.parent / shown[0]).is_file())


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
