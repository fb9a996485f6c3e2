from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from socket import SO_SNDBUF, SOL_SOCKET, socketpair

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from carm.memory.catalogue import ENTRY
from carm.memory.orders import Failure, ReadDone, ReadOrder, WriteDone, WriteOrder
from carm.memory.pipe import Pipe
from carm.memory.record import Records
from carm.memory.shared import SharedBlock


def pair(*, bell: bool = False) -> tuple[Pipe, Pipe]:
    ours, theirs = socketpair()
    if not bell:
        return Pipe(ours.detach()), Pipe(theirs.detach())
    fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
    return Pipe(ours.detach(), rings=fd), Pipe(theirs.detach(), bell=os.dup(fd))


@pytest.fixture(params=[False, True], ids=["at the socket", "at a bell"])
def pipes(request: pytest.FixtureRequest) -> Iterator[tuple[Pipe, Pipe]]:
    here, there = pair(bell=request.param)
    yield here, there
    here.close()
    there.close()


def order(n: int, blocks: int | None = None, ticket: int = 7) -> ReadOrder:
    rng = np.random.default_rng(n)
    return ReadOrder(
        ticket,
        rng.integers(0, 2**60, n),
        None if blocks is None else rng.integers(1, 2**40, n),
        rng.integers(0, 2**64, n, dtype=np.uint64),
        rng.integers(0, 2**31, n if blocks is None else blocks),
    )


@given(n=st.integers(0, 300), blocks=st.none() | st.integers(0, 900), ticket=st.integers(0, 2**62))
def test_a_read_order_arrives_as_it_was(n: int, blocks: int | None, ticket: int) -> None:
    here, there = pair()
    sent = order(n, blocks, ticket)
    here.send(sent)
    got = there.receive()
    assert got.ticket == ticket
    for name in ("offsets", "sizes", "sums", "blocks"):
        mine, theirs = getattr(sent, name), getattr(got, name)
        assert (mine is None and theirs is None) or (mine.dtype == theirs.dtype and np.array_equal(mine, theirs))
    here.close()
    there.close()


@pytest.mark.parametrize("dtype", [np.int32, np.uint32])
def test_blocks_may_be_given_in_fewer_bits(pipes: tuple[Pipe, Pipe], dtype: type) -> None:
    here, there = pipes
    sent = order(3)
    sent.blocks = np.array([3, 1, 2], dtype)  # type: ignore[assignment]
    here.send(sent)
    assert there.receive().blocks.tolist() == [3, 1, 2]


@given(ok=st.lists(st.booleans(), max_size=50))
def test_a_report_arrives_as_it_was(ok: list[bool]) -> None:
    here, there = pair()
    here.send(ReadDone(5, np.array(ok, bool)))
    got = there.receive()
    assert (got.ticket, got.ok.tolist(), got.ok.dtype) == (5, ok, bool)
    here.close()
    there.close()


@pytest.mark.parametrize("room", [0, 100_000, 250_000, 1 << 20])
@pytest.mark.parametrize("n", [0, 1, 3, 2000])
def test_a_write_order_arrives_as_it_was_large_or_small(n: int, room: int) -> None:
    """In memory that both ends have, as far as there is room, and through the socket."""
    ours, theirs = socketpair()
    shared = SharedBlock(room) if room else None
    here, there = Pipe(ours.detach(), outbox=shared), Pipe(theirs.detach(), inbox=shared)
    data = np.random.default_rng(0).integers(0, 256, n * 96, np.uint8)
    numbers = np.arange(n)
    records = Records(data, numbers * 96, np.full(n, 96), numbers % 3)
    births = np.zeros(n, ENTRY)
    births["id"] = numbers
    sender = threading.Thread(target=here.send, args=(WriteOrder(3, records, births, numbers[::2], victims=[4]),))
    sender.start()
    got = there.receive()
    sender.join()
    assert (got.seq, got.victims, got.floor) == (3, [4], 4 if n else None)
    assert np.array_equal(got.records.data, data) and np.array_equal(got.births, births)
    assert got.deaths.tolist() == numbers[::2].tolist()
    inside = shared is not None and np.shares_memory(got.records.data, shared.bytes())
    assert inside == (n == 2000 and room >= 192_000)
    here.close()
    there.close()


