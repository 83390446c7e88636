"""--gpus: one worker for each GPU, never two kernels on one."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.runs import NAME, RunCase
from tests.support import strays, wait_for

# Waits until so many kernels have got this far: as many must be running at once.
MEET = """\
import pathlib, time
place = pathlib.Path({place!r})
(place / {name!r}).touch()
give_up = time.monotonic() + 60
while len(list(place.iterdir())) < {count}:
    assert time.monotonic() < give_up, "nobody else came"
    time.sleep(0.01)
"""
WAIT = """\
import pathlib, time
pathlib.Path({here!r}).touch()
time.sleep(60)
"""


SMI = """\
GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-one)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-two)
  MIG 3g.20gb     Device  0: (UUID: MIG-five)
  MIG 1g.5gb      Device  1: (UUID: MIG-six)
GPU 2: NVIDIA A100-SXM4-40GB (UUID: GPU-three)
  MIG 1g.5gb Device 0: (UUID: MIG-GPU-four/1/0)
"""


class GpuCase(RunCase):
    """Which GPU each kernel was given, and when it ran there."""

    def meeting(self, total: int, at_once: int, **options: Any) -> list[Path]:
        """Kernels of which each waits until as many as there are GPUs run at once."""
        place = self.tmp / "meet"
        place.mkdir(exist_ok=True)
        found = []
        for number in range(total):
            count = min(total, (number // at_once + 1) * at_once)
            name = f"{NAME}{number}"
            main = MEET.format(place=str(place), name=name, count=count)
            found.append(self.kernel(name, main=main, **options))
        return found

    def on(self) -> list[str | None]:
        """CUDA_VISIBLE_DEVICES of each run."""
        return [call["cuda"] for call in self.calls()]

    def assert_never_two_at_once(self) -> None:
        """No two runs on one GPU overlap."""
        runs: dict[str, list[tuple[float, float]]] = {}
        for call in self.calls():
            runs.setdefault(str(call["cuda"]), []).append((call["started"], call["ended"]))
        for gpu, spans in runs.items():
            spans.sort()
            for (_, end), (start, _) in zip(spans, spans[1:]):
                self.assertLessEqual(end, start, gpu)

    def smi(self, code: str) -> str:
        """Put a nvidia-smi on PATH; returns that PATH."""
        path = self.write("smi/nvidia-smi", f"#!/bin/sh\n{code}\n")
        path.chmod(0o755)
        return f"{path.parent}:{self.environment['PATH']}"


class ChoiceTest(GpuCase):
    """What --gpus means."""

    def assert_refused(self, said: str, *options: object, **env: str | None) -> None:
        """One line, exit 2, before anything runs."""
        self.log.unlink(missing_ok=True)
        kernels = self.kernels(1)
        self.out.unlink(missing_ok=True)
        done = self.go(kernels, *options, status=2, **env)
        self.assertRegex(done.stderr, said)
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        self.assertFalse(self.log.exists() or self.out.exists())

    def test_without_it_the_environment_is_untouched(self) -> None:
        kernels = self.kernels(1)
        for value in (None, "2,3", ""):
            self.log.unlink(missing_ok=True)
            self.go(kernels, "--force", CUDA_VISIBLE_DEVICES=value)
            self.assertEqual(self.on(), [value])

    def test_numbers_and_uuids(self) -> None:
        place = self.tmp / "meet"
        for spec, inherited, wanted in (
            ("0,1", None, ["0", "1"]),
            ("1,0", "5,7,6", ["5", "7"]),
            ("2", "GPU-aa,GPU-bb,GPU-cc", ["GPU-cc"]),
            ("GPU-aa,MIG-bb", "5", ["GPU-aa", "MIG-bb"]),
            ("0,GPU-aa", "3", ["3", "GPU-aa"]),
        ):
            with self.subTest(spec=spec, inherited=inherited):
                self.log.unlink(missing_ok=True)
                for path in place.glob("*"):
                    path.unlink()
                kernels = self.meeting(len(wanted), len(wanted))
                options = ("--force", "--gpus", spec)
                self.go(kernels, *options, CUDA_VISIBLE_DEVICES=inherited)
                self.assertEqual(sorted(map(str, self.on())), wanted)

    def test_all_of_the_inherited(self) -> None:
        kernels = self.meeting(3, 3)
        self.go(kernels, "--gpus", "all", CUDA_VISIBLE_DEVICES="4,GPU-x,6")
        self.assertEqual(sorted(map(str, self.on())), ["4", "6", "GPU-x"])

    def test_all_that_nvidia_smi_lists(self) -> None:
        """Of a GPU that is split into instances, these."""
        path = self.smi(f'[ "$*" = -L ] || exit 9\ncat <<EOF\n{SMI}EOF')
        wanted = ["GPU-one", "MIG-GPU-four/1/0", "MIG-five", "MIG-six"]
        kernels = self.meeting(4, 4)
        self.go(kernels, "--gpus", "all", PATH=path)
        self.assertEqual(sorted(map(str, self.on())), wanted)

    def test_all_without_nvidia_smi(self) -> None:
        empty = self.tmp / "empty"
        empty.mkdir()
        ncu = ("--ncu", self.environment["PATH"].split(":")[0] + "/ncu")
        self.assert_refused("nvidia-smi", "--gpus", "all", *ncu, PATH=str(empty))

    def test_all_where_nvidia_smi_fails(self) -> None:
        for code in ("exit 9", "echo 'No devices were found'; exit 6", ""):
            self.assert_refused("(?i)gpu", "--gpus", "all", PATH=self.smi(code))

    def test_all_where_nvidia_smi_says_no_uuid(self) -> None:
        self.assert_refused("(?i)gpu", "--gpus", "all", PATH=self.smi("echo No devices were found"))

    def test_refused(self) -> None:
        for spec, inherited in (
            ("0,0", None),
            ("1,01", None),
            ("0,GPU-a", "GPU-a,GPU-b"),
            ("GPU-a,GPU-a", None),
            ("2", "0,1"),
            ("0", ""),
            ("all", ""),
            ("all", "3,3"),
            ("1", "0,-1,2"),
            ("-1", None),
            ("x", None),
            ("0,", None),
            (",", None),
            ("0 1", None),
        ):
            with self.subTest(spec=spec, inherited=inherited):
                self.assert_refused("(?i)gpu", f"--gpus={spec}", CUDA_VISIBLE_DEVICES=inherited)

    def test_empty(self) -> None:
        """As of `--gpus "$UNSET"`: not the same as no --gpus."""
        self.assert_refused("(?i)gpu", "--gpus=")

    def test_dry_run_shows_the_gpu(self) -> None:
        table = self.table(self.kernels(2))
        done = self.run_program("-i", table, "-o", self.out, "--gpus", "3,5", "--dry-run")
        lines = done.stdout.splitlines()
        self.assertEqual(len(lines), 2, done.stderr)
        self.assertIn("CUDA_VISIBLE_DEVICES=3 ", lines[0])
        self.assertIn("CUDA_VISIBLE_DEVICES=5 ", lines[1])


class WorkersTest(GpuCase):
    """Several kernels at once, one on each GPU."""

    def test_full_use_of_all(self) -> None:
        kernels = self.meeting(8, 4)
        self.go(kernels, "--gpus", "0,1,2,3")
        self.assert_output(kernels)
        self.assertEqual(set(self.on()), {"0", "1", "2", "3"})
        self.assert_never_two_at_once()

    def test_more_gpus_than_kernels(self) -> None:
        kernels = self.meeting(2, 2)
        self.go(kernels, "--gpus", "0,1,2,3,4,5,6,7")
        self.assert_output(kernels)

    def test_same_as_with_one_worker(self) -> None:
        kernels = self.kernels(7)
        kernels[2] = self.kernel(f"{NAME}2", main="raise ValueError('boom')")
        kernels[5] = self.kernel(f"{NAME}5", directives="crash")
        rows = [*kernels, kernels[0], kernels[6]]
        said, written = [], []
        for options in ((), ("--gpus", "0,1,2")):
            done = self.go(rows, *options, status=1)
            self.assert_output(rows, [kernels[2], kernels[5]])
            written.append(self.out.read_bytes())
            summary = done.stderr[done.stderr.index("rows ") :].splitlines()
            said.append([line for line in summary if not line.startswith("time")])
            self.assertEqual(done.stderr.count(".py failed: "), 2)
            for path in self.cache.rglob("*.ncu*"):
                path.unlink()
        self.assertEqual(written[0], written[1])
        self.assertEqual(said[0], said[1])

    def both_ways(
        self, devices: Mapping[int, int], inherited: str
    ) -> Iterator[tuple[list[Path], list[dict[str, Any]]]]:
        """Five kernels, some of another device, on two GPUs, plainly and in batches; the calls."""
        self.use_torch()
        kernels = [
            self.kernel(f"{NAME}{number}", torch=True, device=devices.get(number, 0))
            for number in range(5)
        ]
        for options in ((), ("--batch", "2", "--quick")):
            with self.subTest(options):
                self.log.unlink(missing_ok=True)
                command = ("--gpus", "0,1", "--force", *options)
                self.go(kernels, *command, CUDA_VISIBLE_DEVICES=inherited)
                self.assert_output(kernels)
                yield kernels, self.calls()

    def test_kernels_of_another_device(self) -> None:
        """A kernel that names cuda:N is given its worker's GPU at that index, behind others."""
        for kernels, calls in self.both_ways({1: 1, 3: 3}, "7,6,5,4,3"):
            seen = []
            for kernel in kernels:
                [call] = [call for call in calls if str(kernel) in call["argv"]]
                seen.append(call["cuda"])
            self.assertLessEqual({seen[0], seen[2], seen[4]}, {"7", "6"})
            self.assertIn(seen[1], ("6,7", "7,6"))
            self.assertIn(seen[3], ("6,5,4,7", "7,5,4,6"))

    def test_a_device_that_no_worker_can_give(self) -> None:
        """Such kernels come last, one at a time, and see the devices that we were given."""
        for kernels, calls in self.both_ways({0: 2, 3: 2}, "7,6"):
            whole = [call for call in calls if call["cuda"] == "7,6"]
            self.assertLessEqual({call["cuda"] for call in calls}, {"7", "6", "7,6"})
            given = {word for call in whole for word in call["argv"]}
            self.assertEqual(given & set(map(str, kernels)), {str(kernels[0]), str(kernels[3])})
            for one, other in itertools.product(whole, calls):
                if one is not other:
                    apart = one["ended"] <= other["started"] or other["ended"] <= one["started"]
                    self.assertTrue(apart, "beside another")

    def test_batches(self) -> None:
        self.use_torch()
        kernels = self.meeting(8, 8, torch=True)
        # Each meets only those of its own batch and the other's: both batches run at once.
        for number, kernel in enumerate(kernels):
            text = kernel.read_text()
            kernel.write_text(text.replace("< 8:", f"< {2 if number % 4 == 0 else 1}:"))
        self.go(kernels, "--gpus", "0,1", "--batch", "4", "--quick")
        self.assert_output(kernels)
        self.assertEqual(set(self.on()), {"0", "1"})
        self.assert_never_two_at_once()

    def test_a_large_batch_leaves_no_gpu_idle(self) -> None:
        """Fewer kernels than one batch could hold are still dealt out among the GPUs."""
        self.use_torch()
        place = self.tmp / "meet"
        place.mkdir()
        mains = [MEET.format(place=str(place), name=str(n), count=3) for n in range(6)]
        kernels = [self.kernel(f"{NAME}{n}", main=main, torch=True) for n, main in enumerate(mains)]
        self.go(kernels, "--gpus", "0,1,2", "--batch", "64", "--quick")
        self.assert_output(kernels)
        self.assertEqual(set(self.on()), {"0", "1", "2"})


