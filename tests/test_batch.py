"""--batch: many kernels in one process, and of each the tuned launch."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import resource
import shutil
import signal
import subprocess
import sys
import unittest
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.runs import NAME, RunCase
from tests.support import PROGRAM, strays, wait_for

TRIAL = "trial-duration=999999999"
TUNED_ONLY = "if torch.stand_in.profiling():\n    "
POISON = "torch.stand_in.poison()"
OOM = "RuntimeError('CUDA out of memory. Tried to allocate 2.00 GiB')"
# Waits for a file, saying that it does by another; ends by itself should the test be gone.
GATE = """\
import pathlib, time
pathlib.Path({here!r}).touch()
give_up = time.monotonic() + 60
while not pathlib.Path({open!r}).exists() and time.monotonic() < give_up:
    time.sleep(0.01)
"""
FAKE = """\
==PROF== Disconnected from process 1
[1] python3.11@127.0.0.1
  {label}{name} (1, 1, 1)x(128, 1, 1), Context 1, Stream 7, Device 0, CC 8.0
    Section: Command line profiler metrics
    -------------------------- ----------- ------------
    Metric Name                Metric Unit Metric Value
    -------------------------- ----------- ------------
    dram__bytes.sum.per_second byte/second        77.77
    gpu__time_duration.sum         nsecond           77
    -------------------------- ----------- ------------

