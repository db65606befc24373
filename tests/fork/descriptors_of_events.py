"""Counters, timers, signals and epolls of a process."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import select
import signal
import struct

from tests.fork.descriptors_registry import Check, libc, refused, thing


@thing
def counters_keep_their_count() -> Check:
    counter, semaphore = os.eventfd(5), os.eventfd(3, os.EFD_SEMAPHORE | os.EFD_NONBLOCK)

    def check() -> None:
        assert os.eventfd_read(counter) == 5
        assert [os.eventfd_read(semaphore) for _ in range(3)] == [1, 1, 1]
        refused(lambda: os.eventfd_read(semaphore), errno.EAGAIN)

    return check


def _timer(value: float, interval: float, flags: int = os.O_NONBLOCK) -> int:
    timer = int(libc.timerfd_create(1, flags))
    record = struct.pack("4q", int(interval), int(interval % 1 * 1e9), int(value), int(value % 1 * 1e9))
    assert not libc.timerfd_settime(timer, 0, record, None)
    return timer


def _left(timer: int) -> tuple[float, float]:
    room = ctypes.create_string_buffer(32)
    libc.timerfd_gettime(timer, room)
    interval, more, left, part = struct.unpack("4q", room.raw)
    return left + part / 1e9, interval + more / 1e9


@thing
def timers_go_on() -> Check:
    later, expired, periodic, idle = _timer(3600, 0), _timer(0.001, 0), _timer(0.001, 0.2), _timer(0, 0)
    for timer in (expired, periodic):
        assert select.select([timer], [], [], 10)[0], "a timer of a millisecond expires"

    def check() -> None:
        assert 3000 < _left(later)[0] < 3600
        assert struct.unpack("Q", os.read(expired, 8))[0] == 1
        assert struct.unpack("Q", os.read(periodic, 8))[0] >= 1
        assert _left(periodic)[1] == 0.2
        assert _left(idle) == (0, 0)
        refused(lambda: os.read(idle, 8), errno.EAGAIN)

    return check


@thing
def a_signalfd_receives_its_signal() -> Check:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
    mask = ctypes.create_string_buffer(struct.pack("Q", 1 << (signal.SIGUSR2 - 1)), 128)
    queue = int(libc.signalfd(-1, mask, os.O_NONBLOCK))

    def check() -> None:
        os.kill(os.getpid(), signal.SIGUSR2)
        assert struct.unpack_from("I", os.read(queue, 128))[0] == signal.SIGUSR2

    return check


@thing
def an_inotify_descriptor_takes_new_watches() -> Check:
    watch = int(libc.inotify_init1(os.O_NONBLOCK))

    def check() -> None:
        name = f"watched-{os.getpid()}"
        os.mkdir(name)
        assert libc.inotify_add_watch(watch, name.encode(), 0x100) > 0
        with open(f"{name}/new", "w"):
            pass
        assert b"new" in os.read(watch, 4096)

    return check


@thing
def a_pidfd_of_oneself_is_of_oneself() -> Check:
    handle = os.pidfd_open(os.getpid())

    def check() -> None:
        signal.pidfd_send_signal(handle, 0)
        with open(f"/proc/self/fdinfo/{handle}") as facts:
            assert f"\nPid:\t{os.getpid()}\n" in facts.read()

    return check


@thing
def an_epoll_reports_what_is_ready() -> Check:
    reading, writing = os.pipe()
    os.write(writing, b"x")
    edge, spare = os.eventfd(5), os.eventfd(1)
    epoll = select.epoll()
    epoll.register(reading, select.EPOLLIN)
    epoll.register(edge, select.EPOLLIN | select.EPOLLET)
    number = os.dup(spare)
    epoll.register(number, select.EPOLLIN)
    os.close(number)
    taken = os.open("/dev/null", os.O_RDONLY)
    assert taken == number, "a registered number now names another file"
    outer = select.epoll()
    outer.register(epoll.fileno(), select.EPOLLIN)

    def check() -> None:
        assert outer.poll(0) == [(epoll.fileno(), 1)]
        assert sorted(epoll.poll(0)) == sorted([(reading, 1), (edge, 1), (number, 1)])
        assert os.read(taken, 9) == b""

    return check


@thing
def an_edge_that_was_taken_stays_taken() -> Check:
    counter, epoll = os.eventfd(1), select.epoll()
    epoll.register(counter, select.EPOLLIN | select.EPOLLET)
    assert epoll.poll(0)

    def check() -> None:
        assert epoll.poll(0) == []
        os.eventfd_write(counter, 1)
        assert epoll.poll(0) == [(counter, 1)]

    return check


@thing
def a_spent_entry_stays_spent() -> Check:
    counter, other, epoll = os.eventfd(1), os.eventfd(0), select.epoll()
    epoll.register(counter, select.EPOLLIN | select.EPOLLONESHOT)
    epoll.register(other, select.EPOLLIN)
    assert epoll.poll(0)

    def check() -> None:
        assert epoll.poll(0) == []
        os.eventfd_write(other, 1)
        assert epoll.poll(0) == [(other, 1)]
        epoll.modify(counter, select.EPOLLIN | select.EPOLLONESHOT)
        assert sorted(epoll.poll(0)) == sorted([(counter, 1), (other, 1)])

    return check


@thing
def an_epoll_keeps_the_data_of_its_entries() -> Check:
    """As tokio does it: a duplicate of the epoll, edges, a token instead of the number."""
    epoll = select.epoll()
    same = fcntl.fcntl(epoll.fileno(), fcntl.F_DUPFD_CLOEXEC, 3)
    counter = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    record = struct.pack("<IQ", 0x80000001, 0xFFFF_FFFF_FFFF_FFFE)
    assert not libc.epoll_ctl(epoll.fileno(), 1, counter, record)

    def check() -> None:
        os.eventfd_write(counter, 1)
        room = ctypes.create_string_buffer(48)
        assert libc.epoll_wait(same, room, 4, 0) == 1
        assert struct.unpack_from("<IQ", room.raw) == (1, 0xFFFF_FFFF_FFFF_FFFE)

    return check
