"""Memory that processes share is bounded, by a control group or without one, and none of it outlives its processes."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest

from ramet import Sandbox
from tests.walls.attempts import armed, value

_SECONDS = 180
_MIB = 1 << 20


@pytest.fixture(scope="module")
def small() -> Iterator[Sandbox]:
    if tuple(map(int, platform.release().split(".")[:2])) < (6, 9):
        pytest.skip("before Linux 6.9 only the host's root can bound System V memory")
    with Sandbox(memory_mib=64) as sandbox:
        yield armed(sandbox)


def test_system_v_memory_is_at_most_the_sandboxs_memory(small: Sandbox) -> None:
    code = """
first = call(29, 0, 40 << 20, 0o1600)
answers = [call(29, 0, 65 << 20, 0o1600), isinstance(first, int), call(29, 0, 40 << 20, 0o1600), call(31, first, 0, 0)]
answers
"""
    assert value(small, code) == ["EINVAL", True, "ENOSPC", 0]


def test_system_v_memory_goes_with_whoever_made_it(small: Sandbox) -> None:
    code = """
import subprocess, sys
script = "import ctypes; c = ctypes.CDLL(None); print(c.shmget(0, 1 << 20, 0o1600))"
made = int(subprocess.run([sys.executable, '-c', script], capture_output=True, text=True).stdout)
(made >= 0, len(open('/proc/sysvipc/shm').readlines()))
"""
    assert value(small, code) == (True, 1), "only the headline is left"


def test_queues_and_semaphores_of_the_kernel_are_few(small: Sandbox) -> None:
    code = """
def take(make):
    made = []
    while isinstance(last := make(), int) and len(made) < 40000:
        made.append(last)
    return made, last
queues, full = take(lambda: call(68, 0, 0o1600))
sets, sated = take(lambda: call(64, 0, 1000, 0o1600))
_ = [call(71, one, 0, 0) for one in queues] + [call(66, one, 0, 0, 0) for one in sets]
(len(queues), full, len(sets), sated, call(64, 0, 1001, 0o1600))
"""
    assert value(small, code) == (256, "ENOSPC", 32, "ENOSPC", "EINVAL")


def test_the_folder_of_shared_memory_holds_no_more_than_the_memory_limit(small: Sandbox) -> None:
    assert value(small, "found = os.statvfs('/dev/shm'); found.f_blocks * found.f_frsize") == 64 * _MIB


def test_a_sandbox_cannot_raise_these_limits(small: Sandbox) -> None:
    for name in ("shmmax", "shmall", "msgmni", "sem", "shm_rmid_forced"):
        assert value(small, f"refusal(writing, '/proc/sys/kernel/{name}')") in ("EROFS", "EACCES")


# Without a control group


_TAKE = {
    "nameless": "memory = mmap.mmap(-1, 256 << 20)",
    "zeroes": "memory = mmap.mmap(os.open('/dev/zero', os.O_RDWR), 256 << 20)",
}
_FILL = """
for place in range(0, len(memory), 4096): memory[place] = 1
import time; time.sleep(60)
"""
_PROGRAM = """
import sys, ramet
tests, what, code = sys.argv[1:4]
sys.path.insert(0, tests)
from tests.walls.attempts import armed, value
neighbour = armed(ramet.Sandbox(memory_mib=64))
with ramet.Sandbox(memory_mib=64, recover="fresh") as sandbox:
    armed(sandbox)
    walls = str(sandbox.info().walls["memory"])
    assert "for each process" in walls and "memfd" in walls, walls
    if what == "cell":
        result = sandbox.run_code(code, timeout=90)
        print(result.state, result.cause, result.exit_code)
        print(sandbox.run_code("6 * 7", timeout=60).value)
    elif what == "child":
        print(value(sandbox, f"subprocess.run([sys.executable, '-c', {code!r}]).returncode", timeout=90))
    else:
        print(value(sandbox, code, timeout=90))
        for child in sandbox.fork(2):
            with child:
                print(value(child, "shared[:5]"))
    print(value(neighbour, "6 * 7"))
neighbour.close()
"""


def _uncounted(what: str, code: str) -> list[str]:
    """What a program prints on a host where nobody may make a control group."""
    if shutil.which("unshare") is None:
        pytest.skip("no unshare(1) on this machine")
    root = os.geteuid() == 0
    how = ["unshare", "--mount"] if root else ["unshare", "--user", "--map-root-user", "--mount"]
    steps = 'mount -t tmpfs tmpfs /sys/fs/cgroup; exec "$@"'
    done = subprocess.run(
        [*how, "sh", "-ec", steps, "sh", sys.executable, "-c", _PROGRAM, os.getcwd(), what, code],
        capture_output=True, text=True, timeout=_SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.deep("load")
@pytest.mark.parametrize("kind", _TAKE)
def test_a_cell_that_shares_too_much_memory_is_out_of_memory(kind: str) -> None:
    lines = _uncounted("cell", f"import mmap, os\n{_TAKE[kind]}\n{_FILL}")
    assert lines == ["lost out of memory 137", "42", "42"]


@pytest.mark.deep("load")
@pytest.mark.parametrize("kind", _TAKE)
def test_a_child_that_shares_too_much_memory_is_ended(kind: str) -> None:
    assert _uncounted("child", f"import mmap, os\n{_TAKE[kind]}\n{_FILL}") == ["-9", "42"]


@pytest.mark.deep("restarts")
def test_memory_that_is_in_no_process_is_refused_and_the_rest_goes_on() -> None:
    """Also in copies: a thaw makes files in memory itself."""
    code = """
shared = mmap.mmap(-1, 16 << 20); shared[:5] = b'whole'
refused = refusal(os.memfd_create, 'x'), call(29, 0, 65 << 20, 0o1600) in ('EINVAL', 'ENOSPC')
import multiprocessing.shared_memory as m
block = m.SharedMemory(create=True, size=1 << 20); block.unlink()
get_ipython().run_cell_magic('bash', '', ': ' + 'x' * 200_000 + '\\necho ok > /tmp/said')
(*refused, open('/tmp/said').read(), len(block.buf))
"""
    lines = _uncounted("cells", code)
    assert lines == [f"('ENOSYS', True, 'ok\\n', {1 << 20})", "b'whole'", "b'whole'", "42"]
