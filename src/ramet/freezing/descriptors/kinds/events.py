"""Small kernel objects: eventfd, timerfd, signalfd, inotify, pidfd. /proc shows nearly all of their state."""

from __future__ import annotations

import os
import struct
import time

from ramet.freezing.descriptors.access import Opened, ProcessAccess
from ramet.freezing.descriptors.calls import CallList
from ramet.freezing.descriptors.kernel import settle_timer
from ramet.freezing.descriptors.recipes import (
    Description,
    Epoll,
    EventCounter,
    FileWatch,
    ProcessHandle,
    SignalQueue,
    Thing,
    Timer,
)

_EFD_SEMAPHORE = 1
# The largest count that an eventfd can have.
_MOST_COUNT = 0xFFFF_FFFF_FFFF_FFFE
# The alarm clocks need a capability that no sandbox has.
_CLOCKS = (time.CLOCK_REALTIME, time.CLOCK_MONOTONIC, time.CLOCK_BOOTTIME)
_TFD_TIMER_ABSTIME, _TFD_TIMER_CANCEL_ON_SET = 1, 2
_TFD_IOC_SET_TICKS = 0x40085400
_SECOND = 1_000_000_000


def read_event(access: ProcessAccess, opened: Opened) -> Thing:
    kind = opened.link.removeprefix(b"anon_inode:").strip(b"[]")
    facts = opened.facts
    if kind == b"eventfd" and "eventfd-count" in facts:
        return EventCounter(int(facts["eventfd-count"], 16), int(facts.get("eventfd-semaphore", "0")) == 1)
    if kind == b"eventpoll":
        return Epoll((), quiet=True)  # filled in when everything else is known
    if kind == b"timerfd":
        return _read_timer(access, opened)
    if kind == b"signalfd":
        return SignalQueue(int(facts["sigmask"], 16))
    if kind == b"inotify":
        if opened.lines:
            access.lost.append(f"descriptor {opened.number}: {len(opened.lines)} inotify watches")
        return FileWatch()
    if "NSpid" in facts:
        return _read_process(access, facts["NSpid"])
    return access.dead(opened)


def _read_timer(access: ProcessAccess, opened: Opened) -> Thing:
    with access.copy(opened.number) as copy:
        # An interval timer may have expired several times without the kernel having counted it.
        settle_timer(copy)
        facts, _ = access.facts(opened.number)
        clock = int(facts["clockid"])
        if clock not in _CLOCKS:
            return access.dead(opened)
        # it_value is the time left. A deadline stays right however long copies wait to be made.
        now = time.clock_gettime_ns(clock)
    left, interval = _nanoseconds(facts["it_value"]), _nanoseconds(facts["it_interval"])
    return Timer(
        clock=clock,
        cancel_on_set=bool(int(facts["settime flags"], 8) & _TFD_TIMER_CANCEL_ON_SET),
        ticks=int(facts["ticks"]),
        deadline=now + left if left else 0,
        interval=interval,
    )


def _nanoseconds(text: str) -> int:
    """Parse "(3, 999822346)", seconds and nanoseconds."""
    seconds, _, rest = text.strip(" \t()").partition(",")
    return int(seconds) * _SECOND + int(rest)


def _read_process(access: ProcessAccess, numbers: str) -> ProcessHandle:
    """Read a pidfd. The last number is the pid in the innermost namespace; 0 or -1 once the process is gone."""
    inside = int(numbers.split()[-1])
    # A pidfd of a process outside the pod counts as dead: its number would name another one in the copy's pod.
    return ProcessHandle(inside if inside in access.target.pod_pids.values() else 0)


def make_counter(script: CallList, each: Description, thing: EventCounter) -> int:
    flags = (_EFD_SEMAPHORE if thing.semaphore else 0) | (each.flags & os.O_NONBLOCK)
    slot = script.create("make an eventfd", "eventfd2", 0, flags)
    if thing.count:
        script.call("set an eventfd's count", "write", slot, struct.pack("Q", min(thing.count, _MOST_COUNT)), 8)
    return slot


def make_timer(script: CallList, each: Description, thing: Timer) -> int:
    return script.create("make a timerfd", "timerfd_create", thing.clock, each.flags & os.O_NONBLOCK)


def arm_timer(script: CallList, each: Description, thing: Timer) -> None:
    """Arm a timer at its final number, after all else: its deadline may have passed, and it fires at once."""
    number = each.places[0].number
    if thing.deadline:
        value = struct.pack("4q", *divmod(thing.interval, _SECOND), *divmod(thing.deadline, _SECOND))
        flags = _TFD_TIMER_ABSTIME | (_TFD_TIMER_CANCEL_ON_SET if thing.cancel_on_set else 0)
        script.call("arm a timerfd", "timerfd_settime", number, flags, value, 0)
    if thing.ticks:
        # Needs CONFIG_CHECKPOINT_RESTORE, which the kernels of distributions have.
        ticks = struct.pack("Q", thing.ticks)
        script.call("set a timerfd's ticks", "ioctl", number, _TFD_IOC_SET_TICKS, ticks, must_work=False)


def make_signal_queue(script: CallList, each: Description, thing: SignalQueue) -> int:
    mask = struct.pack("Q", thing.mask)
    return script.create("make a signalfd", "signalfd4", -1, mask, 8, each.flags & os.O_NONBLOCK)


def make_file_watch(script: CallList, each: Description) -> int:
    return script.create("make an inotify descriptor", "inotify_init1", each.flags & os.O_NONBLOCK)


def make_process_handle(script: CallList, each: Description, pid: int | None) -> int:
    """Make a pidfd.

    For a process that is not in the copy, a dead descriptor: readable, like the pidfd of a dead process.
    """
    if pid is None:
        return script.copy("stand in for a dead process", script.dead())
    return script.try_create("make a pidfd", "pidfd_open", pid, each.flags & os.O_NONBLOCK)