"""


class BatchCase(RunCase):
    """Kernels that use the stub torch; what was run together with what."""

    def setUp(self) -> None:
        super().setUp()
        self.use_torch()
        self.here, self.open = self.tmp / "here", self.tmp / "open"
        self.gate = GATE.format(here=str(self.here), open=str(self.open))

    def kernel(self, name: str, **options: Any) -> Path:
        """A kernel file whose first launch would give a figure of its own."""
        words = f"{TRIAL} {options.pop('directives', '')}".strip()
        return super().kernel(name, **{"torch": True, "directives": words, **options})

    def company(self) -> list[list[str]]:
        """The kernel files that each run of ncu was given, in the order of the runs."""
        return [
            [word for word in call["argv"] if word.startswith(str(self.cache))]
            for call in self.calls()
        ]

    def runs_of(self, kernel: Path) -> list[int]:
        """How many kernels each run had that was given this one."""
        return [len(paths) for paths in self.company() if str(kernel) in paths]

    def events(self, *kinds: str) -> list[dict[str, Any]]:
        """The events of the first run, of some kinds."""
        events: list[dict[str, Any]] = self.calls()[0]["events"]
        return [event for event in events if not kinds or event["event"] in kinds]

    def assert_failed(self, kernel: Path, said: str, reason: str) -> None:
        """The kernel failed, for that reason, and what it said is kept."""
        self.assertRegex(said, f"{kernel} failed: .*{reason}")
        self.assertFalse(kernel.with_suffix(".ncu").exists())
        self.assertRegex(kernel.with_suffix(".ncu.err").read_text(), reason)


class OrderTest(BatchCase):
    """What the driver does, in which order, as the stand-in sees it."""

    def test_whole_run(self) -> None:
        kernels = self.kernels(5)
        done = self.go(kernels, "--quick", "--batch", "3")
        self.assert_output(kernels)
        paths = [str(kernel) for kernel in kernels]
        self.assertEqual(self.company(), [paths[:3], paths[3:]])
        self.assertRegex(done.stderr, r"profiled +5\n")
        self.assertNotIn("warning", done.stderr)
        self.assertLessEqual(set(os.listdir(self.tmp / "tmp")), {"nsight-compute-lock"})
        self.assertEqual(os.listdir(self.tmp / "home"), [])

    def test_benchmarks_come_first(self) -> None:
        kernels = self.kernels(3)
        self.go(kernels, "--batch", "3")
        files = [event["file"] for event in self.events("launch")]
        first = [str(kernel) for kernel in kernels for _ in range(3)]
        self.assertEqual(files, [*first, *map(str, kernels)])
        kinds = [event["event"] for event in self.events()]
        launches = [at for at, kind in enumerate(kinds) if kind == "launch"]
        self.assertGreater(kinds.index("start"), launches[8], "no window before the benchmarks end")

    def test_one_launch_in_each_window(self) -> None:
        self.go(self.kernels(3), "--quick", "--batch", "3")
        events = self.events("start", "stop", "launch", "synchronize")
        kinds = " ".join(event["event"] for event in events)
        window = "synchronize start launch synchronize stop"
        self.assertEqual(kinds.count(window), 3, kinds)
        self.assertEqual((kinds.count("start"), kinds.count("stop")), (3, 3))

    def test_labels(self) -> None:
        self.go(self.kernels(3), "--quick", "--batch", "3")
        labels, current = [], []
        for event in self.events("push", "pop", "launch", "start", "stop"):
            if event["event"] == "push":
                current.append(event["label"])
            elif event["event"] == "pop":
                current.pop()
            elif event["event"] == "launch":
                labels.append(tuple(current))
        self.assertEqual(labels[:9], [()] * 9)
        self.assertEqual([len(label) for label in labels[9:]], [1, 1, 1])
        self.assertEqual(len(set(labels[9:])), 3)
        self.assertEqual(current, [])

    def test_no_tensor_is_kept(self) -> None:
        note = (
            "torch.stand_in.report('begin')\n"
            "def rand_strided(*size, make=rand_strided, **more):\n"
            "    torch.stand_in.report('make')\n"
            "    return make(*size, **more)"
        )
        kernels = self.kernels(3, main=note)
        kernels[1] = self.kernel(f"{NAME}1", main=note, in_call=f"{TUNED_ONLY}raise ValueError")
        self.go(kernels, "--quick", "--batch", "3", status=1)
        self.assertEqual([event["live"] for event in self.events("begin")], [0, 0, 0])
        self.assertEqual([event["live"] for event in self.events("make")], [0, 1] * 6)
        self.assertEqual({event["live"] for event in self.events("launch", "start")}, {2})

    def test_globals_are_emptied(self) -> None:
        canary = (
            "class Canary:\n"
            "    def __init__(self, torch):\n"
            "        self.report = torch.stand_in.report\n"
            "    def __del__(self):\n"
            "        self.report('gone')\n"
            "canary = Canary(torch)"
        )
        self.go(self.kernels(2, main=canary), "--quick", "--batch", "2")
        kinds = [event["event"] for event in self.events("start", "stop", "gone")]
        self.assertEqual(kinds, ["start", "stop", "gone"] * 2)

    def test_device_of_the_arguments(self) -> None:
        """synchronize, start and stop go to the arguments' own GPU."""
        kernels = [self.kernel(f"{NAME}{n}", device=n) for n in range(3)]
        self.go(kernels, "--quick", "--batch", "3", CUDA_VISIBLE_DEVICES="0,1,2")
        self.assert_output(kernels)
        events = self.events("start", "stop")
        self.assertEqual([event["device"] for event in events], [0, 0, 1, 1, 2, 2])

    def test_command(self) -> None:
        self.go(self.kernels(2), "--quick", "--batch", "2", "--ncu-args=--clock-control=none")
        (call,) = self.calls()
        words = " ".join(call["argv"])
        self.assertRegex(words, "--profile-from-start[= ]off")
        self.assertIn("--nvtx ", words)
        self.assertRegex(words, "--print-nvtx-rename[= ]kernel")
        self.assertIn("--metrics gpu__time_duration.sum,dram__bytes.sum.per_second", words)
        self.assertIn("--clock-control=none", words)
        self.assertNotIn("--set", words)
        self.assertNotRegex(words, "(-c|--launch-count)[= ]1 ")
        self.assertEqual((call["stdin"], call["lc_all"]), ("/dev/null", "C.UTF-8"))

    def test_dry_run(self) -> None:
        kernels = self.kernels(3)
        table = self.table(kernels)
        done = self.run_program("-i", table, "-o", self.out, "--batch", "2", "--dry-run")
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = done.stdout.splitlines()
        self.assertEqual(len(lines), 2)
        self.assertTrue(str(kernels[0]) in lines[0] and str(kernels[1]) in lines[0])
        self.assertIn(str(kernels[2]), lines[1])
        self.assertFalse(self.out.exists() or self.log.exists())

    def test_refused_sizes(self) -> None:
        table = self.table(self.kernels(1))
        for size in ("0", "-1", "x", "1.5", ""):
            done = self.run_program("-i", table, "-o", self.out, "--batch", size)
            self.assertEqual(done.returncode, 2, size)
            self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)


