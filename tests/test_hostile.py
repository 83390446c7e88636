"""Odd tables, odd parents, odd kernels and an odd ncu: each of these once broke something."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import time
import unittest
from pathlib import Path
from typing import Any

from tests.support import PROGRAM, Case, kernel_source, strays, wait_for

LOG = """\
==PROF== Connected to process 41 (/usr/bin/python3.11)
==PROF== Profiling "triton_poi_fused_add_0" - 0: 0%....50%....100% - 38 passes
0.027ms    0.004GB    147.69GB/s
==PROF== Disconnected from process 41
[41] python3.11@127.0.0.1
  triton_poi_fused_add_0 (4, 1, 1)x(128, 1, 1), Context 1, Stream 7, Device 0, CC 9.0
    Section: GPU Speed Of Light Throughput
    ----------- ----------- ------------
    Metric Name Metric Unit Metric Value
    ----------- ----------- ------------
    Duration        nsecond         2000
    ----------- ----------- ------------

    Section: Memory Workload Analysis
    ----------------- ----------- ---------------
    Metric Name       Metric Unit    Metric Value
    ----------------- ----------- ---------------
    Memory Throughput byte/second 500000000000.00
    ----------------- ----------- ---------------
"""
CELLS = "27.0,2.0,500.0,0.001"


class TableTest(Case):
    def fill(self, table: bytes) -> bytes:
        """Return the output for a table over two kernels with logs."""
        for name in ("k1", "k2"):
            self.write(str(self.tmp / f"{name}.ncu"), LOG)
        path = self.tmp / "in.csv"
        path.write_bytes(table)
        done = self.run_program("-i", path, "-o", "out.csv", "--cached-only", "-q")
        self.assertIn(done.returncode, (0, 1), done.stderr)
        return (self.tmp / "out.csv").read_bytes()

    def test_line_ends_in_cells_of_an_augmented_table(self) -> None:
        table = (
            b'kernel_name,kernel_path,kernel_category,"x\ny",ncu_duration_us\nn,k1.py,p,"a\nb",7\n'
        )
        ours = b",latency_us_under_profiling,ncu_duration_us,ncu_mem_bw_gbps,ncu_mem_accessed_gb"
        self.assertEqual(
            self.fill(table),
            table.split(b",ncu")[0] + ours + b'\nn,k1.py,p,"a\nb",' + CELLS.encode() + b"\n",
        )

    def test_a_nul_in_the_second_line_of_a_cell(self) -> None:
        table = b'kernel_name,kernel_path,kernel_category,x\nn,k1.py,p,"a\n\0001"\nm,k2.py,p,b\n'
        rows = self.fill(table).splitlines()
        self.assertEqual(rows[1:], [b"m,k2.py,p,b," + CELLS.encode()])

    def test_a_stdout_that_does_not_block(self) -> None:
        """What a pipe has no room for at once must not be lost."""
        self.write(str(self.tmp / "k1.ncu"), LOG)
        rows = "".join(f"n{number},k1.py,p\n" for number in range(3000))
        self.write(str(self.tmp / "in.csv"), "kernel_name,kernel_path,kernel_category\n" + rows)
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        command = [sys.executable, str(PROGRAM), "-i", "in.csv", "-o", "-", "-q", "--cached-only"]
        with (
            subprocess.Popen(command, stdout=writer, cwd=self.tmp, env=self.merged(None)) as child,
            os.fdopen(reader, "rb") as stream,
        ):
            os.close(writer)
            self.assertEqual(len(stream.read().splitlines()), 3001)
            self.assertEqual(child.wait(), 0)

    def test_output_to_an_open_file_by_its_number(self) -> None:
        """`-o /dev/fd/1 >>file` keeps what the file holds."""
        self.write(str(self.tmp / "k1.ncu"), LOG)
        self.write(str(self.tmp / "in.csv"), "kernel_name,kernel_path,kernel_category\nn,k1.py,p\n")
        for name in ("/dev/fd/1", "/proc/self/fd/1", "/dev/stdout"):
            with open(self.tmp / "all.csv", "w+") as stream:
                stream.write("KEEP\n")
                stream.flush()
                command = [sys.executable, str(PROGRAM), "-i", "in.csv", "-o", name, "-q"]
                environment = self.merged(None)
                subprocess.run(command, stdout=stream, cwd=self.tmp, env=environment, check=True)
                stream.seek(0)
                self.assertEqual(len(stream.read().splitlines()), 3, name)

    def test_an_open_file_that_cannot_be_the_output(self) -> None:
        """Known before anything runs: the input, one that is read, one that is not there."""
        self.write(str(self.tmp / "k1.ncu"), LOG)
        text = "kernel_name,kernel_path,kernel_category\nn,k1.py,p\n"
        table = Path(self.write(str(self.tmp / "in.csv"), text))
        for mode, name in (("a", "-"), ("a", "/dev/fd/1"), ("r", "-"), ("a", "/dev/fd/4")):
            with open(table, mode) as stream:
                done = subprocess.run(
                    [sys.executable, str(PROGRAM), "-i", "in.csv", "-o", name, "-q"],
                    stdout=stream,
                    stderr=subprocess.PIPE,
                    cwd=self.tmp,
                    env=self.merged(None),
                    check=False,
                )
            self.assertEqual(done.returncode, 2, (mode, name))
            self.assertRegex(done.stderr.decode(), r"\Aerror: .*\n\Z")
            self.assertEqual(table.read_text(), text)


class DirectoryTest(Case):
    def test_linked_folders_do_not_hide_kernels(self) -> None:
        """In whatever order a folder is listed."""
        for place in ("x", "y"):
            self.kernel(f"triton_poi_fused_{place}", folder=self.tmp / "other" / place)
        for number in range(6):
            root = self.tmp / f"r{number}"
            root.mkdir()
            (root / f"in{number}").symlink_to(self.tmp / "other" / "x")
            (root / f"out{number}").symlink_to(self.tmp / "other")
            done = self.run_program("-i", root, "-o", "-", "--table-only", "-q")
            names = [line.split(",")[1] for line in done.stdout.splitlines()[1:]]
            self.assertEqual(sorted(names), ["triton_poi_fused_x", "triton_poi_fused_y"])


class OutputTest(Case):
    """What can be known of the output before the first kernel."""

    def refuse(self, output: str, source: str = "in.csv", **options: Any) -> str:
        """Run the program with an output that cannot be; what it says. No kernel is run."""
        done = self.run_program("-i", source, "-o", output, **options)
        self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
        self.assertRegex(done.stderr, r"\Aerror: .*\n\Z")
        self.assertEqual(self.calls(), [])
        return str(done.stderr)

    def setUp(self) -> None:
        super().setUp()
        self.input = self.table([self.kernel("triton_poi_fused_add_0")], "in.csv")

    def test_other_spellings_of_the_input(self) -> None:
        text = self.input.read_bytes()
        for name in ("in.csv/", "nosuch/../in.csv", "in.csv/.", "in.csv/../in.csv"):
            with self.subTest(name):
                self.refuse(name)
                self.refuse(name, "-", stdin=text.decode())
                self.assertEqual(self.input.read_bytes(), text)

    def test_a_folder_that_is_not_there(self) -> None:
        self.refuse("new/")
        self.assertFalse((self.tmp / "new").exists())

    def test_a_name_that_is_too_long(self) -> None:
        self.assertIn("File name too long", self.refuse("x" * 300))

    @unittest.skipIf(os.geteuid() or not shutil.which("mount"), "only root can mount")
    def test_a_full_disk(self) -> None:
        disk = self.tmp / "disk"
        disk.mkdir()
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(disk)])
        if mounted.returncode:
            self.skipTest("cannot mount here")
        self.addCleanup(subprocess.run, ["umount", str(disk)])
        (disk / "filler").write_bytes(b"x" * 60_000)
        self.assertIn("No space left", self.refuse(str(disk / "out.csv")))
        self.assertEqual(os.listdir(disk), ["filler"])


class LimitTest(Case):
    """Limits that a shell or a scheduler sets."""

    def test_no_thread_can_be_started(self) -> None:
        (self.tmp / "sitecustomize.py").write_text(
            "import threading\n"
            'def start(self): raise RuntimeError("can\'t start new thread")\n'
            "threading.Thread.start = start\n"
        )
        table = self.table([self.kernel("triton_poi_fused_add_0")])
        done = self.run_program("-i", table, "-o", "o.csv", env={"PYTHONPATH": str(self.tmp)})
        self.assertEqual(done.returncode, 2)
        self.assertRegex(done.stderr, r"\Aerror: .*can't start new thread\n.*\n.*\n\Z")

    def test_small_files_in_a_batch(self) -> None:
        self.use_torch()
        kernels = [self.kernel(f"triton_poi_fused_add_{n}", torch=True) for n in range(2)]
        command = 'ulimit -f 2000; exec "$@"'
        options = ["-i", str(self.table(kernels)), "-o", "o.csv", "--batch", "2"]
        done = subprocess.run(
            ["bash", "-c", command, "", sys.executable, str(PROGRAM), *options],
            cwd=self.tmp, env=self.merged(None), capture_output=True, text=True,
        )  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(len(self.calls()), 1)

    def test_a_safe_path(self) -> None:
        """Under PYTHONSAFEPATH the first folder of PYTHONPATH is the first of all."""
        module = self.tmp / "modules"
        module.mkdir()
        (module / "elsewhere.py").write_text("benchmark = lambda call, device: 0.027\n")
        main = "import elsewhere as benchmarker; benchmarker.benchmark(call, device=cuda)"
        table = self.table([self.kernel("triton_poi_fused_add_0", main=main)])
        for safe in (None, "1"):
            env = {"PYTHONPATH": str(module), "PYTHONSAFEPATH": safe}
            done = self.run_program("-i", table, "-o", "o.csv", "--force", env=env)
            self.assertEqual(done.returncode, 0, done.stderr)

    def test_a_dry_run_that_nobody_reads(self) -> None:
        """It waits for room in the pipe, and TERM ends that as ever."""
        kernels = [self.kernel(f"triton_poi_fused_add_{n}") for n in range(600)]
        child = self.start_program("-i", self.table(kernels), "-o", "o.csv", "--dry-run", "-q")
        assert child.stdout
        select.select([child.stdout], [], [])
        child.send_signal(signal.SIGTERM)
        self.assertEqual(child.wait(60), -signal.SIGTERM)


class ParentTest(Case):
    def test_children_that_are_not_waited_for(self) -> None:
        """A parent can have SIGCHLD ignored; the program would then not see its own end."""
        kernel = self.kernel("triton_poi_fused_add_0")
        code = (
            "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); "
            "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
        )
        arguments = [str(PROGRAM), "-i", str(self.table([kernel])), "-o", "out.csv"]
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments],
            cwd=self.tmp,
            env=self.merged(None),
            capture_output=True,
            check=False,
        )
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_started_through_a_link(self) -> None:
        """The program's folder is not the kernels', also where it is the current one."""
        self.use_torch()
        folder = self.tmp / "src"
        folder.mkdir()
        (folder / PROGRAM.name).write_bytes(PROGRAM.read_bytes())
        (folder / "torch.py").write_text("raise RuntimeError('shadow')\n")
        (self.tmp / "link.py").symlink_to(folder / PROGRAM.name)
        table = self.table([self.kernel("triton_poi_fused_add_0", torch=True)])
        done = subprocess.run(
            [sys.executable, self.tmp / "link.py", "-i", table, "-o", "o.csv", "--batch", "2"],
            cwd=folder,
            env=self.merged(None),
            capture_output=True,
            check=False,
        )
        self.assertEqual(done.returncode, 0, done.stderr)


class NcuTest(Case):
    def fake(self, script: str) -> str:
        """Make a shell script that is run as ncu."""
        self.write(str(self.tmp / "good.txt"), LOG)
        path = self.tmp / "fake-ncu"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return str(path)

    def test_progress_bars_without_line_ends(self) -> None:
        """The search for the benchmark line must not take quadratic time."""
        bars = "awk 'BEGIN { for (i = 0; i < 200000; i++) printf \"\\r50%%| %d 1.2GB/s\", i }'"
        ncu = self.fake(f"{bars}; echo; cat {self.tmp}/good.txt")
        table = self.table([self.kernel("triton_poi_fused_add_0")])
        done = self.run_program("-i", table, "-o", "o.csv", "--ncu", ncu, timeout=30)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_a_log_can_be_read_again_however_long_stderr_was(self) -> None:
        ncu = self.fake(
            f"yes | head -c 9000000 >&2; cat {self.tmp}/good.txt; echo >>{self.tmp}/ran"
        )
        table = self.table([self.kernel("triton_poi_fused_add_0")])
        for _ in range(2):
            done = self.run_program("-i", table, "-o", "o.csv", "--ncu", ncu)
            self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual((self.tmp / "ran").read_text(), "\n")

    def test_a_warning_behind_the_results(self) -> None:
        """Whatever stands behind it, a result of a batch is one."""
        self.use_torch()
        stand_in = PROGRAM.parent / "tests" / "ncu"
        ncu = self.fake(f'{stand_in} "$@"; echo "    OPT   x = 3"; echo "==WARNING== a = b"')
        kernels = [self.kernel(f"triton_poi_fused_add_{n}", torch=True) for n in range(3)]
        table = self.table(kernels)
        done = self.run_program("-i", table, "-o", "o.csv", "--ncu", ncu, "--batch", "3")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(len(self.calls()), 1)
        again = self.run_program("-i", table, "-o", "o.csv", "--cached-only")
        self.assertEqual(again.returncode, 0, again.stderr)

    def test_a_kernel_that_speaks_like_ncu_on_stderr(self) -> None:
        """It fails alone: ncu's own words begin with ==ERROR==, or come before anything starts."""
        loud = self.kernel(
            "triton_poi_fused_add_0",
            main="import sys; sys.exit('Failed to create temporary file /scratch/x')",
        )
        good = self.kernel("triton_poi_fused_add_1")
        done = self.run_program("-i", self.table([loud, good]), "-o", "o.csv")
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assert_figures(self.rows(self.tmp / "o.csv")[1], good)

    def test_a_kernel_that_speaks_like_an_option_error(self) -> None:
        """ncu 2022 words those without a prefix, but then it starts nothing."""
        text = "option 'x' is not known here"
        loud = self.kernel("triton_poi_fused_add_0", main=f'import sys; sys.exit("{text}")')
        error = self.kernel(
            "triton_poi_fused_add_1",
            main="import sys; sys.exit('==ERROR== InterprocessLockFailed')",
        )
        good = self.kernel("triton_poi_fused_add_2")
        for dialect in ("2022", "2024"):
            env = {"NCU_STAND_IN_DIALECT": dialect}
            table = self.table([loud, error, good])
            done = self.run_program("-i", table, "-o", "o.csv", "--force", env=env)
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertIn(f"{loud} failed: the kernel's process failed: ", done.stderr)
            self.assert_figures(self.rows(self.tmp / "o.csv")[2], good)

    def test_the_result_of_another_kernel(self) -> None:
        """It is not this one's, also where its name begins like this one's."""
        self.use_torch()
        name = "triton_poi_fused_1"
        for other in ("triton_red_something_else", f"{name}0", f"{name}_mul"):
            launch = f"torch.stand_in.launch({other!r}, '/tmp/other_file.py')"
            for options in ((), ("--batch", "1")):
                with self.subTest(other, options=options):
                    kernel = self.kernel(name, torch=True, main=launch, in_call=launch)
                    table = self.table([kernel])
                    done = self.run_program("-i", table, "-o", "o.csv", *options)
                    self.assertEqual(done.returncode, 1, done.stderr)
                    self.assertFalse(kernel.with_suffix(".ncu").exists())

    def test_a_signature_behind_the_name(self) -> None:
        """Triton 2 appends what it specialized on."""
        self.use_torch()
        name = "triton_poi_fused_1"
        launch = f"torch.stand_in.launch('{name}_0d1d2de3', __file__)"
        kernel = self.kernel(name, torch=True, main=launch)
        done = self.run_program("-i", self.table([kernel]), "-o", "o.csv")
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_a_path_that_looks_like_a_result(self) -> None:
        self.use_torch()
        for number, options in enumerate(((), ("--batch", "2"))):
            folder = self.cache / str(number) / "a, Context 1, Stream 7"
            kernels = [
                self.kernel(f"triton_poi_{n}", torch=True, folder=folder, file=f"{n}.py")
                for n in range(2)
            ]
            table = self.table(kernels)
            for more in ((), ("--cached-only",)):
                done = self.run_program("-i", table, "-o", "o.csv", *options, *more)
                self.assertEqual(done.returncode, 0, done.stderr)
                for row, kernel in zip(self.rows(self.tmp / "o.csv"), kernels):
                    self.assert_figures(row, kernel)

    def test_a_wrapper_that_is_gone_before_ncu(self) -> None:
        """Some ncu are a shell script that does not exec; TERM ends it at once, ncu prints on."""
        self.write(
            str(self.tmp / "slow"),
            f"#!/bin/sh\ntrap 'cat {self.tmp}/good.txt; exit 0' TERM\ntouch {self.tmp}/up\n"
            "while :; do sleep 0.05; done\n",
        )
        (self.tmp / "slow").chmod(0o755)
        ncu = self.fake(f'trap "exit 0" TERM\n{self.tmp}/slow & wait')
        kernel = self.kernel("triton_poi_fused_add_0")
        child = self.start_program(
            "-i", self.table([kernel]), "-o", "o.csv", "--ncu", ncu, "--timeout", "0"
        )
        wait_for((self.tmp / "up").exists)
        begin = time.monotonic()
        child.send_signal(signal.SIGTERM)
        child.communicate(timeout=60)
        self.assertEqual(child.returncode, 143)
        self.assertLess(time.monotonic() - begin, 10)
        self.assertEqual(self.survivors(), [])
        self.assertEqual(strays(self.cache), [])

    def test_results_before_one_that_is_cut_in_its_first_line(self) -> None:
        """They are whole, and are kept."""
        self.use_torch()
        stand_in = PROGRAM.parent / "tests" / "ncu"
        cut = "sed '/kernel-2.triton/,$d'"
        line = "  kernel-2/triton_poi_fused_add_2 (4, 1, 1)x(128, 1, 1), Context 1, Str"
        first = f'[ -e {self.tmp}/again ] && exec {stand_in} "$@"; touch {self.tmp}/again'
        ncu = self.fake(f"{first}; {stand_in} \"$@\" | {cut}; printf '{line}'")
        kernels = [self.kernel(f"triton_poi_fused_add_{n}", torch=True) for n in range(3)]
        table = self.table(kernels)
        done = self.run_program("-i", table, "-o", "o.csv", "--ncu", ncu, "--batch", "3")
        self.assertEqual(done.returncode, 0, done.stderr)
        runs = [sum(word.endswith(".py") for word in call["argv"]) - 1 for call in self.calls()]
        self.assertEqual(runs, [3, 1])


