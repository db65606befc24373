"""What is closed, or sent once, when a step fails or two threads come at the same moment."""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

from ramet.isolation import holder
from ramet.isolation.holder import Holder
from ramet.isolation.kernel.terminals import Entering
from ramet.network.packets import PacketChannel

_TOGETHER_SECONDS = 1.0


def open_descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def no_more(*_: object) -> int:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def test_each_tree_is_detached_once_whichever_threads_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    both = threading.Barrier(2)
    sent: list[str] = []

    def send_together(channel: object, text: str) -> None:
        try:
            both.wait(_TOGETHER_SECONDS)
        except threading.BrokenBarrierError:
            pass
        sent.append(text)

    monkeypatch.setattr(holder, "send_packet", send_together)
    asked = Holder.__new__(Holder)
    asked.__dict__.update(_channel=None, _to_detach=deque())
    threads = [threading.Thread(target=asked.detach_tree, args=(number,)) for number in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(sent) == ["untree 1", "untree 2"]


async def test_a_message_that_cannot_be_sent_leaves_no_descriptor_open(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    channel = PacketChannel(ours, lambda message, descriptors: None, lambda: None)
    duplicate = os.dup
    left = iter([duplicate, duplicate, no_more])
    monkeypatch.setattr(os, "dup", lambda descriptor: next(left)(descriptor))
    before = open_descriptors()
    with pytest.raises(OSError, match="Too many open files"):
        channel.send({}, [0, 1, 2])
    assert open_descriptors() == before
    channel.close()
    theirs.close()


def test_a_program_that_cannot_be_started_leaves_no_group_file_open(monkeypatch: pytest.MonkeyPatch) -> None:
    group_file = os.open("/dev/null", os.O_RDONLY)
    pod: Any = SimpleNamespace(group=SimpleNamespace(open_group_files=lambda: [group_file]), uncounted=())
    command: Any = SimpleNamespace(encode=lambda: b"")
    entering = Entering(pod, command, (), frozenset())
    monkeypatch.setattr(os, "memfd_create", no_more)
    with pytest.raises(OSError, match="Too many open files"):
        entering._enter(0)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(group_file)
    entering._report.close()
