"""The swap worker: carries out orders, decides nothing.

Orders go in, reports come out. A read order names extents and the free blocks of the RAM tier that they are copied to;
a write order names records and the commit that makes them count. The worker keeps several reads under way and writes in
between. It holds no state that matters: if it dies, another is started, reads that were lost are dropped, and the write
is sent again.

The same `serve` runs in a thread, in a helper process, or (`SyncWorker`) in the caller.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from queue import Empty, SimpleQueue
from socket import socketpair
from typing import Any

import numpy as np
from numpy.typing import NDArray

from carm.memory import extentfile, native
from carm.memory.aio import DEPTH, Engine, open_engine
from carm.memory.catalogue import Catalogue
from carm.memory.extentfile import ExtentFile
from carm.memory.interrupt import uninterrupted
from carm.memory.move import move
from carm.memory.orders import (
    Compacted,
    CompactOrder,
    Failure,
    Order,
    ReadDone,
    ReadOrder,
    Report,
    WriteDone,
    WriteOrder,
    compact,
    joined,
    parts,
    perform,
)
from carm.memory.pipe import Pipe
from carm.memory.ram import Layout
from carm.memory.record import Bytes
from carm.memory.shared import SharedBlock
from carm.memory.throttle import Throttle

log = logging.getLogger("carm")
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Plan:
    """What a worker needs to know to work: picklable, so that it can start in another process."""

    directory: Path
    engine: str
    layout: Layout
    throttle: Throttle | None
    lock: int = -1  # the store's lock: a process that writes keeps it, so that nobody opens the store before it is done


class Executor:
    """Carries out single orders."""

    def __init__(self, plan: Plan, arena: Bytes) -> None:
        self.plan = plan
        self.arena = arena
        self._block = arena.shape[1]
        self._sizes = np.full(_RECORDS, self._block, np.int64)
        self.throttle = plan.throttle
        self._engine: Engine | None = None
        self._file: ExtentFile | None = None
        self._catalogue: Catalogue | None = None

    def begin(self, order: ReadOrder) -> Any:
        """First half of a read."""
        if self._engine is None:
            self._engine = self._open_engine()
        until = 0.0
        if self.throttle:
            until = self.throttle.charge(
                len(order.sums) * self._block if order.sizes is None else int(order.sizes.sum())
            )
        if order.sizes is None:
            return until, self._engine.begin_rows(order.offsets, self._block)
        return until, self._engine.begin(order.offsets, order.sizes)

    def at_once(self, order: ReadOrder) -> int:
        """How many records like these are best read at once."""
        size = self._block if order.sizes is None else int(order.sizes.mean())
        return min(_RECORDS, _BYTES // max(size, 1))

    def parts(self, order: ReadOrder) -> list[ReadOrder]:
        """A read in pieces that need no more memory than is good for it."""
        return parts(order, self._block, 4 * _BYTES)

    def read(self, order: ReadOrder) -> NDArray[np.bool_]:
        """All of a read, several of its pieces at a time. Returns which records are whole."""
        under_way: deque[tuple[ReadOrder, Any]] = deque()
        ok: list[NDArray[np.bool_]] = []
        for part in self.parts(order):
            if len(under_way) == DEPTH:
                ok.append(self.finish(*under_way.popleft()))
            under_way.append((part, self.begin(part)))
        ok += [self.finish(*one) for one in under_way]
        return np.concatenate(ok)

    def _open_engine(self) -> Engine:
        path = self.plan.directory / extentfile.NAME
        try:
            engine = open_engine(self.plan.engine, path)
            engine.prepare()
        except (ValueError, OSError) as error:
            # It worked when it was chosen; by now the kernel may have no AIO contexts left (fs.aio-max-nr).
            log.warning("%s; reading with preadv instead", error)
            engine = open_engine("preadv", path)
        return engine

    def finish(self, order: ReadOrder, ticket: Any) -> NDArray[np.bool_]:
        """Second half: the records are in their blocks. Returns which are whole."""
        assert self._engine is not None
        until, inner = ticket
        in_place = native.library is not None  # numpy's ways are faster out of memory of one piece
        if order.sizes is None:
            data, starts, ok = self._engine.finish_rows(inner, in_place=in_place)
            if len(ok) > len(self._sizes):
                self._sizes = np.full(len(ok), self._block, np.int64)
            sizes = self._sizes[: len(ok)]
        else:
            data, starts, ok = self._engine.finish(inner, in_place=in_place)
            sizes = order.sizes
        ok = move(self.arena, order.blocks, data, starts, sizes, order.sums, ok)
        if until:
            Throttle.wait(until)
        return ok

    def write(self, order: WriteOrder | CompactOrder) -> Report:
        if self._catalogue is None:
            self._file = ExtentFile(self.plan.directory, direct=self.plan.engine == "aio")
            self._catalogue = Catalogue(self.plan.directory)
        assert self._file is not None
        if isinstance(order, CompactOrder):
            compact(self._catalogue, order.floor)
            return Compacted(order.floor)
        until = self.throttle.charge(order.records.nbytes) if self.throttle else 0.0
        try:
            perform(order, self._file, self._catalogue)
        except OSError as error:
            if error.errno not in extentfile.FULL:
                raise
            return WriteDone(order.seq, (error.errno, str(error)))
        if until:
            Throttle.wait(until)
        return WriteDone(order.seq, None)

    def close(self) -> None:
        for part in (self._engine, self._file, self._catalogue):
            if part is not None:
                part.close()
        self._engine = self._file = self._catalogue = None


_STOP = None
_OUTBOX = 1 << 23  # bytes for new samples on their way to a helper process; more go through its socket
_RECORDS, _BYTES = 256, 1 << 20  # of a read: what the kernel takes in one go, and what stays in a core's cache


def serve(get: Callable[[bool], Any], put: Callable[[Report], None], executor: Executor) -> None:
    """Work until told to stop. `get(block)` gives the next order, or raises Empty if it may not block.

    Small reads that wait behind each other are made one. In a thread that matters to training more than to swapping:
    the less of the interpreter the worker uses, the less it takes away.
    """
    under_way: deque[tuple[_Reading, ReadOrder, Any]] = deque()
    waiting: deque[tuple[_Reading, ReadOrder]] = deque()  # parts of a read that have not begun
    ahead: deque[Any] = deque()  # taken from the queue while looking for more to read
    stopping = False
    try:
        while True:
            while len(under_way) < DEPTH:
                if waiting:
                    reading, part = waiting.popleft()
                    under_way.append((reading, part, executor.begin(part)))
                    continue
                if stopping:
                    break
                try:
                    order = ahead.popleft() if ahead else get(not under_way)
                except Empty:
                    break
                if order is _STOP:
                    stopping = True
                elif isinstance(order, ReadOrder):
                    orders = _with_more(order, get, ahead, executor.at_once(order))
                    reading = _Reading(orders)
                    waiting.extend((reading, part) for part in executor.parts(joined(orders)))
                else:
                    put(executor.write(order))
            if under_way:
                reading, part, ticket = under_way.popleft()
                for report in reading.add(executor.finish(part, ticket)):
                    put(report)
            elif stopping:
                return
    except Exception:
        put(Failure(traceback.format_exc()))
    finally:
        executor.close()


class _Reading:
    """Orders that are read together, in one piece or in several that follow each other."""

    def __init__(self, orders: list[ReadOrder]) -> None:
        self.orders = orders
        self._left = sum(len(order.sums) for order in orders)
        self._ok: list[NDArray[np.bool_]] = []

    def add(self, ok: NDArray[np.bool_]) -> list[Report]:
        """Another piece has been read; the reports, if it was the last."""
        self._ok.append(ok)
        self._left -= len(ok)
        if self._left:
            return []
        whole = ok if len(self._ok) == 1 else np.concatenate(self._ok)
        reports: list[Report] = []
        at = 0
        for order in self.orders:
            reports.append(ReadDone(order.ticket, whole[at : at + len(order.sums)]))
            at += len(order.sums)
        return reports


def _with_more(order: ReadOrder, get: Callable[[bool], Any], ahead: deque[Any], most: int) -> list[ReadOrder]:
    """An order and those that wait behind it, up to so many records. What comes next and is none goes `ahead`."""
    orders, records = [order], len(order.sums)
    while records < most and not ahead:
        try:
            following = get(False)
        except Empty:
            break
        if isinstance(following, ReadOrder) and records + len(following.sums) <= most:
            orders.append(following)
            records += len(following.sums)
        else:
            ahead.append(following)
    return orders


class Worker(ABC):
    """The training process's end of a swap worker.

    Reports are kept in `inbox` until they are taken out: Ctrl-C may come while they are received, and one that got lost
    would be waited for in vain.
    """

    kind: str

    def __init__(self) -> None:
        self.inbox: deque[Report] = deque()

    @abstractmethod
    def send(self, order: Order) -> None: ...

    @abstractmethod
    def receive(self, timeout: float = 0.0) -> deque[Report]:
        """The inbox, with what has come in; with a timeout, waits that long for a first report."""

    @property
    @abstractmethod
    def alive(self) -> bool: ...

    @property
    def is_here(self) -> bool:
        """Whether the caller is the worker itself: the garbage collector runs in any thread."""
        return False

    @abstractmethod
    def close(self) -> None:
        """Finish what was sent, and stop. May be called again."""


class SyncWorker(Worker):
    """Carries orders out at once, in the caller: exactly repeatable, and as slow as the device."""

    kind = "sync"

    def __init__(self, plan: Plan, shared: SharedBlock) -> None:
        super().__init__()
        self._executor = Executor(plan, plan.layout.arrays(shared).arena)

    def send(self, order: Order) -> None:
        try:
            if isinstance(order, ReadOrder):
                self.inbox.append(ReadDone(order.ticket, self._executor.read(order)))
            else:
                self.inbox.append(self._executor.write(order))
        except Exception:
            self.inbox.append(Failure(traceback.format_exc()))

    def receive(self, timeout: float = 0.0) -> deque[Report]:
        return self.inbox

    @property
    def alive(self) -> bool:
        return True

    def close(self) -> None:
        self._executor.close()


class ThreadWorker(Worker):
    """A daemon thread."""

    kind = "thread"

    def __init__(self, plan: Plan, shared: SharedBlock) -> None:
        super().__init__()
        self._orders: SimpleQueue[Any] = SimpleQueue()
        self._reports: SimpleQueue[Report] = SimpleQueue()
        executor = Executor(plan, plan.layout.arrays(shared).arena)
        self._thread = threading.Thread(
            target=serve, args=(self._orders.get, self._reports.put, executor), name="carm-swap", daemon=True
        )
        self._thread.start()

    def send(self, order: Order) -> None:
        self._orders.put(order)

    def receive(self, timeout: float = 0.0) -> deque[Report]:
        inbox, reports = self.inbox, self._reports
        try:  # from queue to inbox without a step of Python in between, where Ctrl-C could lose a report
            if timeout and not inbox:
                inbox.extend(islice(iter(partial(reports.get, True, timeout), None), 1))
            if come := reports.qsize():  # as many as there are: finding the queue empty is an exception, and slow
                inbox.extend(islice(iter(reports.get_nowait, None), come))
        except Empty:
            pass
        return inbox

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def is_here(self) -> bool:
        return self._thread is threading.current_thread()

    def close(self) -> None:
        self._orders.put(_STOP)
        if not self.is_here:
            self._thread.join()


class ProcessWorker(Worker):
    """A helper process, started afresh (not forked): it imports numpy, but neither torch nor the user's main module."""

    kind = "process"

    def __init__(self, plan: Plan, shared: SharedBlock) -> None:
        super().__init__()
        ours, theirs = socketpair()
        # For new samples on their way: at most one write is under way, so what a write has put there stays until it is
        # done. Memory is taken only for what is used.
        outbox: SharedBlock | None = None
        with contextlib.suppress(OSError):  # where a process may have no file that large, the socket will do
            outbox = SharedBlock(_OUTBOX)
        outbox_fd = -1 if outbox is None else outbox.fd
        bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK) if hasattr(os, "eventfd") else -1
        root = str(Path(__file__).resolve().parents[2])
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))}
        # Without the current directory, which may have a module with the name of one that is needed.
        command = (
            "import sys; sys.path[:] = filter(None, sys.path); "
            f"from carm.memory.swap import helper; helper({theirs.fileno()}, {shared.fd}, {outbox_fd}, {bell})"
        )
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-c", command],
                pass_fds=tuple(fd for fd in (theirs.fileno(), shared.fd, outbox_fd, bell, plan.lock) if fd >= 0),
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the training process, which then tells us to stop
            )
        except BaseException:
            if bell >= 0:
                os.close(bell)
            raise
        theirs.close()
        self._pipe = Pipe(ours.detach(), outbox=outbox, rings=bell)
        self._broken = False
        # The pipe may be full while the helper is busy, and `send` must not wait: training would, and if the other
        # direction were full too, both sides would for ever. So what might not fit is posted by a thread.
        self._orders: SimpleQueue[Any] = SimpleQueue()
        self._queued = self._posted = 0
        self._sender = threading.Thread(target=self._post, name="carm-send", daemon=True)
        self._queue((plan, shared.size))
        self._sender.start()

    def _queue(self, order: Any) -> None:
        self._queued += 1
        self._orders.put(order)

    def _post(self) -> None:
        try:
            while True:
                order = self._orders.get()
                self._pipe.send(order)
                self._posted += 1
                if order is _STOP:
                    return
        except Exception:
            self._broken = True  # `alive` tells; whoever looks after the worker starts another

    def send(self, order: Order) -> None:
        try:
            if isinstance(order, ReadOrder) and self._posted == self._queued and not self._broken:
                with uninterrupted():  # not in the middle of a message
                    if self._pipe.send_at_once(order):
                        return
        except OSError:
            self._broken = True
        self._queue(order)

    def receive(self, timeout: float = 0.0) -> deque[Report]:
        try:
            while not self._broken and self._pipe.ready(0 if self.inbox else timeout):
                with uninterrupted():
                    self.inbox.append(self._pipe.receive())
        except (EOFError, OSError):
            self._broken = True
        return self.inbox

    @property
    def alive(self) -> bool:
        return not self._broken  # its death closes its end, and shows when something is received

    def close(self) -> None:
        if self._pipe.closed:
            return
        self._queue(_STOP)
        until = time.monotonic() + 60
        with contextlib.suppress(EOFError, OSError):  # until it has said all, and hung up
            while not self._broken and self._pipe.ready(max(until - time.monotonic(), 0)):
                self.inbox.append(self._pipe.receive())
        self._pipe.close()
        try:
            self.process.wait(timeout=max(until - time.monotonic(), 1))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._sender.join()


def helper(pipe_fd: int, memory_fd: int, outbox_fd: int, bell: int) -> None:
    """The helper process's main function. It ends when told to, or when the training process is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pipe = Pipe(pipe_fd, inbox=None if outbox_fd < 0 else SharedBlock.attach(outbox_fd, _OUTBOX), bell=bell)

    def get(block: bool) -> Any:
        if not block and not pipe.ready():
            raise Empty
        return pipe.receive()

    try:
        plan, size = pipe.receive()
        shared = SharedBlock.attach(memory_fd, size)
        serve(get, pipe.send, Executor(plan, plan.layout.arrays(shared).arena))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass


WORKERS: dict[str, type[SyncWorker] | type[ThreadWorker] | type[ProcessWorker]] = {
    "sync": SyncWorker,
    "thread": ThreadWorker,
    "process": ProcessWorker,
}