class MainTest(BatchCase):
    """Each file is the program while it runs, and finds nothing of ours or of the others."""

    def test_fresh_main(self) -> None:
        check = "import sys\nassert sys.modules['__main__'].__dict__ is globals()"
        main = (
            f"{check}\nassert __name__ == '__main__'\nassert sys.argv == [__file__], sys.argv\n"
            "assert 'kept' not in globals()\nkept = 1\n"
            "import inspect\nassert inspect.getsource(get_args).startswith('def get_args')\n"
            "assert f\"'kernel_name': '{KERNEL}'\" in open(__file__).read(), __file__"
        )
        kernels = [
            self.kernel(f"{NAME}{n}", main=main.replace("{KERNEL}", f"{NAME}{n}"), in_call=check)
            for n in range(3)
        ]
        self.go(kernels, "--quick", "--batch", "3")
        self.assert_output(kernels)

    def test_sys_path(self) -> None:
        """Neither the current folder nor the program's is searched for modules."""
        here = self.tmp / "program"
        for folder in (here, self.tmp):
            self.write(folder / "torch.py", "raise SystemExit('the wrong torch')\n")
            self.write(folder / "decoy.py", "")
        program = shutil.copy(PROGRAM, here)
        seen = self.tmp / "seen"
        main = (
            "import importlib.util, os, sys\n"
            "assert not importlib.util.find_spec('decoy')\n"
            f"open({str(seen)!r}, 'w').write(repr([os.path.abspath(p) for p in sys.path]))"
        )
        kernel = self.kernel(f"{NAME}0", main=main)
        table = self.table([kernel], "in.csv")
        for cwd, name in ((self.tmp, program), (here, os.path.basename(program))):
            command = [sys.executable, name, "-i", str(table), "-o", str(self.out)]
            done = subprocess.run(
                [*command, "--batch", "1", "--force"],
                cwd=cwd, env=self.environment, capture_output=True, text=True, timeout=60,
            )  # fmt: skip
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertNotIn(str(cwd), eval(seen.read_text()))
        self.assertEqual(strays(here), [])

    def test_each_starts_with_what_the_first_had(self) -> None:
        look = (
            "import os, sys, warnings\n"
            "seen = repr((sorted(os.environ.items()), sys.path, os.getcwd(), warnings.filters))\n"
            f"open({str(self.tmp / 'seen')!r}, 'a').write(seen + '\\n')\n"
        )
        main = (
            f"{look}os.environ['HOME'] = 'elsewhere'\nos.environ['NEW'] = '1'\n"
            "sys.path.insert(0, 'elsewhere')\nos.chdir('/')\nwarnings.simplefilter('error')"
        )
        kernels = self.kernels(3, main=main)
        self.go(kernels, "--quick", "--batch", "3")
        self.assert_output(kernels)
        seen = (self.tmp / "seen").read_text().splitlines()
        self.assertEqual((len(seen), len(set(seen))), (3, 1))

    def test_reports_are_lost(self) -> None:
        """A kernel that closes what it has not opened is run plainly; the others together."""
        close = (
            "for number in os.listdir('/proc/self/fd'):\n"
            "    name = f'/proc/self/fd/{number}'\n"
            "    if int(number) > 2 and 'memfd' in os.path.realpath(name):\n"
            "        %s\n"
        )
        for how in ("os.close(int(number))", "os.dup2(0, int(number))"):
            with self.subTest(how):
                self.log.unlink(missing_ok=True)
                kernels = self.kernels(3)
                kernels[1] = self.kernel(f"{NAME}1", main=close % how)
                said = self.go(kernels, "--quick", "--batch", "3", "--force").stderr
                self.assertEqual(said.count(f"{kernels[1]}: its launch or its reports were"), 1)
                self.assert_output(kernels, first=[kernels[1]])
                self.assertEqual(self.runs_of(kernels[1]), [3, 1, 1])

    def test_prints_without_end(self) -> None:
        kernels = self.kernels(3)
        kernels[1] = self.kernel(f"{NAME}1", main="while True:\n    print('x' * 100_000)")
        said = self.go(kernels, "--quick", "--batch", "3", status=1).stderr
        self.assert_output(kernels, [kernels[1]])
        self.assert_failed(kernels[1], said, "more than 64 MiB of output")

    def test_stdout_is_captured(self) -> None:
        main = "print('no', end='')\nprint()\nimport os\nos.write(1, b'noise\\n')\n" + (
            "os.system('echo noise of a child')\nprint('late', file=sys.stderr)"
        )
        kernels = self.kernels(2, top="import sys", main=main, in_call="print('noise')")
        self.go(kernels, "--quick", "--batch", "2")
        self.assert_output(kernels)
        for kernel in kernels:
            self.assertNotIn("noise", kernel.with_suffix(".ncu").read_text())

    def test_ncu_like_text(self) -> None:
        """What a kernel prints is never taken for ncu's, with whatever label."""
        kernels = self.kernels(3)
        labels = ["", *(f"{label}/" for label in ("kernel-0", "kernel-1", "0", "1"))]
        fake = "".join(FAKE.format(label=label, name=f"{NAME}0") for label in labels)
        for stream in (1, 2):
            code = f"import os\nos.write({stream}, {fake.encode()!r})"
            kernels[1] = self.kernel(f"{NAME}1", main=code, in_call=code)
            self.go(kernels, "--quick", "--batch", "3", "--force")
            self.assert_output(kernels)

    def test_fatal_text_of_a_kernel_s_own(self) -> None:
        """Only ncu's word ends the run: here one kernel prints such text, another fails."""
        text = "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission\n"
        code = f"import os\nos.write(1, {text.encode()!r})\nos.write(2, {text.encode()!r})"
        kernels = self.kernels(3)
        kernels[0] = self.kernel(f"{NAME}0", main=code)
        kernels[2] = self.kernel(f"{NAME}2", main="raise ValueError('boom')")
        self.go(kernels, "--quick", "--batch", "3", status=1)
        self.assert_output(kernels, kernels[2:])

    def test_a_child_that_stays(self) -> None:
        main = "import subprocess\nsubprocess.Popen(['sleep', '600'])"
        kernels = self.kernels(2, main=main)
        self.go(kernels, "--quick", "--batch", "2")
        self.assert_output(kernels)