def test_other_messages_arrive_in_their_order(pipes: tuple[Pipe, Pipe]) -> None:
    here, there = pipes
    for message in (("plan", 3), None, WriteDone(1, (28, "full")), Failure("Traceback")):
        here.send(message)
    assert there.receive() == ("plan", 3)
    assert there.receive() is None
    assert there.receive().error == (28, "full")
    assert there.receive().traceback == "Traceback"


def test_it_tells_whether_something_has_come(pipes: tuple[Pipe, Pipe]) -> None:
    here, there = pipes
    assert not there.ready()
    begun = time.monotonic()
    assert not there.ready(0.05)
    assert time.monotonic() - begun >= 0.04
    here.send(None)
    assert there.ready(10)
    assert there.receive() is None and not there.ready()


@pytest.mark.parametrize("buffer", [None, 16384])
@pytest.mark.parametrize("n", [1, 32, 100])
def test_sending_at_once_never_waits_for_a_side_that_does_not_receive(n: int, buffer: int | None) -> None:
    ours, theirs = socketpair()
    if buffer is not None:
        ours.setsockopt(SOL_SOCKET, SO_SNDBUF, buffer)
    here, there = Pipe(ours.detach()), Pipe(theirs.detach())
    sent = 0
    begun = time.monotonic()
    while here.send_at_once(order(n, ticket=sent)):  # would hang here if it waited
        sent += 1
        assert time.monotonic() - begun < 30
    assert sent > 0
    for ticket in range(sent):  # and nothing of it is lost
        assert there.receive().ticket == ticket
    assert not there.ready()
    assert here.send_at_once(order(n))  # there is room again
    here.close()
    there.close()


def test_whoever_waits_is_woken_by_every_kind_of_message(pipes: tuple[Pipe, Pipe]) -> None:
    """Also by one that is larger than what fits between the two."""
    here, there = pipes
    got: list[object] = []
    waiting = threading.Thread(target=lambda: got.extend(there.receive() for _ in range(60)))
    waiting.start()
    for number in range(20):
        if number % 4 == 0:
            time.sleep(0.01)  # long enough for the other side to have gone to sleep
        if not here.send_at_once(order(3, ticket=number)):  # the last one is still on its way
            here.send(order(3, ticket=number))
        here.send(("small", number))
        here.send(("large", os.urandom(1 << 20)))
    waiting.join(30)
    assert not waiting.is_alive()
    assert [one.ticket for one in got[::3]] == list(range(20))  # type: ignore[attr-defined]
    assert got[1::3] == [("small", number) for number in range(20)]
    assert [len(one[1]) for one in got[2::3]] == [1 << 20] * 20  # type: ignore[index]


def test_whoever_waits_notices_that_the_other_end_is_gone(pipes: tuple[Pipe, Pipe]) -> None:
    here, there = pipes
    failed: list[BaseException] = []

    def wait() -> None:
        try:
            there.receive()
        except EOFError as error:
            failed.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(0.05)
    here.close()
    waiting.join(30)
    assert not waiting.is_alive() and len(failed) == 1


def test_what_might_not_fit_is_not_sent_at_once(pipes: tuple[Pipe, Pipe]) -> None:
    here, there = pipes
    assert not here.send_at_once(order(5000))
    assert not there.ready()


def test_the_other_end_closed_is_an_error_not_a_wait(pipes: tuple[Pipe, Pipe]) -> None:
    here, there = pipes
    there.close()
    assert there.closed
    assert here.ready(10)
    with pytest.raises(EOFError):
        here.receive()
    with pytest.raises(BrokenPipeError):
        here.send_at_once(order(3))
    with pytest.raises(BrokenPipeError):
        here.send(None)
