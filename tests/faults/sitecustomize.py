"""Faults for tests: put this folder on PYTHONPATH, and the program's file operations fail as told.

FAULTS holds rules, separated by newlines: OPERATION FAULT NTH PATH.

    OPERATION  open, read, create, write, close, rename or unlink
    FAULT      the name of an errno to raise, or of a signal that the program gets just before
    NTH        which of the operations that fit; 0 is each
    PATH       a file, or a folder with all that is below it

FAULTS_LOG is a file that gets a line "OPERATION PATH" for each operation that changes something.
Other Python programs that see the same environment, such as the kernels, are left alone.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import signal
from typing import Any, Callable

PROGRAM = b"parse_kernel_metadata_csv.py"
CHANGES = ("create", "write", "close", "rename", "unlink")

real_open = io.open
os_open, os_read, os_write, os_close = os.open, os.read, os.write, os.close
seen: dict[str, int] = {}
created: set[int] = set()  # descriptors


def path_of(file: Any) -> str:
    """The absolute path of a file that is named, or open under a number."""
    if isinstance(file, int):
        try:
            return os.readlink(f"/proc/self/fd/{file}")
        except OSError:
            return ""
    return os.path.abspath(os.fsdecode(file))


def meet(operation: str, path: str) -> None:
    """Note an operation, and do what a rule for it says."""
    log = os.environ.get("FAULTS_LOG")
    if log and operation in CHANGES:
        descriptor = os_open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        os_write(descriptor, os.fsencode(f"{operation} {path}\n"))
        os_close(descriptor)
    for rule in os.environ["FAULTS"].splitlines():
        wanted, fault, nth, where = rule.split(" ", 3)
        if wanted == operation and (path == where or path.startswith(where + "/")):
            seen[rule] = seen.get(rule, 0) + 1
            if int(nth) in (0, seen[rule]):
                act(fault, path)


def act(fault: str, path: str) -> None:
    """Raise an error, or send a signal."""
    if fault.startswith("SIG"):
        os.kill(os.getpid(), getattr(signal, fault))
    else:
        number = getattr(errno, fault)
        raise OSError(number, os.strerror(number), path)


class Stream(io.FileIO):
    """A file whose reads, writes and close can fail."""

    def __init__(self, file: Any, mode: str, **options: Any) -> None:
        super().__init__(file, mode, **options)
        self.path = path_of(self.fileno())

    def readinto(self, buffer: Any) -> int:
        meet("read", self.path)
        return super().readinto(buffer) or 0

    def read(self, size: int | None = -1) -> bytes:
        meet("read", self.path)
        return super().read(-1 if size is None else size) or b""

    def readall(self) -> bytes:
        meet("read", self.path)
        return super().readall() or b""

    def write(self, data: Any) -> int:
        meet("write", self.path)
        return super().write(data) or 0

    def close(self) -> None:
        was_open, changes = not self.closed, not self.closed and self.writable()
        super().close()
        if was_open and changes:
            meet("close", self.path)


def open_file(
    file: Any,
    mode: str = "r",
    buffering: int = -1,
    encoding: str | None = None,
    errors: str | None = None,
    newline: str | None = None,
    closefd: bool = True,
    opener: Any = None,
) -> Any:
    """Stand for open()."""
    changes = bool(set(mode) & set("wxa+"))
    if not isinstance(file, int):
        meet("create" if set(mode) & set("wxa") else "open", path_of(file))
    options = {"closefd": closefd, "opener": opener}
    raw = Stream(file, mode.replace("b", "").replace("t", ""), **options)
    if "b" in mode and buffering == 0:
        return raw
    buffered: Any = io.BufferedWriter(raw) if changes else io.BufferedReader(raw)
    return buffered if "b" in mode else io.TextIOWrapper(buffered, encoding, errors, newline)


def open_descriptor(path: Any, flags: int, *args: Any, **options: Any) -> int:
    """Stand for os.open()."""
    meet("create" if flags & os.O_CREAT else "open", path_of(path))
    descriptor = os_open(path, flags, *args, **options)
    if flags & os.O_CREAT:
        created.add(descriptor)
    return descriptor


def read_descriptor(descriptor: int, size: int) -> bytes:
    """Stand for os.read()."""
    meet("read", path_of(descriptor))
    return os_read(descriptor, size)


def write_descriptor(descriptor: int, data: Any) -> int:
    """Stand for os.write()."""
    meet("write", path_of(descriptor))
    return os_write(descriptor, data)


def close_descriptor(fd: int) -> None:
    """Stand for os.close()."""
    path = path_of(fd)
    os_close(fd)  # the number is gone even when close() fails
    if fd in created:
        created.remove(fd)
        meet("close", path)


def before(operation: str, which: int, real: Callable[..., Any]) -> Callable[..., Any]:
    """Stand for a function of os, whose argument number `which` is the path that counts."""

    def stand_in(*args: Any, **options: Any) -> Any:
        meet(operation, path_of(args[which]))
        return real(*args, **options)

    return stand_in


def install() -> None:
    """Put the stand-ins in place."""
    builtins.open = io.open = open_file
    os.open, os.read, os.write = open_descriptor, read_descriptor, write_descriptor
    os.close = close_descriptor
    os.replace, os.rename = before("rename", 1, os.replace), before("rename", 1, os.rename)
    os.unlink = os.remove = before("unlink", 0, os.unlink)


def is_program() -> bool:
    """Whether this process is the program under test."""
    with real_open("/proc/self/cmdline", "rb") as file:
        return any(word.endswith(PROGRAM) for word in file.read().split(b"\0")[:3])


if "FAULTS" in os.environ and is_program():
    install()
