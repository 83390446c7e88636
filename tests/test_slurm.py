"""The README's Slurm script on a real Slurm: an array of four, a requeue, the merge.

Run by `tests/slurm/run python -m unittest tests.test_slurm`; skipped without that, so that nothing
is ever submitted to a cluster where people work.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Callable

from tests.support import PROGRAM, Case

README = PROGRAM.with_name("README.md")
CLUSTER = "parse-kernel-metadata-csv-test"  # as in tests/slurm/run
SHARDS = 4
KERNELS = 40
GATE = 21  # the sixth kernel of shard 2: it runs until the test opens the gate
FAILS = 18  # a kernel of shard 3
WAIT_AT_GATE = """\
import pathlib, time
give_up = time.monotonic() + 60
while not pathlib.Path({open!r}).exists() and time.monotonic() < give_up:
    time.sleep(0.05)
"""
ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"}


def why_not() -> str | None:
    """Say why this cannot run here, or return None."""
    if shutil.which("sbatch") is None:
        return "no sbatch: Slurm is not installed (Debian: slurm-wlm and munge)"
    command = ["scontrol", "show", "config"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return "no Slurm controller answers"
    if said.returncode != 0:
        return "no Slurm controller answers (one for this test: tests/slurm/run COMMAND)"
    if not re.search(rf"^ClusterName\s*=\s*{CLUSTER}$", said.stdout, re.MULTILINE):
        return "the Slurm that answers is not the one of tests/slurm/run"
    return None


def readme_script() -> str:
    """Return the README's submit.sh: the first bash block that submits a dependent job."""
    text = README.read_text(encoding="utf-8")
    blocks = re.finditer(r"^```bash\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return next(block[1] for block in blocks if "--dependency=" in block[1])


def edited(script: str, **values: str) -> str:
    """Set the variables at the script's top, as its user would."""
    for name, value in values.items():
        line = rf"^export {name}=.*$"
        script, count = re.subn(line, f"export {name}={value}", script, flags=re.MULTILINE)
        if count != 1:
            raise AssertionError(f"{name} is set in {count} places of the script")
    return script


class Slurm(Case):
    """A folder with the program, a table, kernels and the script, as on a cluster's storage."""

    def setUp(self) -> None:
        reason = why_not()
        if reason is not None:
            self.skipTest(reason)
        super().setUp()
        # A `python` that is the one which runs this test; not a symbolic link, since a virtual
        # environment is found by its interpreter's folder.
        python = self.write("bin/python", f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
        python.chmod(0o755)
        self.environment["PATH"] = f"{python.parent}:{self.environment['PATH']}"
        if "SLURM_CONF" in os.environ:
            self.environment["SLURM_CONF"] = os.environ["SLURM_CONF"]
        (self.tmp / PROGRAM.name).symlink_to(PROGRAM)
        self.gate_opens = self.tmp / "open"
        special = {GATE: WAIT_AT_GATE.format(open=str(self.gate_opens)), FAILS: "sys.exit(3)"}
        self.kernels = [
            self.kernel(f"triton_poi_fused_add_{number}", main=special.get(number, ""))
            for number in range(KERNELS)
        ]
        self.gate = self.kernels[GATE]
        self.table(self.kernels, "in.csv")

    # Slurm

    def call(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run one command in the folder."""
        return subprocess.run(
            command,
            cwd=self.tmp,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def jobs(self) -> dict[str, dict[str, str]]:
        """Return the jobs of this folder: the array's tasks by their number, and `merge`."""
        found = {}
        for line in self.call("scontrol", "--oneliner", "show", "jobs").stdout.splitlines():
            job = dict(re.findall(r"(\w+)=(\S*)", line))
            if job.get("WorkDir") == str(self.tmp):
                found[job.get("ArrayTaskId", "merge")] = job
        return found

    def state(self, name: str) -> str:
        """Return the state of one job, empty while there is no such job."""
        return self.jobs().get(name, {}).get("JobState", "")

    def all_ended(self) -> bool:
        """Say whether every job of this folder is over."""
        return all(job["JobState"] in ENDED for job in self.jobs().values())

    def wait(self, what: str, seen: Callable[[], bool]) -> None:
        """Poll until something is seen; fail in the end, or when no job is left to bring it."""
        deadline = time.monotonic() + 60
        while not seen():
            last = self.all_ended() or time.monotonic() > deadline
            if last and not seen():
                self.fail(f"never seen: {what}\n{self.story()}")
            time.sleep(0.1)

    def story(self) -> str:
        """Return the state of each job and what it printed, for a failure's message."""
        states = [f"{name}: {job['JobState']}" for name, job in self.jobs().items()]
        logs = [f"-- {path.name}\n{path.read_text()}" for path in self.tmp.glob("ncu-*.log")]
        return "\n".join(states + logs)

    def cancel(self) -> None:
        """End the jobs that a failed test leaves."""
        left = [job["JobId"] for job in self.jobs().values() if job["JobState"] not in ENDED]
        if left:
            self.call("scancel", *left)
            self.wait("the jobs are cancelled", self.all_ended)

    # The cache

    def stored(self) -> dict[Path, tuple[int, int]]:
        """Return the stored logs, with what tells whether one has been replaced since."""
        stats = {path: path.stat() for path in self.cache.glob("*/*.ncu")}
        return {path: (stat.st_ino, stat.st_mtime_ns) for path, stat in stats.items()}

    def test_array_with_a_requeue_then_merge(self) -> None:
        """Four shards, one of them requeued half-way, merge to what one run gives."""
        script = edited(readme_script(), SHARDS=str(SHARDS), IN="in.csv", OUT="merged.csv")
        self.write("submit.sh", script)
        self.addCleanup(self.cancel)
        submitted = self.call("bash", "submit.sh")
        self.assertEqual((submitted.returncode, submitted.stderr), (0, ""))

        self.wait("task 2 is at the gate", lambda: bool(self.calls_for(self.gate)))
        array = self.jobs()["2"]["ArrayJobId"]
        requeued = self.call("scontrol", "requeue", f"{array}_2")
        self.assertEqual((requeued.returncode, requeued.stderr), (0, ""))
        self.wait("task 2 is back in the queue", lambda: self.state("2") == "PENDING")
        before = self.stored()
        shard = [kernel.with_suffix(".ncu") for kernel in self.kernels[1::SHARDS]]
        self.assertEqual([log for log in shard if log in before], shard[: GATE // SHARDS])
        self.assertEqual(self.state("merge"), "PENDING")

        self.gate_opens.touch()
        self.wait("all jobs are over", self.all_ended)
        ends = {name: (job["JobState"], job["Restarts"]) for name, job in self.jobs().items()}
        expected_ends = {
            "1": ("COMPLETED", "0"),
            "2": ("COMPLETED", "1"),
            "3": ("FAILED", "0"),  # it has the kernel that fails
            "4": ("COMPLETED", "0"),
            "merge": ("FAILED", "0"),
        }
        self.assertEqual(ends, expected_ends, self.story())
        self.assertEqual(self.jobs()["merge"]["ExitCode"], "1:0", self.story())

        after = self.stored()
        self.assertEqual({log: after[log] for log in before}, before)
        profiled = [len(self.calls_for(kernel)) for kernel in self.kernels]
        self.assertEqual(profiled, [1 + (number == GATE) for number in range(KERNELS)])
        self.assertEqual(self.survivors(), [])

        for log in after:
            log.unlink()
        alone = self.run_program("-i", "in.csv", "-o", "alone.csv", "-q")
        self.assertEqual(alone.returncode, 1, alone.stderr)
        self.assertEqual(len(self.stored()), KERNELS - 1)
        merged = (self.tmp / "merged.csv").read_bytes()
        self.assertEqual(merged, (self.tmp / "alone.csv").read_bytes())
        self.assertEqual(merged.count(b"\n"), KERNELS + 1)
