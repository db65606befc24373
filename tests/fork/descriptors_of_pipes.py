"""Pipes and FIFOs of a process."""

from __future__ import annotations

import errno
import fcntl
import os

from tests.fork.descriptors_registry import Check, refused, thing


@thing
def a_pipe_keeps_what_was_written() -> Check:
    reading, writing = os.pipe()
    os.write(writing, b"in the pipe")

    def check() -> None:
        assert os.read(reading, 99) == b"in the pipe"
        os.write(writing, b"more")
        assert os.read(reading, 99) == b"more"

    return check


@thing
def a_large_pipe_keeps_its_capacity() -> Check:
    reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.fcntl(writing, 1031, 1 << 17)
    os.write(writing, b"z" * 100_000)

    def check() -> None:
        assert fcntl.fcntl(writing, 1032) == 1 << 17
        assert len(os.read(reading, 1 << 18)) == 100_000
        refused(lambda: os.read(reading, 1), errno.EAGAIN)

    return check


@thing
def a_full_pipe_is_full() -> Check:
    reading, writing = os.pipe2(os.O_NONBLOCK)
    sent = 0
    try:
        while True:
            sent += os.write(writing, b"f" * 1000)
    except BlockingIOError:
        pass

    def check() -> None:
        got = 0
        try:
            while True:
                got += len(os.read(reading, 1 << 16))
        except BlockingIOError:
            pass
        assert got == sent

    return check


@thing
def packets_stay_apart() -> Check:
    reading, writing = os.pipe2(os.O_DIRECT)
    for packet in (b"one", b"two", b"three"):
        os.write(writing, packet)

    def check() -> None:
        assert [os.read(reading, 99) for _ in range(3)] == [b"one", b"two", b"three"]

    return check


@thing
def a_pipe_whose_writer_is_gone_ends() -> Check:
    reading, writing = os.pipe()
    os.write(writing, b"last words")
    os.close(writing)
    gone, useless = os.pipe()
    os.close(gone)

    def check() -> None:
        assert os.read(reading, 99) == b"last words"
        assert os.read(reading, 99) == b""
        refused(lambda: os.write(useless, b"x"), errno.EPIPE)

    return check


@thing
def a_pipe_opened_twice_is_one_pipe() -> Check:
    reading, writing = os.pipe()
    again = os.open(f"/proc/self/fd/{reading}", os.O_RDONLY | os.O_NONBLOCK)
    both = os.open(f"/proc/self/fd/{writing}", os.O_RDWR)
    os.write(writing, b"ab")

    def check() -> None:
        assert os.read(again, 1) + os.read(reading, 1) == b"ab"
        refused(lambda: os.read(again, 1), errno.EAGAIN)
        os.write(both, b"c")
        assert os.read(both, 9) == b"c"

    return check


@thing
def a_fifo_keeps_its_contents() -> Check:
    os.mkfifo("fifo")
    both = os.open("fifo", os.O_RDWR)
    os.write(both, b"fifo data")
    reader = os.open("fifo", os.O_RDONLY | os.O_NONBLOCK)
    os.mkfifo("fifo gone")
    gone = os.open("fifo gone", os.O_RDWR)
    os.write(gone, b"still")
    os.unlink("fifo gone")

    def check() -> None:
        assert os.read(reader, 99) == b"fifo data"
        writer = os.open("fifo", os.O_WRONLY | os.O_NONBLOCK)
        os.write(writer, b"by name")
        assert os.read(both, 99) == b"by name"
        assert os.read(gone, 9) == b"still"

    return check
