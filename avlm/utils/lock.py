"""A file lock that says who holds it and that no crash can leave behind.

POSIX record locks (`fcntl.lockf`): the kernel drops them with the process, forked loader workers do not inherit them,
and NFS passes them on. They keep other processes out, not other parts of the same process, and closing any descriptor
of the file gives them up.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
from contextlib import suppress
from pathlib import Path

_CANNOT_LOCK = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
"""File systems without locks: nothing is kept out there."""


class Held(Exception):
    """Another process holds the lock; the text says which."""


def take(path: Path) -> int:
    """Lock `path`, which is made if need be, until the descriptor that is returned is closed or the process ends.

    Raises:
        Held: another process has it.
        OSError: the file cannot be opened.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        lock(descriptor)
    except Held:
        said = _said(descriptor)
        os.close(descriptor)
        raise Held(said) from None
    with suppress(OSError):  # a full disk: the lock holds all the same
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
    return descriptor


def lock(descriptor: int) -> None:
    """Lock an open file and leave its content alone. Raises `Held` when another process has it."""
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _CANNOT_LOCK:
            raise Held("another process") from None


def holder(path: Path) -> str | None:
    """What the lock file says of the other process that holds it; None when none does. Nothing is written."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        lock(descriptor)
    except Held:
        return _said(descriptor)
    finally:
        os.close(descriptor)
    return None


def _said(descriptor: int) -> str:
    return os.pread(descriptor, 200, 0).decode("utf-8", "replace").strip() or "another process"