class BatchTest(Case):
    def test_a_kernel_that_replaces_stdout(self) -> None:
        self.use_torch()
        rude = "import builtins, io, os, sys; sys.stdout = io.StringIO(); os.chdir('/')"
        kernels = [
            self.kernel(
                f"triton_poi_fused_add_{number}",
                torch=True,
                main=f"{rude}; builtins.print = None" if number == 0 else "",
                line="pass" if number == 0 else None,
            )
            for number in range(3)
        ]
        done = self.run_program("-i", self.table(kernels), "-o", "o.csv", "--batch", "3")
        self.assertEqual(done.returncode, 1, done.stderr)
        rows = self.rows(self.tmp / "o.csv")
        for row, kernel in zip(rows[1:], kernels[1:]):
            self.assert_figures(row, kernel)

    def test_a_kernel_that_closes_its_streams(self) -> None:
        self.use_torch()
        for rude in ("sys.stdout.close()", "os.close(1)", "os.closerange(0, 3)"):
            kernels = [
                self.kernel(
                    f"triton_poi_fused_add_{number}",
                    torch=True,
                    folder=self.tmp / rude,
                    main=f"import os, sys; {rude}" if number == 0 else "",
                )
                for number in range(3)
            ]
            done = self.run_program("-i", self.table(kernels), "-o", "o.csv", "--batch", "3")
            rows = self.rows(self.tmp / "o.csv")
            for row, kernel in zip(rows[1:], kernels[1:]):
                self.assertTrue(row["ncu_duration_us"], (rude, done.stderr))
                self.assert_figures(row, kernel)

    def test_a_kernel_that_writes_to_every_descriptor(self) -> None:
        """What is no report is not taken for one."""
        self.use_torch()
        noise = "import os\n    for fd in range(3, 64):\n        try: os.write(fd, NOISE)\n"
        noise = noise.replace("NOISE", repr(b"progress 1 C:\\x\n")) + "        except OSError: pass"
        kernels = [
            self.kernel(
                f"triton_poi_fused_add_{number}", torch=True, in_call="", main="pass", top=""
            )
            for number in range(2)
        ]
        source = Path(kernels[0]).read_text()
        Path(kernels[0]).write_text(source.replace("    pass\n", f"    {noise}\n", 1))
        done = self.run_program("-i", self.table(kernels), "-o", "o.csv", "--batch", "2")
        self.assertNotEqual(done.returncode, 2, done.stderr)
        self.assert_figures(self.rows(self.tmp / "o.csv")[1], kernels[1])

    def test_what_a_child_of_a_kernel_prints_later(self) -> None:
        """It is not the next kernel's benchmark."""
        self.use_torch()
        flag = self.tmp / "flag"
        late = (
            "import subprocess; subprocess.Popen(['sh', '-c', 'while [ ! -e "
            f"{flag} ]; do sleep 0.01; done; echo 9.999ms 1.000GB 1.00GB/s; touch {flag}2'])"
        )
        wait = (
            f"import os, time; open({str(flag)!r}, 'w').close(); "
            f"[time.sleep(0.01) for _ in iter(lambda: os.path.exists({str(flag) + '2'!r}), True)]"
        )
        kernels = [
            self.kernel("triton_poi_fused_add_0", torch=True, main=late),
            self.kernel("triton_poi_fused_add_1", torch=True, main=wait),
        ]
        done = self.run_program("-i", self.table(kernels), "-o", "o.csv", "--batch", "2")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.rows(self.tmp / "o.csv")[1]["latency_us_under_profiling"], "27.0")

    def company(self, main: str, **options: Any) -> list[dict[str, str]]:
        """Run a kernel that does something odd before four others, in one batch; their rows."""
        self.use_torch()
        kernels = [self.kernel("triton_poi_fused_add_0", torch=True, main=main, **options)]
        kernels += [self.kernel(f"triton_poi_fused_add_{n}", torch=True) for n in range(1, 5)]
        done = self.run_program("-i", self.table(kernels), "-o", "o.csv", "--batch", "5")
        self.assertIn(done.returncode, (0, 1), done.stderr)
        first, *rows = self.rows(self.tmp / "o.csv")
        for row, kernel in zip(rows, kernels[1:]):
            self.assert_figures(row, kernel)
        self.assertEqual(self.survivors(), [])
        return [first, *rows]

    def test_what_is_printed_before_a_failure(self) -> None:
        """It is none of the next kernel's words."""
        line = "5.000ms    0.004GB    1.00GB/s"
        for main in (
            f"print('{line}'); raise SystemExit(0)",
            "print(1, end=''); raise ValueError('x')",
            "print('loading', end=''); raise ValueError('x')",
            f"import sys; sys.stdout = open(1, 'w', closefd=False); print('{line}'); sys.exit(1)",
            f"import os; sys = os; os.write(1, b'{line}'); raise ValueError",
        ):
            with self.subTest(main):
                shutil.rmtree(self.cache, ignore_errors=True)
                self.company(main)

    def test_a_kernel_that_forks(self) -> None:
        """The child is not the driver."""
        self.company("if os.fork() == 0: raise ValueError('in a child')")

    def test_a_kernel_that_spoils_modules(self) -> None:
        self.company(
            "import sys; sys.modules['torch._dynamo.testing'] = None; "
            "sys.modules['torch'] = None; sys.modules.pop('csv', None)"
        )


class SayingTest(Case):
    def test_a_path_with_a_line_end_makes_one_line(self) -> None:
        folder = self.cache / "a\nb"
        folder.mkdir(parents=True)
        path = Path(folder / "k.py")
        path.write_text(kernel_source("triton_poi_fused_add_0", main="raise ValueError"))
        done = self.run_program("-i", self.table([path]), "-o", "o.csv", "-q")
        self.assertEqual(done.returncode, 1)
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)


if __name__ == "__main__":
    unittest.main()
