"""Memory, disk, descriptors and kernel objects: each ends at its limit, and the limit is the sandbox's own."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ramet import FileError, Sandbox
from ramet.transport import embedded
from tests.walls.attempts import armed, ending, value

Check = Callable[[], None]
MIB = 1024 * 1024
STARVED = ("lost", "out of memory", 137)


def controllers() -> list[str]:
    with Sandbox() as sandbox:
        walls = sandbox.info().walls
    return [name for name in ("memory", "processes", "cpu") if "cgroup v" in str(walls[name])]


@pytest.fixture(scope="module")
def counted_by_control_groups() -> None:
    if "memory" not in controllers():
        pytest.skip("this host has no writable control group for memory")


@pytest.mark.promise("wall-memory")
@pytest.mark.usefixtures("counted_by_control_groups")
def test_twice_the_memory_is_out_of_memory_and_was_counted(neighbour_still_answers: Check) -> None:
    with Sandbox(memory_mib=128, history=False) as sandbox:
        assert sandbox.run_code("half = bytearray(64 << 20)").ok
        counted = sandbox.info().usage["memory_bytes"]
        assert 64 * MIB <= counted <= 128 * MIB
        result = sandbox.run_code("twice = bytearray(256 << 20)", timeout=20)
        assert ending(result) == STARVED
        neighbour_still_answers()
        again = sandbox.run_code("6 * 7", timeout=20)
        assert (again.value, again.restarted) == ("42", True)
        usage = sandbox.info().usage
        assert 120 * MIB <= usage["memory_peak_bytes"] <= 128 * MIB
        assert usage["memory_bytes"] < 64 * MIB


def test_memory_within_the_limit_is_granted() -> None:
    with Sandbox(memory_mib=256, recover="fresh") as sandbox:
        assert sandbox.run_code("len(bytearray(200 << 20))", timeout=20).value == str(200 << 20)


@pytest.mark.usefixtures("counted_by_control_groups")
def test_a_child_that_takes_the_memory_is_ended_and_the_cell_goes_on(neighbour_still_answers: Check) -> None:
    with Sandbox(memory_mib=128, recover="fresh") as sandbox:
        armed(sandbox)
        code = "subprocess.run([sys.executable, '-c', 'bytearray(256 << 20)']).returncode"
        assert value(sandbox, code) == -9
        neighbour_still_answers()


@pytest.mark.usefixtures("counted_by_control_groups")
def test_memory_of_many_processes_is_counted_together(neighbour_still_answers: Check) -> None:
    with Sandbox(memory_mib=128, recover="fresh") as sandbox:
        armed(sandbox)
        code = """
hold = [sys.executable, '-c', 'held = bytearray(48 << 20); input()']
children = [subprocess.Popen(hold, stdin=subprocess.PIPE) for _ in range(6)]
ended = set()
while not ended:
    ended = {child.poll() for child in children} - {None}
    time.sleep(0.01)
[child.kill() for child in children]
ended
"""
        result = sandbox.run_code(code, timeout=20)
        assert result.value == "{-9}" or ending(result) == STARVED
        neighbour_still_answers()


@pytest.mark.promise("wall-disk")
@pytest.mark.parametrize("folder", ["/dev/shm", "/tmp", "/root", "/var/tmp"])
def test_a_full_disk_is_an_error_in_the_cell(folder: str, neighbour_still_answers: Check) -> None:
    with Sandbox(disk_mib=16) as sandbox:
        armed(sandbox)
        fill = f"""
def fill():
    with open('{folder}/big', 'wb', buffering=0) as file:
        for _ in range(64):
            file.write(bytes(1 << 20))
(refusal(fill), os.stat('{folder}/big').st_size <= 16 << 20)
"""
        assert value(sandbox, fill) == ("ENOSPC", True)
        neighbour_still_answers()
        assert value(sandbox, f"os.unlink('{folder}/big'); 42") == 42


def test_a_full_disk_is_an_error_of_file_calls() -> None:
    with Sandbox(disk_mib=16) as sandbox:
        with pytest.raises(FileError) as full:
            sandbox.files.write("/root/big", bytes(32 * MIB))
        assert full.value.errno == 28
        sandbox.files.remove("/root/big")
        sandbox.files.write("/root/small", b"x")


def test_many_files_end_at_a_limit(neighbour_still_answers: Check) -> None:
    with Sandbox(disk_mib=1) as sandbox:
        armed(sandbox)
        code = """
def make():
    for number in range(100000):
        os.close(os.open(f'/tmp/{number}', os.O_CREAT))
(refusal(make), len(os.listdir('/tmp')) <= 4200)
"""
        assert value(sandbox, code) == ("ENOSPC", True)
        neighbour_still_answers()


@pytest.mark.usefixtures("counted_by_control_groups")
def test_files_in_memory_count_as_memory(neighbour_still_answers: Check) -> None:
    with Sandbox(memory_mib=64, disk_mib=1024, recover="fresh") as sandbox:
        result = sandbox.run_code("open('/tmp/big', 'wb').write(bytes(16 << 20) * 8)", timeout=20)
        assert ending(result) == STARVED
        neighbour_still_answers()
        sandbox.files.remove("/tmp/big")
        assert sandbox.run_code("6 * 7", timeout=20).value == "42"


def test_descriptors_end_at_a_limit(attacker: Sandbox, neighbour_still_answers: Check) -> None:
    code = """
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
held = []
def hold():
    while True:
        held.append(os.dup(0))
