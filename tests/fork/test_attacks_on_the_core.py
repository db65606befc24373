"""Memory that the kernel acts on by itself, and things that wait: with what a hostile parent could mislead a fork."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from ramet import ForkFailed, Mount, Sandbox
from tests.fork.relatives import Fork, at_once, run, value

_MEMORY = """
import ctypes, struct
c = ctypes.CDLL(None, use_errno=True)
c.mmap.restype = ctypes.c_void_p
c.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
page = 0x600000000
assert c.mmap(page, 0x10000, 7, 0x32, -1, 0) == page
def put(at, data): ctypes.memmove(at, data, len(data))
"""

# Restartable sequences: when the task is resumed anywhere in [start, start + length), the kernel jumps to `abort`. The
# code there counts itself and then traps.
_RSEQ = f"""{_MEMORY}
put(page + 0x3c, struct.pack('<I', 0x53053053))
put(page + 0x40, bytes.fromhex('f048ff05') + struct.pack('<i', 0x200 - 0x48) + bytes.fromhex('0f0b'))
with open('/proc/self/maps') as maps:
    start, end = (int(part, 16) for line in maps if '[vdso]' in line for part in line.split()[0].split('-'))
instruction = start + ctypes.string_at(start, end - start).index(bytes.fromhex('0f05'))
c.pthread_self.restype = ctypes.c_ulong
area = c.pthread_self() + ctypes.c_long.in_dll(c, '__rseq_offset').value
unregistered = [c.syscall(334, ctypes.c_ulong(area), size, 1, 0x53053053) for size in (32, 28, 33, 64)]
put(page + 0x8000, struct.pack('<IIQQQ', 0, 0, instruction, 2, page + 0x40))
put(area + 8, struct.pack('<Q', page + 0x8000))
def times(): return struct.unpack('<Q', ctypes.string_at(page + 0x200, 8))[0]
0 in unregistered
"""

# clone(stack, thread pointer): a thread that pauses for ever.
_THREAD = f"""{_MEMORY}
put(page, bytes.fromhex('4989f04889febf000f0d0031d24531d2b8380000000f0585c07401c3b8220000000f05ebf7'))
clone = ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)(page)
"""


def test_an_rseq_area_in_the_sandbox_does_not_lead_its_shadow(parent: Sandbox, fork: Fork) -> None:
    assert value(parent, _RSEQ) is True
    children = fork(parent, 2)
    (grandchild,) = fork(children[0])
    assert at_once([parent, *children, grandchild], "times()") == [0] * 4


@pytest.mark.parametrize("place", [0x1FA0_0000_1000, 0x1FA0_0000_2103, 0x1FA1_0000_1000])
def test_a_thread_whose_records_lie_where_the_calls_of_a_copy_are_laid_out_is_refused(
    place: int, parent: Sandbox, neighbour_still_answers: Callable[[], None]
) -> None:
    """The kernel writes a thread's id there when it is made again, over whatever is there."""
    assert value(parent, _THREAD + f"clone(page + 0xf000, {place} - 720) > 0") is True
    with pytest.raises(ForkFailed, match="records"):
        parent.fork()
    assert value(parent, "6 * 7") == 42
    neighbour_still_answers()


def test_more_connections_than_a_listener_takes_do_not_hold_a_fork(parent: Sandbox, fork: Fork) -> None:
    run(
        parent,
        """
door = socket.socket(socket.AF_UNIX); door.bind(b'\\0door'); door.listen(50)
clients = []
for _ in range(10):
    client = socket.socket(socket.AF_UNIX); client.connect(b'\\0door'); clients.append(client)
door.listen(0)
""",
    )
    children = fork(parent, 2)
    accept = "[door.accept()[0].fileno() > 0 for _ in range(10)].count(True)"
    assert at_once([parent, *children], accept) == [10] * 3


def test_a_socket_on_a_folder_of_the_host_stays_the_parents(tmp_path: Path, fork: Fork) -> None:
    with Sandbox(mounts={"/data": Mount(tmp_path, writable=True)}) as parent:
        run(
            parent,
            """
import os, socket, threading
door = socket.socket(socket.AF_UNIX); door.bind('/data/door'); door.listen(5)
os.chmod('/data/door', 0o777)
who = b'parent'
def serve():
    while True:
        other, _ = door.accept(); other.sendall(who); other.close()
threading.Thread(target=serve, daemon=True).start()
""",
        )
        (child,) = fork(parent)
        run(child, "who = b'child'")
        for _ in range(2):
            with socket.socket(socket.AF_UNIX) as client:
                client.settimeout(30)
                client.connect(str(tmp_path / "door"))
                assert client.recv(10) == b"parent"
            child.close()
