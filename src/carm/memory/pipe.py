"""How the training process and a helper process talk: orders one way, reports the other, over a pair of sockets.

Reads come in every step of training, so they are written as plain bytes: pickle takes four times as long for them.
Everything else is pickled, but for large arrays: new samples are handed over in memory that both processes have, for a
socket would copy them four times, and let both sides wait for each other every 200 KB.

A helper does not wait at its socket, but at a bell (an eventfd). Whoever wakes another by writing to a socket tells
Linux that it is about to wait itself, and so the other gets the very core that training runs on: a send took 200 us of
a training step, and takes 15 so.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import struct
import sys
import weakref
from multiprocessing.connection import Connection
from socket import SO_SNDBUF, SOL_SOCKET, socket
from typing import Any

import numpy as np
from numpy.typing import NDArray

from carm.memory.orders import ReadDone, ReadOrder
from carm.memory.shared import SharedBlock

_HEADER = struct.Struct("<4q")  # kind, ticket, number of records (or of arrays that follow), number of blocks
_PICKLED, _READ, _READ_ONE_SIZE, _READ_DONE, _COMING = range(5)  # _COMING: the message itself follows
_ONE = (1).to_bytes(8, sys.byteorder)
_LARGE = 4096  # bytes of an array that is sent by itself


class Pipe:
    """One end. It may be sent to by one thread and received from by another.

    `outbox` is memory for the large arrays of what is sent, the other end's `inbox`. Those of a message are there until
    the next that has any is sent: whoever sends one waits until the other side has done with the last. What does not
    fit goes through the socket.

    `rings` is the bell that the other end waits at, its `bell`; -1: there is none, and it waits at the socket.
    """

    def __init__(
        self,
        fd: int,
        *,
        outbox: SharedBlock | None = None,
        inbox: SharedBlock | None = None,
        rings: int = -1,
        bell: int = -1,
    ) -> None:
        self._connection = Connection(fd)
        self._rings = None if rings < 0 else open(rings, "wb", buffering=0)  # noqa: SIM115 - closed in `close`
        self._bell = None if bell < 0 else open(bell, "rb", buffering=0)  # noqa: SIM115
        self._outbox = None if outbox is None else outbox.bytes()
        self._inbox = None if inbox is None else inbox.bytes()
        _OPEN.add(self)
        # (`Connection.poll` makes one of these every time, and takes seven times as long.)
        self._incoming, self._outgoing = select.poll(), select.poll()
        self._incoming.register(fd, select.POLLIN)
        self._outgoing.register(fd, select.POLLOUT)
        self._ringing = select.poll()
        if bell >= 0:
            self._ringing.register(bell, select.POLLIN)
            self._ringing.register(fd, 0)  # for the other end's death
        with socket(fileno=os.dup(fd)) as end:
            # A socket that counts as writable has a buffer that is a quarter full at most (on Linux), and what is sent
            # takes up to twice its size there: with an eighth of it there is room to spare.
            self._fits = end.getsockopt(SOL_SOCKET, SO_SNDBUF) // 8 if sys.platform == "linux" else 0

    def ready(self, seconds: float = 0.0) -> bool:
        """Whether there is something to receive (or the other end was closed) now, or before so many seconds pass."""
        return bool(self._incoming.poll(seconds * 1e3))

    def send(self, message: Any) -> None:
        """Send a message; waits while the other side is busy and does not receive."""
        if self._rings is not None:  # first: the rest may be more than fits, and would wait for somebody who sleeps
            self._connection.send_bytes(_HEADER.pack(_COMING, 0, 0, 0))
            self._ring()
        arrays: list[pickle.PickleBuffer] = []
        data = _encode(message, arrays)
        if not arrays:
            self._connection.send_bytes(data)
            return
        raw = [array.raw() for array in arrays]
        places = self._put(raw)
        self._connection.send_bytes(data + np.array(places, np.int64).tobytes())
        for array, (place, _) in zip(raw, places, strict=True):
            if place < 0:
                self._connection.send_bytes(array)

    def _put(self, arrays: list[memoryview]) -> list[tuple[int, int]]:
        """Where in the outbox each of these is now (-1: nowhere), and how many bytes it has."""
        out, at = [], 0
        for array in arrays:
            end = at + array.nbytes
            if self._outbox is None or end > len(self._outbox):
                out.append((-1, array.nbytes))
            else:
                self._outbox[at:end] = array
                out.append((at, array.nbytes))
                at = -(-end // 64) * 64
        return out

    def _get(self, places: Any) -> list[Any]:
        """The arrays that the other end has put there, or sends now."""
        out: list[Any] = []
        for place, size in places.tolist():
            if place < 0:
                out.append(self._connection.recv_bytes())
            else:
                assert self._inbox is not None
                out.append(self._inbox[place : place + size])
        return out

    def send_at_once(self, order: ReadOrder) -> bool:
        """Send an order if that needs no waiting; otherwise returns False."""
        if not self._fits or not self._outgoing.poll(0):
            return False
        data = _encode(order, [])
        if len(data) > self._fits:
            return False
        self._connection.send_bytes(data)
        self._ring()
        return True

    def _ring(self) -> None:
        if self._rings is not None:
            self._rings.write(_ONE)

    def _await(self) -> None:
        """Until there is something to receive: if there is a bell, wait there. (It is rung after each message; one that
        has been received before it was heard costs another look.)"""
        while self._bell is not None and not self.ready():
            self._ringing.poll()
            self._bell.read(8)

    def receive(self) -> Any:
        """The next message; waits for it. Raises EOFError if there will be none."""
        self._await()
        data = self._connection.recv_bytes()
        kind, ticket, n, blocks = _HEADER.unpack_from(data)
        if kind == _COMING:
            data = self._connection.recv_bytes()
            kind, ticket, n, blocks = _HEADER.unpack_from(data)
        at = _HEADER.size
        if kind == _PICKLED:
            end = len(data) - 16 * n
            places = np.frombuffer(data, np.int64, 2 * n, end).reshape(n, 2)
            return pickle.loads(memoryview(data)[at:end], buffers=self._get(places))
        if kind == _READ_DONE:
            return ReadDone(ticket, np.frombuffer(data, bool, n, at))
        offsets, sums = np.frombuffer(data, np.int64, n, at), np.frombuffer(data, np.uint64, n, at + 8 * n)
        sizes = np.frombuffer(data, np.int64, n, at + 16 * n + 8 * blocks) if kind == _READ else None
        return ReadOrder(ticket, offsets, sizes, sums, np.frombuffer(data, np.int64, blocks, at + 16 * n))

    def close(self) -> None:
        self._connection.close()
        for end in (self._rings, self._bell):
            if end is not None:
                end.close()

    @property
    def closed(self) -> bool:
        return self._connection.closed


def _words(numbers: NDArray[np.integer]) -> bytes:
    return numbers.astype(np.int64, copy=False).tobytes()


def _encode(message: Any, arrays: list[pickle.PickleBuffer]) -> bytes:
    """A message as bytes, but for its large arrays, which are appended to `arrays`."""
    if isinstance(message, ReadOrder):
        kind = _READ_ONE_SIZE if message.sizes is None else _READ
        data = _HEADER.pack(kind, message.ticket, len(message.sums), len(message.blocks))
        data += _words(message.offsets) + message.sums.tobytes() + _words(message.blocks)
        return data if message.sizes is None else data + _words(message.sizes)
    if isinstance(message, ReadDone):
        return _HEADER.pack(_READ_DONE, message.ticket, len(message.ok), 0) + message.ok.tobytes()

    def pickled(array: pickle.PickleBuffer) -> bool:
        small = array.raw().nbytes < _LARGE
        if not small:
            arrays.append(array)
        return small

    data = pickle.dumps(message, 5, buffer_callback=pickled)
    return _HEADER.pack(_PICKLED, 0, len(arrays), 0) + data


# A forked child has a copy of our end: helpers would not notice that we are gone, and keep the lock.
_OPEN: weakref.WeakSet[Pipe] = weakref.WeakSet()


def _after_fork() -> None:
    for pipe in list(_OPEN):
        with contextlib.suppress(OSError):
            pipe.close()


os.register_at_fork(after_in_child=_after_fork)