answer = refusal(hold)
neighbours = len(held)
[os.close(number) for number in held]
(answer, neighbours < 65536)
"""
    assert value(attacker, code) == ("EMFILE", True)
    neighbour_still_answers()


def test_a_cell_that_keeps_every_descriptor_still_ends(attacker: Sandbox, neighbour_still_answers: Check) -> None:
    code = "held = []\ntry:\n    while True: held.append(os.dup(0))\nexcept OSError: pass\nprint('full')"
    assert attacker.run_code(code, timeout=20).stdout == "full\n"
    neighbour_still_answers()
    assert attacker.run_code("6 * 7", timeout=20).value == "42"


def test_pipes_of_a_neighbour_still_work_when_one_sandbox_has_taken_all_their_memory(
    attacker: Sandbox, neighbour_still_answers: Check
) -> None:
    code = """
pipes = []
try:
    for _ in range(1500):
        pipes.append(os.pipe())
        try: fcntl.fcntl(pipes[-1][1], 1031, 1 << 20)
        except OSError: pass
except OSError: pass
len(pipes) > 100
"""
    assert value(attacker, code) is True
    neighbour_still_answers()
    with Sandbox() as another:
        assert another.run_code("echo from a new pipe | cat", language="bash", timeout=20).stdout == "from a new pipe\n"


def test_watches_of_a_neighbour_still_work_when_one_sandbox_has_taken_all_it_may(
    attacker: Sandbox, neighbour_still_answers: Check
) -> None:
    code = """
def watch():
    number = _c.inotify_init()
    if number < 0:
        raise OSError(ctypes.get_errno(), 'inotify_init')
    return number
taken = []
def take():
    while True:
        taken.append(watch())
(refusal(take), len(taken))
"""
    assert value(attacker, code) == ("EMFILE", 16)
    neighbour_still_answers()
    with Sandbox() as another:
        assert value(armed(another), "_c.inotify_init() >= 0") is True


def test_descriptors_on_their_way_through_sockets_leave_the_engine_its_room(
    attacker: Sandbox, neighbour_still_answers: Check
) -> None:
    """The kernel counts them for all processes of one uid; an engine that cannot send any cannot make a sandbox."""
    code = """
import array
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [0] * 253))]
pairs, sent, answer = [], 0, None
while answer is None:
    pairs.append(socket.socketpair())
    pairs[-1][0].setblocking(False)
    try:
        while True:
            pairs[-1][0].sendmsg([b'x'], rights); sent += 253
    except BlockingIOError: pass
    except OSError as error: answer = errno.errorcode[error.errno]
answer
"""
    assert value(attacker, code) == "ETOOMANYREFS"
    neighbour_still_answers()
    with Sandbox(memory_mib=1024) as another:  # of another kind, so that no pod is ready for it
        assert another.run_code("6 * 7", timeout=20).value == "42"


def test_printing_much_neither_blocks_nor_fills_the_engine(attacker: Sandbox, neighbour_still_answers: Check) -> None:
    result = attacker.run_code("block = b'x' * (1 << 20)\nfor _ in range(200): os.write(1, block)", timeout=60)
    assert ending(result) == ("kept", None, 0)
    assert result.truncated is not None
    assert result.truncated.stdout_bytes == 200 * MIB
    assert len(result.stdout) <= 10 * MIB + 200
    neighbour_still_answers()


def test_printing_more_than_the_disk_holds_loses_the_rest_and_nothing_else(neighbour_still_answers: Check) -> None:
    with Sandbox(disk_mib=16) as sandbox:
        result = sandbox.run_code(
            "import os\nblock = b'x' * (1 << 20)\nfor _ in range(64): os.write(1, block)", timeout=60
        )
        assert ending(result) == ("kept", None, 0)
        assert result.truncated is not None
        assert (result.truncated.stdout_bytes, result.truncated.stdout_path) == (64 * MIB, None)
        neighbour_still_answers()


def test_sandboxes_beyond_a_small_number_do_not_harm_the_first(neighbour_still_answers: Check) -> None:
    many = [Sandbox(memory_mib=64, disk_mib=16) for _ in range(40)]
    try:
        assert many[-1].run_code("6 * 7").value == "42"
        neighbour_still_answers()
    finally:
        for sandbox in many:
            sandbox.close()
    assert embedded.default_engine().running


def test_processors_are_shared_by_the_limit() -> None:
    """Half a processor: the kernel throttles, and counts it."""
    with Sandbox(cpus=0.5) as sandbox:
        used = value(
            sandbox,
            "import time\nbegun = time.monotonic()\nwhile time.monotonic() - begun < 1: pass\ntime.process_time()",
        )
        if "cpu" in controllers():
            assert used < 0.9


def test_terminals_of_a_neighbour_still_work_when_one_sandbox_has_taken_all_it_may(
    attacker: Sandbox, neighbour_still_answers: Check
) -> None:
    """The kernel has one number of them for all."""
    code = """
held = []
def hold():
    while True:
        held.append(os.openpty())
(refusal(hold), len(held))
"""
    assert value(attacker, code) == ("ENOSPC", 64)
    neighbour_still_answers()
    with Sandbox() as another:
        assert value(another, "import os; len(os.openpty())") == 2
