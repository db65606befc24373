"""Terminals, locks, and what a process shares with others."""

from __future__ import annotations

import errno
import fcntl
import os
import select
import socket
import struct
import subprocess
import sys
import termios

from tests.fork.descriptors_registry import Check, kept, refused, thing


@thing
def a_terminal_keeps_its_modes() -> Check:
    first = os.openpty()
    master, slave = os.openpty()
    for descriptor in first:
        os.close(descriptor)
    modes = termios.tcgetattr(slave)
    modes[3] &= ~(termios.ECHO | termios.ICANON)
    termios.tcsetattr(slave, 0, modes)
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("4H", 33, 99, 0, 0))

    def check() -> None:
        os.write(master, b"raw")
        assert os.read(slave, 9) == b"raw"
        assert fcntl.ioctl(slave, termios.TIOCGWINSZ, bytes(8))[:4] == struct.pack("2H", 33, 99)
        assert os.ttyname(slave) == "/dev/pts/1"

    return check


@thing
def locks_are_held() -> Check:
    whole, part, owned = (open(f"locked-{number}", "w") for number in range(3))  # noqa: SIM115
    fcntl.flock(whole, fcntl.LOCK_EX)
    fcntl.lockf(part, fcntl.LOCK_EX, 10, 5)
    fcntl.fcntl(owned, 37, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0))

    def check() -> None:
        found = []
        for file in (whole, part, owned):
            with open(f"/proc/self/fdinfo/{file.fileno()}") as facts:
                found += [line.split()[2:5] + line.split()[7:] for line in facts if line.startswith("lock:")]
        assert found == [
            ["FLOCK", "ADVISORY", "WRITE", "0", "EOF"],
            ["POSIX", "ADVISORY", "WRITE", "5", "14"],
            ["OFDLCK", "ADVISORY", "WRITE", "0", "EOF"],
        ]

    return check


_CHILD = """
import socket, sys, time
listener = socket.create_server(("127.0.0.1", 7001))
sys.stdout.write("ready")
sys.stdout.flush()
connection = listener.accept()[0]
connection.send(b"greeting")
sys.stdin.read()
"""


@thing
def what_another_process_holds_is_closed() -> Check:
    child = subprocess.Popen([sys.executable, "-c", _CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdin is not None
    output, given = child.stdout.fileno(), child.stdin.fileno()
    select.select([output], (), (), 20)
    connection = socket.create_connection(("127.0.0.1", 7001))
    select.select([connection], (), (), 20)
    handle = os.pidfd_open(child.pid)
    names = connection.getsockname(), connection.getpeername()
    original = os.getpid()
    kept.append(child)

    def check() -> None:
        assert os.read(output, 99) == b"ready"
        assert connection.recv(99) == b"greeting"
        if os.getpid() == original:
            return
        assert os.read(output, 99) == b""
        refused(lambda: os.write(given, b"x"), errno.EPIPE)
        assert connection.recv(99) == b""
        assert names == (connection.getsockname(), connection.getpeername())
        assert select.select([handle], (), (), 0)[0] == [handle], "a dead process's handle is readable"

    return check