class LogTest(BatchCase):
    """Each kernel gets a log of its own, valid alone."""

    def test_contents(self) -> None:
        kernels = self.kernels(3)
        for dialect in ("2022", "2024", "2025"):
            self.go(kernels, "--batch", "3", "--force", NCU_STAND_IN_DIALECT=dialect)
            self.assert_output(kernels)
            for kernel in kernels:
                text = kernel.with_suffix(".ncu").read_text()
                self.assertEqual(text.count("Context 1"), 1)
                self.assertEqual(text.count("GB/s\n"), 1)
                self.assertIn("tuned launch", text)
                self.assertIn(hashlib.sha256(kernel.read_bytes()).hexdigest(), text)
                self.assertIn(str(kernel), text)

    def test_valid_alone(self) -> None:
        kernels = self.kernels(3)
        self.go(kernels, "--quick", "--batch", "3")
        whole = self.out.read_bytes()
        self.log.unlink()
        done = self.go(kernels, "--cached-only", PATH="/nonexistent")
        self.assertEqual(self.out.read_bytes(), whole)
        self.assertRegex(done.stderr, r"cached +3\n")
        kernels[0].with_suffix(".ncu").unlink()
        self.go(kernels, "--cached-only", status=1)
        self.assert_output(kernels, kernels[:1])

    def test_an_edited_kernel_is_profiled_again(self) -> None:
        kernels = self.kernels(3)
        self.go(kernels, "--quick", "--batch", "3")
        self.log.unlink()
        kernels[1] = self.kernel(f"{NAME}1", ms=0.5)
        self.go(kernels, "--quick", "--batch", "3")
        self.assert_output(kernels)
        self.assertEqual(self.company(), [[str(kernels[1])]])

    def test_plain_names(self) -> None:
        kernels = [self.kernel(f"{NAME}{n}", function="triton_") for n in range(3)]
        self.go(kernels, "--quick", "--batch", "3")
        self.assert_output(kernels)

    def test_summary_counts_both_launches(self) -> None:
        kernels = self.kernels(5)
        done = self.go(kernels[:2])
        self.assert_output(kernels[:2], first=kernels[:2])
        self.assertIn("first launch", kernels[0].with_suffix(".ncu").read_text())
        self.log.unlink()
        done = self.go(kernels, "--batch", "8")
        self.assert_output(kernels, first=kernels[:2])
        self.assertEqual(self.company(), [[str(kernel) for kernel in kernels[2:]]])
        summary = done.stderr[done.stderr.index("rows ") :]
        self.assertRegex(summary, r"\b3\W+tuned")
        self.assertRegex(summary, r"\b2 first")
        self.assertIn("--force", summary)
        self.go(kernels, "--batch", "8", "--force")
        self.assert_output(kernels)

    def test_summary_where_every_launch_was_the_first(self) -> None:
        kernels = self.kernels(2)
        self.go(kernels)
        summary = self.go(kernels, "--batch", "2").stderr
        self.assertRegex(summary, r"\b2 first")
        self.assertIn("--force", summary)

    def test_no_dram_counters(self) -> None:
        kernels = self.kernels(3)
        done = self.go(kernels, "--quick", "--batch", "3", NCU_STAND_IN_NO_DRAM="1")
        self.assert_output(kernels, no_bandwidth=True)
        self.assertEqual(done.stderr.count("warning:"), 1, done.stderr)
        self.assertEqual(len(self.calls()), 2)

    def test_batch_of_one(self) -> None:
        kernels = self.kernels(2)
        self.go(kernels, "--batch", "1")
        self.assert_output(kernels)
        self.assertEqual(self.company(), [[str(kernel)] for kernel in kernels])


