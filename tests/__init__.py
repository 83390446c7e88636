"""The tests. `python -m unittest` shares them out among processes: most of them wait for others."""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
import tempfile
import traceback
import unittest
import venv
from collections.abc import Iterator
from typing import Any

TASK = 2  # bytes of a test's number


def load_tests(
    loader: unittest.TestLoader, standard: unittest.TestSuite, pattern: str | None
) -> unittest.TestSuite:
    """Discover the tests of this package; unittest's own hook."""
    folder = os.path.dirname(__file__)
    suite = unittest.TestSuite(
        loader.loadTestsFromName(f"{__name__}.{name[:-3]}")
        for name in sorted(os.listdir(folder))
        if name.startswith("test_") and name.endswith(".py")
    )
    # coverage would have to follow the forks
    return suite if "coverage" in sys.modules else SharedSuite(suite)


def flatten(suite: unittest.TestSuite) -> Iterator[unittest.TestCase]:
    """Yield the single tests."""
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from flatten(test)
        else:
            yield test


class SharedSuite(unittest.TestSuite):
    """Runs its tests in a few processes more than there are processors."""

    def run(self, result: unittest.TestResult, debug: bool = False) -> unittest.TestResult:
        """Run all, with an interpreter of their own for what the tests start.

        It has no site-packages: what is installed there can take more time at each of its
        many starts than the program does.
        """
        python = sys.executable
        with tempfile.TemporaryDirectory(prefix="parse-tests-") as folder:
            venv.EnvBuilder(symlinks=True).create(folder)
            sys.executable = os.path.join(os.path.realpath(folder), "bin", "python")
            try:
                return self.share(result)
            finally:
                sys.executable = python

    def share(self, result: unittest.TestResult) -> unittest.TestResult:
        """Fork, hand out tests one by one, and tell the result what became of each."""
        tests = list(flatten(self))
        silent = {test.id(): str(test) for test in tests}
        tasks_out, tasks_in = os.pipe()
        os.write(tasks_in, b"".join(n.to_bytes(TASK, "big") for n in range(len(tests))))
        os.close(tasks_in)
        count = 2 + (os.cpu_count() or 1)  # some wait for seconds
        answers = [fork_worker(tasks_out, tests) for _ in range(count)]
        os.close(tasks_out)
        for answer in answers:
            with os.fdopen(answer, "rb") as stream, contextlib.suppress(EOFError):
                while True:
                    event = pickle.load(stream)
                    silent.pop(event[1], None)
                    replay(result, *event)
        for name, shown in silent.items():
            replay(result, "error", name, shown, "nothing was heard of it")
        return result


def fork_worker(tasks: int, tests: list[unittest.TestCase]) -> int:
    """Start a worker; return the descriptor that it writes its events to."""
    reader, writer = os.pipe()
    if os.fork():
        os.close(writer)
        return reader
    status = 1
    try:
        os.close(reader)
        recorder = Recorder(writer)
        while True:
            task = os.read(tasks, TASK)
            if not task:
                break
            unittest.TestSuite([tests[int.from_bytes(task, "big")]]).run(recorder)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


class Recorder(unittest.TestResult):
    """Sends what becomes of each test to the parent."""

    def __init__(self, writer: int) -> None:
        super().__init__()
        self.writer = writer

    def send(self, kind: str, test: unittest.TestCase, text: str = "") -> None:
        """Write one event; it is whole, for a worker has a pipe of its own."""
        event = (kind, test.id(), str(test), text)
        data = pickle.dumps(event)
        while data:
            data = data[os.write(self.writer, data) :]

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        self.send("start", test)

    def addSuccess(self, test: unittest.TestCase) -> None:
        self.send("success", test)

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        self.send("failure", test, "".join(traceback.format_exception(*err)))

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        self.send("error", test, "".join(traceback.format_exception(*err)))

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self.send("skip", test, reason)

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: Any) -> None:
        if err:
            self.send("failure", subtest, "".join(traceback.format_exception(*err)))


class Remote:
    """Stands for a test that ran elsewhere."""

    failureException = AssertionError

    def __init__(self, name: str, shown: str) -> None:
        self.name, self.shown = name, shown

    def id(self) -> str:
        return self.name

    def shortDescription(self) -> None:
        return None

    def __str__(self) -> str:
        return self.shown


class RemoteFailure(Exception):
    """Holds the traceback of a failure elsewhere as text."""


def replay(result: unittest.TestResult, kind: str, name: str, shown: str, text: str) -> None:
    """Tell a result what became of a test elsewhere."""
    test: Any = Remote(name, shown)
    error: Any = (RemoteFailure, RemoteFailure("\n" + text), None)
    if kind == "start":
        result.startTest(test)
    elif kind == "success":
        result.addSuccess(test)
    elif kind == "skip":
        result.addSkip(test, text)
    elif kind == "error":
        result.addError(test, error)
    else:
        result.addFailure(test, error)
