"""The store's directory: making it, so that it survives a power cut, and owning it, so that only one process writes in
it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gc
import os
import time
import weakref
from pathlib import Path

from carm.memory.errors import StoreError, StoreLocked

_ORPHAN_SECONDS = 10.0  # how long the helper of a process that was killed may take to finish its last write


def make(directory: Path) -> None:
    """Create `directory` for the owner only, with its parents, unless it is there."""
    missing = []
    path = directory.absolute()
    while not path.exists():
        missing.append(path)
        path = path.parent
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    for created in reversed(missing):
        sync(created.parent)


def sync(directory: Path) -> None:
    """Make the names in `directory` durable: syncing a new file does not make its name survive a power cut."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):  # file systems that cannot, such as some network ones
            raise
    finally:
        os.close(fd)


class Lock:
    """The right to write in `directory`. The kernel gives it back when the last process that has `fd` open ends."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "lock"
        self.fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        _LOCKS.add(self)
        try:
            self._take(time.monotonic() + _ORPHAN_SECONDS)
        except BaseException:
            self.close()
            raise
        # One write of fixed length, never a truncation: whoever looks sees one number or the other.
        os.pwrite(self.fd, f"{os.getpid():<20}\n".encode(), 0)

    def _take(self, until: float) -> None:
        collected = False
        while True:
            try:
                fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except OSError as error:
                directory = self.path.parent
                if error.errno not in (errno.EAGAIN, errno.EACCES):
                    raise StoreError(
                        f"{directory} cannot be locked: {error.strerror}; use another file system"
                    ) from error
                owner = self.path.read_text().strip()
                if owner == str(os.getpid()) and not collected:
                    gc.collect()  # perhaps it belongs to a memory that nobody has any more, as in a notebook
                    collected = True
                    continue
                # A process that was killed may have left a helper behind, which still finishes its last write.
                if not _alive(owner) and time.monotonic() < until:
                    time.sleep(0.02)
                    continue
                raise StoreLocked(
                    f"{directory} is open for writing in process {owner or 'unknown'}; close it there, or use another "
                    "directory"
                ) from error

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def _alive(pid: str) -> bool:
    if not pid.isdigit():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


# A forked child has copies of the descriptors; as long as one is open the lock is held, even after the parent's death.
_LOCKS: weakref.WeakSet[Lock] = weakref.WeakSet()


def _after_fork() -> None:
    for lock in list(_LOCKS):
        with contextlib.suppress(OSError):
            lock.close()


os.register_at_fork(after_in_child=_after_fork)