class OneBadKernelTest(BatchCase):
    """One bad kernel never fails another."""

    tries = 0

    def check(
        self,
        bad: dict[str, Any],
        reason: str,
        runs: Sequence[int],
        places: Sequence[int] = (0, 1, 2),
    ) -> None:
        """Put a bad kernel first, middle and last; it was in runs with so many kernels each."""
        for place in places:
            with self.subTest(bad, place=place):
                self.tries += 1
                kernels = [self.kernel(f"{NAME}{self.tries}_{n}") for n in range(3)]
                kernels[place] = self.kernel(f"{NAME}bad{self.tries}", **bad)
                self.log.unlink(missing_ok=True)
                said = self.go(kernels, "--quick", "--batch", "3", status=1).stderr
                self.assert_output(kernels, [kernels[place]])
                self.assert_failed(kernels[place], said, reason)
                self.assertEqual(self.runs_of(kernels[place]), list(runs), self.company())
                left = [kernel.with_suffix(".ncu.err").exists() for kernel in kernels]
                self.assertEqual(left.count(True), 1)

    def test_raises(self) -> None:
        self.check({"main": "raise ValueError('boom')"}, "ValueError: boom", [3])

    def test_raises_when_tuned(self) -> None:
        self.check({"in_call": f"{TUNED_ONLY}raise ValueError('boom')"}, "ValueError: boom", [3])

    def test_does_not_compile(self) -> None:
        self.check({"main": "this is no Python"}, "SyntaxError", [3], [1])

    def test_exits(self) -> None:
        self.check({"main": "raise SystemExit(0)"}, "exit", [3], [0])
        self.check({"in_call": f"{TUNED_ONLY}import sys; sys.exit('bye')"}, "exit", [3], [1])

    def test_leaves_at_once(self) -> None:
        self.check({"main": "os._exit(0)"}, "no kernel", [3, 1], [1])

    def test_poisoned_context(self) -> None:
        reason = "an illegal memory access was encountered"
        self.check({"main": POISON}, reason, [3, 1], [1])
        self.check({"in_call": TUNED_ONLY + POISON}, reason, [3, 1], [0, 2])

    def test_crash(self) -> None:
        self.check({"directives": "crash"}, r"code \(11\)", [3, 1], [0, 2])

    def test_crash_when_profiled(self) -> None:
        self.check({"directives": "crash=profiled"}, r"code \(11\)", [3, 1], [1])

    def test_launch_failed(self) -> None:
        self.check({"directives": "launch-failed"}, "LaunchFailed", [3, 1], [1])

    def test_nan(self) -> None:
        self.check({"directives": "nan"}, "nan", [3], [1])

    def test_launches_twice(self) -> None:
        twice = "2 if torch.stand_in.profiling() else 1"
        self.check({"launches": twice}, "launch", [3], [1])

    def test_launches_another_kernel(self) -> None:
        other = f"{TUNED_ONLY}torch.stand_in.launch('triton_other', __file__)"
        bad = {"in_call": other, "launches": "0 if torch.stand_in.profiling() else 1"}
        self.check(bad, "triton_other", [3], [1])

    def test_no_benchmark_line(self) -> None:
        self.check({"line": ""}, "no benchmark line", [3], [1])

    def test_many_bad_kernels(self) -> None:
        kernels = self.kernels(8)
        for n, bad in enumerate(
            ({"directives": "crash"}, {"main": POISON}, {"directives": "crash=profiled"})
        ):
            kernels[n * 3] = self.kernel(f"{NAME}{n * 3}", **bad)
        self.go(kernels, "--quick", "--batch", "8", status=1)
        failed = [kernels[0], kernels[3], kernels[6]]
        self.assert_output(kernels, failed)
        for kernel in failed:
            self.assertEqual(self.runs_of(kernel)[-1], 1, "alone before it is called failed")

    def test_the_context_is_lost_late(self) -> None:
        """The kernel after the culprit suffers, and is not taken for it."""
        main = "import weakref\nhook = rand_strided((1,), (1,))\n"
        main += "weakref.finalize(hook, torch.stand_in.poison)"
        kernels = self.kernels(3)
        kernels[0] = self.kernel(f"{NAME}0", main=main)
        self.go(kernels, "--quick", "--batch", "3")
        self.assert_output(kernels)

    def test_failed_logs_do_not_serve(self) -> None:
        kernels = self.kernels(3)
        kernels[1] = self.kernel(f"{NAME}1", main="raise ValueError")
        self.go(kernels, "--quick", "--batch", "3", status=1)
        self.log.unlink()
        self.go(kernels, "--quick", "--batch", "3", status=1)
        self.assertEqual(self.company(), [[str(kernels[1])]])
        kernels[1] = self.kernel(f"{NAME}1")
        self.go(kernels, "--quick", "--batch", "3")
        self.assert_output(kernels)
        self.assertEqual(list(self.cache.rglob("*.err")), [])