class EndTest(GpuCase):
    """What ends the run ends all workers."""

    def waiting(self, count: int) -> tuple[list[Path], list[Path]]:
        """Kernels that wait for ever, and the files that they write before."""
        here = [self.tmp / f"here{number}" for number in range(count)]
        mains = [WAIT.format(here=str(path)) for path in here]
        return [self.kernel(f"{NAME}wait{n}", main=main) for n, main in enumerate(mains)], here

    def test_signals(self) -> None:
        kernels, here = self.waiting(3)
        table = self.table([*kernels, *self.kernels(3)], "in.csv")
        for number, status in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
            with self.subTest(number=number):
                self.out.write_text("as it was")
                process = self.start_program("-i", table, "-o", self.out, "--gpus", "0,1,2")
                wait_for(lambda: all(path.exists() for path in here))
                process.send_signal(number)
                _, said = process.communicate(timeout=60)
                self.assertEqual(process.returncode, status, said)
                self.assertEqual((strays(self.cache), self.survivors()), ([], []))
                self.assertEqual(self.out.read_text(), "as it was")
                self.assertIn("0 of 6", said)
                self.assertEqual(len(self.calls()), 3)
                self.log.unlink()
                for path in here:
                    path.unlink()

    def test_fatal(self) -> None:
        """One worker meets what every kernel would; the other's kernel would go on for ever."""
        (endless,), (here,) = self.waiting(1)
        wait = (
            f"import pathlib, time\nend = time.monotonic() + 60\n"
            f"while not pathlib.Path({str(here)!r}).exists() and time.monotonic() < end:\n"
            "    time.sleep(0.01)"
        )
        kernels = [endless, self.kernel(f"{NAME}fatal", main=wait, directives="fail=permission")]
        self.out.write_text("as it was")
        done = self.go([*kernels, *self.kernels(4)], "--gpus", "0,1", status=2)
        self.assertIn("NVreg_RestrictProfilingToAdminUsers", done.stderr)
        self.assertEqual(done.stderr.count("remedy"), 1)
        self.assertEqual(self.out.read_text(), "as it was")
        self.assertEqual(len(self.calls()), 2)
