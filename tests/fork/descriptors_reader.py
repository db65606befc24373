"""A stand-alone fork: reads a stopped process as the engine does, and has a copy make everything again.

Run in namespaces of its own (``unshare``), so that it holds power over what it starts as the engine does. Prints JSON:
the answers of copy and original, what was lost, and whether everything else stayed as it was.
"""

from __future__ import annotations

import json
import os
import pickle
import resource
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

from ramet.freezing.descriptors import (
    Lines,
    PausedProcess,
    access,
    compile_calls,
    privatize,
    read_descriptors,
    read_shared_maps,
)
from tests.fork.descriptors_owner import COPY_LINES, LOWER_FILE

Table = dict[int, tuple[str, dict[str, str]]]


def _lines() -> tuple[socket.socket, tuple[int, int, int], list[int]]:
    """The reader's end of a control socket, the owner's three lines, and what else is open for them."""
    ours, theirs = socket.socketpair()
    outputs = [os.pipe() for _ in range(2)]
    return ours, (theirs.detach(), outputs[0][1], outputs[1][1]), [outputs[0][0], outputs[1][0]]


def _start(folder: str, wanted: list[str]) -> tuple[subprocess.Popen[bytes], socket.socket, socket.socket, Lines]:
    ours, lines, outputs = _lines()
    copys, copy_lines, more_outputs = _lines()
    inodes = Lines(*(os.fstat(line).st_ino for line in lines))

    def place() -> None:
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # inherited by the copy, which an engine gives as much
        for line, number in zip((*lines, *copy_lines), (1000, 1001, 1002, *COPY_LINES), strict=True):
            os.dup2(line, number)
        os.dup2(1001, 1)
        os.dup2(1002, 2)
        os.set_inheritable(1000, True)

    owner = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "tests.fork.descriptors_owner", folder, *wanted],
        stdin=subprocess.DEVNULL, preexec_fn=place, close_fds=False,
    )  # fmt: skip
    for line in (*lines, *copy_lines):
        os.close(line)
    del outputs, more_outputs  # stay open: nobody is to get an error for printing
    return owner, ours, copys, inodes


def _send(line: socket.socket, value: object) -> None:
    data = pickle.dumps(value)
    line.sendall(struct.pack("I", len(data)) + data)


def _receive(line: socket.socket) -> object:
    size = struct.unpack("I", _exactly(line, 4))[0]
    return pickle.loads(_exactly(line, size))


def _exactly(line: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = line.recv(size - len(data))
        if not part:
            raise RuntimeError("the other side is gone")
        data += part
    return data


def _stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        time.sleep(0.001)


def _table(pid: int) -> Table:
    """What /proc shows of a process's descriptors, without what is different by nature."""
    found: Table = {}
    for name in os.listdir(f"/proc/{pid}/fd"):
        link = os.readlink(f"/proc/{pid}/fd/{name}")
        with open(f"/proc/{pid}/fdinfo/{name}") as file:
            facts = dict(line.rstrip().split(":", 1) for line in file if line[:3] in ("pos", "fla"))
        found[int(name)] = (link.rstrip("0123456789]"), facts)
    return found


def main() -> None:
    folder, wanted = sys.argv[1], sys.argv[2:]
    Path(f"{folder}-lower").mkdir()
    Path(f"{folder}-lower", os.fsdecode(LOWER_FILE)).write_text("from below")
    owner, line, copy_line, inodes = _start(folder, wanted)
    copy = _receive(line)
    assert isinstance(copy, int)
    _stop(owner.pid)
    before = _table(owner.pid)
    own_before = os.listdir("/proc/self/fd")
    pidfd, root = os.pidfd_open(owner.pid), os.open(f"/proc/{owner.pid}/root", os.O_PATH)
    pids = {owner.pid: owner.pid}
    for name in Path(f"/proc/{owner.pid}/task/{owner.pid}/children").read_text().split():
        pids[int(name)] = int(name)
    # In a pod the root is such a layer.
    access.OWN_PLACES = (*access.OWN_PLACES, os.fsencode(f"{folder}/tree"))
    target = PausedProcess(owner.pid, pidfd, root, pids, inodes)
    started = time.perf_counter()
    found = read_descriptors(target)
    read = time.perf_counter()
    maps = read_shared_maps(target)
    mapped = time.perf_counter()
    calls = compile_calls(found, maps, copy)
    compiled = time.perf_counter()
    os.close(pidfd)
    os.close(root)
    leaked = set(os.listdir("/proc/self/fd")) != set(own_before)
    unharmed = _table(owner.pid) == before
    _send(copy_line, ([tuple(each) for each in privatize(maps)], [tuple(each) for each in calls]))
    failure = _receive(copy_line)
    table = _table(copy)
    _send(copy_line, "go")
    copy_answers = _receive(copy_line)
    os.kill(owner.pid, signal.SIGCONT)
    _send(line, "go")
    owner_answers = _receive(line)
    print(
        json.dumps(
            {
                "failure": failure,
                "copy": copy_answers,
                "original": owner_answers,
                "lost": found.lost,
                "leaked": leaked,
                "unharmed": unharmed,
                "differences": _differences(before, table),
                "numbers": sum(len(each.places) for each in found.descriptions),
                "calls": len(calls),
                "milliseconds": {
                    "read": (read - started) * 1e3,
                    "maps": (mapped - read) * 1e3,
                    "compile": (compiled - mapped) * 1e3,
                },
            }
        )
    )
    owner.kill()
    owner.wait()


def _differences(original: Table, copy: Table) -> list[str]:
    numbers = sorted(original.keys() | copy.keys())
    return [
        f"{number}: {original.get(number)} but {copy.get(number)}"
        for number in numbers
        if original.get(number) != copy.get(number)
    ]


if __name__ == "__main__":
    main()