class RunsOtherwiseTest(BatchCase):
    """Kernels that cannot be profiled in company get another way."""

    def test_memory_is_short_in_company(self) -> None:
        count = "torch.company = getattr(torch, 'company', 0) + 1"
        short = f"if torch.company > 1:\n    raise {OOM}"
        tuned = short.replace("if ", "if torch.stand_in.profiling() and ")
        for bad in ({"main": f"{count}\n{short}"}, {"main": count, "in_call": tuned}):
            with self.subTest(bad):
                self.log.unlink(missing_ok=True)
                kernels = self.kernels(3, main=count)
                kernels[1] = self.kernel(f"{NAME}1", **bad)
                self.go(kernels, "--quick", "--batch", "3", "--force")
                self.assert_output(kernels)
                self.assertEqual(self.runs_of(kernels[1]), [3, 1])
                self.assertEqual(self.runs_of(kernels[2]), [3])

    def test_memory_is_short_alone_too(self) -> None:
        kernels = self.kernels(3)
        kernels[0] = self.kernel(f"{NAME}0", main=f"raise {OOM}")
        done = self.go(kernels, "--quick", "--batch", "3", status=1)
        self.assert_output(kernels, kernels[:1])
        self.assert_failed(kernels[0], done.stderr, "out of memory")
        self.assertEqual(self.runs_of(kernels[0]), [3, 1])

    def test_nothing_launched_the_second_time(self) -> None:
        none = "0 if torch.stand_in.profiling() else 1"
        for place in (0, 2):
            kernels = [self.kernel(f"{NAME}{place}{n}") for n in range(3)]
            kernels[place] = self.kernel(f"{NAME}none{place}", launches=none)
            self.log.unlink(missing_ok=True)
            self.go(kernels, "--quick", "--batch", "3")
            self.assert_output(kernels, first=[kernels[place]])
            self.assertEqual(self.runs_of(kernels[place]), [3, 1])
            text = kernels[place].with_suffix(".ncu").read_text()
            self.assertIn("first launch", text)
            self.assertNotIn("tuned launch", text)

    def test_files_without_get_args(self) -> None:
        kernels = self.kernels(4)
        for kernel in kernels[1:3]:
            kernel.write_text(kernel.read_text().replace("get_args", "other_name"))
        self.go(kernels, "--quick", "--batch", "4")
        self.assert_output(kernels, first=kernels[1:3])
        sizes = sorted(len(paths) for paths in self.company())
        self.assertEqual(sizes[:2], [1, 1])
        self.assertEqual(sum(sizes), 4)
        for kernel in kernels[1:3]:
            (call,) = self.calls_for(kernel)
            self.assertNotIn("--profile-from-start", " ".join(call["argv"]))

    def test_no_harness_is_not_run(self) -> None:
        kernels = self.kernels(3)
        kernels[1] = self.kernel(f"{NAME}1", harness=False)
        done = self.go(kernels, "--quick", "--batch", "3", status=1)
        self.assert_output(kernels, [kernels[1]])
        self.assertIn("TORCHINDUCTOR_BENCHMARK_KERNEL=1", done.stderr)
        self.assertEqual(self.runs_of(kernels[1]), [])

    def test_hangs(self) -> None:
        """Three runs side by side, for their time: two that hang, one that is only slow."""
        asleep = "import time\ntime.sleep(60)"
        runs = []
        for what, bad in (("tuned", {"directives": "hang"}), ("benchmark", {"main": asleep})):
            kernels = [self.kernel(f"{NAME}{what}{n}") for n in range(3)]
            kernels[1] = self.kernel(f"{NAME}{what}1", **bad)
            runs.append((what, kernels, 1))
        slow = "import time\ntime.sleep(1.1)"
        runs.append(("slow", [self.kernel(f"{NAME}slow{n}", main=slow) for n in range(4)], 0))
        started = []
        for what, kernels, status in runs:
            # A slow kernel alone is far from the limit, on a busy machine too.
            limit = 2 if status else 4
            out = self.tmp / f"{what}.csv"
            table = self.table(kernels, f"{what}.in.csv")
            options = ("--quick", "--batch", "4", "--timeout", limit)
            started.append(self.start_program("-i", table, "-o", out, *options))
        for process, (what, kernels, status) in zip(started, runs):
            _, said = process.communicate(timeout=60)
            self.assertEqual(process.returncode, status, said)
            self.out = self.tmp / f"{what}.csv"
            self.assert_output(kernels, kernels[1:2] * status)
            if status:
                self.assert_failed(kernels[1], said, r"2 s")
                self.assertEqual(self.runs_of(kernels[1]), [3, 1], what)
        self.assertEqual(self.runs_of(runs[0][1][0]), [3], "printed within the grace, and kept")
        self.assertEqual(self.runs_of(runs[2][1][0]), [4], "each report starts the time anew")
        self.assertEqual(self.survivors(), [])

    def test_a_resource_is_unavailable(self) -> None:
        kernels = self.kernels(3)
        kernels[1] = self.kernel(f"{NAME}1", directives="resource-unavailable=1")
        self.go(kernels, "--quick", "--batch", "3")
        self.assert_output(kernels)
        self.assertEqual(self.runs_of(kernels[0]), [3])
        self.assertEqual(len(self.runs_of(kernels[1])), 2)


