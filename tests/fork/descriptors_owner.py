"""Run by ``descriptors_reader``: a process that owns one of each thing, and the copy of it that is to get them again.

The copy is an ordinary fork made before the original is read. It drops every descriptor, moves to a network and file
tree of its own, and makes the calls that it is sent.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import shutil
import signal
import socket
import struct
import sys
import traceback
from collections.abc import Callable
from typing import Any

from ramet.isolation.kernel.seccomp import compile_filter
from tests.fork.descriptors_things import THINGS, Check

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_NEW_TREE, _NEW_NETWORK = 0x20000, 0x40000000
_BIND = 0x1000
_MAKE_PRIVATE = 0x44000
COPY_LINES = (1100, 1101, 1102)
LOWER_FILE = b"below"


def _must(result: int, what: str) -> None:
    if result < 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")


def _mount(source: str, target: str, kind: str, flags: int = 0, options: str = "") -> None:
    arguments = [text.encode() for text in (source, target, kind)]
    _must(_libc.mount(*arguments, flags, options.encode() or None), f"mount {target}")


def _own_walls(folder: str) -> None:
    """A network with nothing but itself, and an empty tree at the places that things are written to."""
    _must(_libc.unshare(_NEW_TREE | _NEW_NETWORK), "unshare")
    _mount("none", "/", "", _MAKE_PRIVATE)
    _mount("devpts", "/dev/pts", "devpts", 0, "newinstance,ptmxmode=0666")
    for place in (folder, "/dev/shm"):
        _mount("tmpfs", place, "tmpfs")
    # As in a pod: a lower tree of another file system, and a writable layer in memory.
    for name in ("upper", "work", "tree"):
        os.mkdir(f"{folder}/{name}")
    layers = f"lowerdir={folder}-lower,upperdir={folder}/upper,workdir={folder}/work,userxattr,volatile"
    _mount("overlay", f"{folder}/tree", "overlay", 0, layers)
    with socket.socket() as any_socket:
        request = ctypes.create_string_buffer(struct.pack("16sH14x", b"lo", 0x49), 32)
        _must(_libc.ioctl(any_socket.fileno(), 0x8914, request), "bring lo up")


def _copy_walls(folder: str) -> None:
    """The same with the files of the original, whose trees stay reachable while they are copied."""
    old = {place: os.open(place, os.O_RDONLY) for place in (f"{folder}/tree", "/dev/shm")}
    _own_walls(folder)
    for place, descriptor in old.items():
        names = f"/proc/self/fd/{descriptor}"
        for name in os.listdir(os.fsencode(names)):
            if name != LOWER_FILE:
                _copy(os.path.join(os.fsencode(names), name), os.path.join(os.fsencode(place), name))
        os.close(descriptor)


def _put_filter_on() -> None:
    """The guest's: a copy makes its calls under it."""
    program = compile_filter()
    memory = ctypes.create_string_buffer(program, len(program))
    record = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(memory)), 16)
    _must(_libc.prctl(38, 1, 0, 0, 0), "no_new_privs")
    _must(_libc.prctl(22, 2, record), "seccomp")


def _copy(source: bytes, target: bytes) -> None:
    if os.path.islink(source) or os.path.isfile(source):
        shutil.copy2(source, target, follow_symlinks=False)
    elif os.path.isdir(source):
        os.mkdir(target)
        for name in os.listdir(source):
            _copy(os.path.join(source, name), os.path.join(target, name))
    else:
        os.mknod(target, os.lstat(source).st_mode)


def _receive(line: int) -> object:
    """Without a descriptor of its own: the table is looked at meanwhile."""
    size = struct.unpack("I", _exactly(line, 4))[0]
    return pickle.loads(_exactly(line, size))


def _exactly(line: int, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += os.read(line, size - len(data))
    return data


def _run(calls: list[tuple[str, int, tuple[int | bytes, ...], bool, bool]]) -> str | None:
    for position, (name, number, arguments, must_work, whole) in enumerate(calls):
        given = [
            ctypes.create_string_buffer(each, len(each)) if isinstance(each, bytes) else each for each in arguments
        ]
        plain = [ctypes.c_long(ctypes.addressof(each) if not isinstance(each, int) else each) for each in given]
        result = _libc.syscall(ctypes.c_long(number), *plain)
        if result < 0 and must_work:
            return f"call {position}, {name} {arguments!r:.200}: {os.strerror(ctypes.get_errno())}"
        if whole and result != arguments[2]:
            return f"call {position}, {name} {arguments!r:.200}: {result} bytes of {arguments[2]!r}"
    return None


def _judge(checks: dict[str, Check]) -> dict[str, str]:
    def hangs(*_: object) -> None:
        raise TimeoutError("it hangs")

    signal.signal(signal.SIGALRM, hangs)
    answers: dict[str, str] = {}
    for name, check in checks.items():
        signal.alarm(15)
        try:
            check()
            answers[name] = "ok"
        except BaseException:
            answers[name] = traceback.format_exc(limit=-3)
    signal.alarm(0)
    return answers


def _answer(line: int, value: object) -> None:
    data = pickle.dumps(value)
    data = struct.pack("I", len(data)) + data
    while data:
        data = data[os.write(line, data) :]


def _be_copy(checks: dict[str, Check], folder: str) -> None:
    for line, wanted in zip(COPY_LINES, (1000, 1001, 1002), strict=True):
        os.dup2(line, wanted, inheritable=False)
    everything = ctypes.c_uint(0xFFFFFFFF)
    _libc.close_range(0, 999, 0)
    _libc.close_range(ctypes.c_uint(1003), everything, 0)
    received: Any = _receive(1000)
    private, calls = received
    _copy_walls(folder)
    _put_filter_on()
    # The frozen memory has no descriptors at all while its shared memory is made private; the lines are above.
    failure = _run(private)
    os.chdir("/")
    failure = failure or _run(calls)
    os.chdir(f"{folder}/tree")
    _answer(1000, failure)
    _receive(1000)
    _answer(1000, _judge(checks) if failure is None else {})
    os._exit(0)


def main() -> None:
    folder = sys.argv[1]
    _own_walls(folder)
    os.chdir(f"{folder}/tree")
    wanted: dict[str, Callable[[], Check]] = {
        name: set_up for name, set_up in THINGS.items() if len(sys.argv) < 3 or name in sys.argv[2:]
    }
    checks = {name: set_up() for name, set_up in wanted.items()}
    copy = os.fork()
    if not copy:
        with contextlib.suppress(BaseException):
            _be_copy(checks, folder)
        traceback.print_exc()
        os._exit(1)
    for line in COPY_LINES:
        os.close(line)
    _answer(1000, copy)
    _receive(1000)
    _answer(1000, _judge(checks))


if __name__ == "__main__":
    main()