class ResultsCutShortTest(BatchCase):
    """ncu itself dies, or is killed, while it prints: what it had not printed is tried again."""

    def go_with(self, ending: str, *options: str) -> list[Path]:
        """Run three kernels; in a batch of them all, ncu's text is cut in the second result."""
        ncu = self.write(
            "bin/ncu",
            f"#!{sys.executable}\n"
            "import os, signal, subprocess, sys\n"
            "batch = sum(word.endswith('.py') for word in sys.argv) > 3\n"
            f"command = [{str(PROGRAM.parent / 'tests' / 'ncu')!r}, *sys.argv[1:]]\n"
            "if not batch:\n"
            "    os.execv(command[0], command)\n"
            "done = subprocess.run(command, stdout=subprocess.PIPE, close_fds=False)\n"
            "text = done.stdout\n"
            "cut = text[: text.index(b'nsecond', text.index(b'nsecond') + 1) + 9]\n"
            "os.write(1, cut)\n"
            f"{ending}\n",
        )
        ncu.chmod(0o755)
        kernels = self.kernels(3)
        self.go(kernels, "--quick", "--batch", "3", "--ncu", ncu, *options)
        return kernels

    def test_killed_within_the_grace(self) -> None:
        kernels = self.go_with("signal.pause()", "--timeout", "2")
        self.assert_output(kernels)
        self.assertEqual(self.runs_of(kernels[0]), [3])

    def test_ncu_crashes(self) -> None:
        kernels = self.go_with("os.kill(os.getpid(), signal.SIGSEGV)")
        self.assert_output(kernels)


class SetUpTest(BatchCase):
    """What fails for all kernels ends the run; the output stays as it was."""

    def check(self, *options: str, kernels: int = 12, **env: str | None) -> str:
        self.out.write_text("as it was")
        done = self.go(self.kernels(kernels), "--batch", "4", *options, status=2, **env)
        self.assertEqual(self.out.read_text(), "as it was")
        self.assertEqual(list(self.cache.rglob("*.ncu")), [])
        return done.stderr

    def test_fatal(self) -> None:
        for name, remedy in (
            ("permission", "NVreg_RestrictProfilingToAdminUsers"),
            ("driver-stub", "driver"),
            ("driver-incompatible", "driver"),
            ("clocks", "--clock-control"),
            ("temp-file", "TMPDIR"),
            ("bad-option", "--ncu-args"),
        ):
            with self.subTest(name):
                self.log.unlink(missing_ok=True)
                said = self.check(NCU_STAND_IN_FAIL=name)
                self.assertIn(remedy, said)
                self.assertLessEqual(len(self.calls()), 1)

    def test_no_torch(self) -> None:
        if importlib.util.find_spec("torch"):
            self.skipTest("this Python has torch")
        said = self.check(PYTHONPATH=None)
        self.assertIn("No module named 'torch'", said)

    def test_every_kernel_raises(self) -> None:
        kernels = self.kernels(12, main="raise ImportError('no triton')")
        self.out.write_text("as it was")
        done = self.go(kernels, "--batch", "4", status=2)
        self.assertIn("no triton", done.stderr)
        self.assertEqual(self.out.read_text(), "as it was")

    def test_few_descriptors(self) -> None:
        """More kernels in a batch than the process may have files open."""
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        kernels = self.kernels(80)
        table = self.table(kernels, "in.csv")
        process = self.start_program(
            "-i", table, "-o", self.out, "--quick", "--batch", "80",
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard)),
        )  # fmt: skip
        _, said = process.communicate(timeout=60)
        self.assertNotIn("Traceback", said)
        self.assertEqual(process.returncode, 0, said)
        self.assert_output(kernels)


class StoppedTest(BatchCase):
    """A batch that is stopped, by whom ever; the same command goes on."""

    def start(self, kernels: list[Path], *options: object) -> subprocess.Popen[str]:
        """Start the program and wait until a kernel is at its gate."""
        table = self.table(kernels, "in.csv")
        self.out.write_text("as it was")
        process = self.start_program("-i", table, "-o", self.out, "--quick", *options)
        wait_for(self.here.exists)
        return process

    def test_kill_9(self) -> None:
        kernels = self.kernels(6)
        kernels[3] = self.kernel(f"{NAME}3", main=self.gate)
        process = self.start(kernels, "--batch", "2")
        process.kill()
        process.wait()
        self.assertEqual(self.out.read_text(), "as it was")
        stored = [kernel.with_suffix(".ncu").exists() for kernel in kernels]
        self.assertEqual(stored, [True, True, False, False, False, False])
        self.open.touch()
        wait_for(lambda: not self.survivors())  # what is orphaned ends by itself
        self.log.unlink()
        self.go(kernels, "--quick", "--batch", "2")
        self.assert_output(kernels)
        paths = [str(kernel) for kernel in kernels]
        self.assertEqual(self.company(), [paths[2:4], paths[4:]])

    def test_signals(self) -> None:
        """What ncu prints within the grace is kept."""
        for number, status in ((signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)):
            with self.subTest(number=number):
                for path in (self.here, self.open):
                    path.unlink(missing_ok=True)
                kernels = [self.kernel(f"{NAME}{number}{n}") for n in range(4)]
                gate = TUNED_ONLY + self.gate.replace("\n", "\n    ")
                kernels[2] = self.kernel(f"{NAME}{number}2", in_call=gate)
                process = self.start(kernels, "--batch", "4")
                process.send_signal(number)
                _, said = process.communicate(timeout=60)
                self.assertEqual(process.returncode, status, said)
                self.assertIn("2 of 4", said)
                self.assertEqual((strays(self.cache), self.survivors()), ([], []))
                self.assertEqual(self.out.read_text(), "as it was")
                stored = [kernel.with_suffix(".ncu").exists() for kernel in kernels]
                self.assertEqual(stored, [True, True, False, False])
                self.assertEqual(list(self.cache.rglob("*.err")), [])
                self.open.touch()
                self.log.unlink()
                self.go(kernels, "--quick", "--batch", "4")
                self.assert_output(kernels)
                self.assertEqual(self.company(), [[str(kernel) for kernel in kernels[2:]]])

    def test_second_interrupt(self) -> None:
        """It does not wait for the end of a grace, which a deaf kernel would use up."""
        told = self.tmp / "told"
        deaf = "import signal\nsignal.signal(signal.SIGTERM, lambda *_: "
        deaf += f"open({str(told)!r}, 'w').close())\n"
        kernels = self.kernels(2)
        kernels[1] = self.kernel(f"{NAME}1", main=deaf + self.gate)
        process = self.start(kernels, "--batch", "2")
        process.send_signal(signal.SIGINT)
        wait_for(told.exists)  # two that are pending at once would count as one
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        self.assertIn(process.returncode, (130, -signal.SIGINT))
        self.assertEqual((strays(self.cache), self.survivors()), ([], []))


@unittest.skipUnless(os.environ.get("REAL_NCU"), "REAL_NCU names no real ncu")
class RealNcuTest(BatchCase):
    """The real ncu, which needs no GPU for this; LD_LIBRARY_PATH finds it a driver library."""

    def test_command_and_pipe(self) -> None:
        kernels = self.kernels(3)
        kernels[1] = self.kernel(f"{NAME}1", main="raise ValueError('boom')")
        kernels[2] = self.kernel(f"{NAME}2", line="")
        python = os.path.realpath(sys.executable)
        done = self.go(
            kernels, "--quick", "--batch", "3", "--python", python,
            "--ncu", os.environ["REAL_NCU"], status=1,
            LD_LIBRARY_PATH=os.environ.get("LD_LIBRARY_PATH"),
        )  # fmt: skip
        self.assert_failed(kernels[1], done.stderr, "ValueError: boom")
        self.assert_failed(kernels[2], done.stderr, "no benchmark line")
        self.assertRegex(done.stderr, f"{kernels[0]} failed: .*profiled")

    def test_a_name_that_is_not_defined(self) -> None:
        """ncu takes the command of a kernel of torch 2.10, and the kernel comes to its end."""
        slip = "print('ran', benchmark(lambda: 0, device=cuda, rep=40))"
        top = "def benchmark(call, device, rep):\n    return device"
        kernel = self.kernel(f"{NAME}0", top=top, main=slip)
        python = os.path.realpath(sys.executable)
        self.go(
            [kernel], "--ncu", os.environ["REAL_NCU"], "--python", python, status=1,
            LD_LIBRARY_PATH=os.environ.get("LD_LIBRARY_PATH"),
        )  # fmt: skip
        said = kernel.with_suffix(".ncu.err").read_text()
        self.assertIn("\nran cuda\n", said)
        self.assertIn("No kernels were profiled", said)

    def test_stopped(self) -> None:
        kernels = self.kernels(2)
        child = "import subprocess\nsubprocess.Popen(['sleep', '60'])\n"
        kernels[1] = self.kernel(f"{NAME}1", main=child + self.gate)
        self.environment["LD_LIBRARY_PATH"] = os.environ.get("LD_LIBRARY_PATH", "")
        python = os.path.realpath(sys.executable)
        table = self.table(kernels, "in.csv")
        process = self.start_program(
            "-i", table, "-o", self.out, "--quick", "--batch", "2",
            "--ncu", os.environ["REAL_NCU"], "--python", python,
        )  # fmt: skip
        wait_for(self.here.exists)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 143, said)
        self.assertEqual((strays(self.cache), self.survivors()), ([], []))
