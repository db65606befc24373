"""Relatives share a past and nothing else: none can see, signal, trace, write to or starve another."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ramet import Sandbox
from tests.fork.relatives import Fork, all_the_same, at_once, one_after_another, run, value

_PROCESSES = "sorted(int(name) for name in os.listdir('/proc') if name.isdigit())"


def witness(family: list[Sandbox]) -> Callable[[], None]:
    """Gives each a secret; the function tells whether all still have it."""
    for number, each in enumerate(family):
        run(each, f"secret = {number}")

    def still_there() -> None:
        assert at_once(family, "secret") == list(range(len(family)))

    return still_there


def test_no_relative_is_seen_among_ones_processes(parent: Sandbox, fork: Fork) -> None:
    run(parent, "sleeper = subprocess.Popen(['sleep', '1000'])")
    children = fork(parent, 2)
    (grandchild,) = fork(children[0])
    for each in (parent, *children, grandchild):
        stats = value(
            each, f"[open(f'/proc/{{pid}}/stat').read() for pid in {_PROCESSES} if pid not in (1, os.getpid())]"
        )
        # In a child the killed sleeper is a zombie until somebody asks for it.
        alive = [stat for stat in stats if stat.rpartition(")")[2].split()[0] != "Z"]
        assert [stat.split()[1] for stat in alive] == (["(sleep)"] if each is parent else [])
        assert len(stats) <= 1
    assert one_after_another([parent, *children], "sleeper.poll()") == [None, -9, -9]


@pytest.mark.promise("wall-relatives")
@pytest.mark.parametrize(
    "attack",
    [
        "pkill -9 python; true",
        "kill -9 -1",
        "for pid in $(seq 2 400); do kill -9 $pid 2>/dev/null; done; true",
    ],
)
def test_killing_everybody_reaches_no_relative(
    attack: str, parent: Sandbox, fork: Fork, neighbour_still_answers: Callable[[], None]
) -> None:
    children = fork(parent, 2)
    (grandchild,) = fork(children[0])
    family = [parent, children[1], grandchild]
    still_there = witness(family)
    killer = children[0]
    killer.run_code(attack, language="bash", timeout=30)
    killer.run_code("import os, signal; os.kill(-1, signal.SIGKILL)", timeout=30)
    killer.run_code("import os, signal; os.kill(0, signal.SIGKILL)", timeout=30)
    still_there()
    neighbour_still_answers()
    assert killer.run_code("6 * 7", timeout=30).value == "42"


def test_a_parent_that_kills_everybody_reaches_no_child(parent: Sandbox, fork: Fork) -> None:
    children = fork(parent, 2)
    still_there = witness(children)
    parent.run_code("import os, signal; os.kill(-1, signal.SIGKILL)", timeout=30)
    still_there()
    assert parent.run_code("6 * 7", timeout=30).value == "42"


def test_pids_of_relatives_do_not_exist_for_one_another(parent: Sandbox, fork: Fork) -> None:
    children = fork(parent, 2)
    pids = at_once([parent, *children], "os.getpid()")
    for own, each in zip(pids, [parent, *children], strict=True):
        for other in set(pids) - {own}:
            assert value(each, f"refusal(os.kill, {other}, 0)") == "ESRCH"
            assert value(each, f"refusal(os.pidfd_open, {other})") == "ESRCH"
            assert value(each, f"refusal(open, '/proc/{other}/mem')") == "ENOENT"


def test_nobody_traces_or_reads_the_memory_of_a_relative(parent: Sandbox, fork: Fork) -> None:
    run(parent, "import ctypes\nc = ctypes.CDLL(None, use_errno=True)\nkept = ctypes.create_string_buffer(b'before')")
    children = fork(parent, 2)
    assert all_the_same([parent, *children], "[c.ptrace(16, pid, 0, 0) for pid in range(1, 50)].count(-1)") == 49
    run(children[0], "kept.value = b'child'")
    assert one_after_another([parent, *children], "kept.value") == [b"before", b"child", b"before"]


def test_writes_to_memory_through_proc_stay_in_ones_own_copy(parent: Sandbox, fork: Fork) -> None:
    """`/proc/self/mem` writes through protections: it must break the sharing all the same."""
    run(parent, "import ctypes\nkept = ctypes.create_string_buffer(b'before', 8192); place = ctypes.addressof(kept)")
    children = fork(parent, 2)
    run(children[0], "with open('/proc/self/mem', 'r+b', buffering=0) as m: _ = m.seek(place), m.write(b'CHILD!')")
    run(parent, "with open('/proc/self/mem', 'r+b', buffering=0) as m: _ = m.seek(place), m.write(b'PARENT')")
    assert one_after_another([parent, *children], "kept.value") == [b"PARENT", b"CHILD!", b"before"]


def test_nothing_written_to_a_descriptor_shows_up_in_a_relative(parent: Sandbox, fork: Fork) -> None:
    run(
        parent,
        """
reading, writing = os.pipe(); left, right = socket.socketpair(); counter = os.eventfd(0, os.EFD_NONBLOCK)
fifo_path = '/tmp/fifo'; os.mkfifo(fifo_path); fifo = os.open(fifo_path, os.O_RDWR | os.O_NONBLOCK)
for descriptor in (reading, left.fileno(), right.fileno()): os.set_blocking(descriptor, False)
shared_file = open('/root/shared', 'w+b', buffering=0)
""",
    )
    children = fork(parent, 2)
    (grandchild,) = fork(children[0])
    run(
        children[0],
        """
_ = os.write(writing, b'mine'); _ = left.send(b'mine'); _ = right.send(b'mine'); os.eventfd_write(counter, 7)
_ = os.write(fifo, b'mine'); _ = shared_file.write(b'mine')
""",
    )
    look = """
(refusal(os.read, reading, 9), refusal(left.recv, 9), refusal(right.recv, 9), refusal(os.eventfd_read, counter),
 refusal(os.read, fifo, 9), os.pread(shared_file.fileno(), 9, 0), os.path.getsize('/root/shared'))
"""
    empty = ("EAGAIN",) * 5 + (b"", 0)
    assert one_after_another([parent, children[1], grandchild], look) == [empty] * 3
    assert value(children[0], look) == (b"mine", b"mine", b"mine", 7, b"mine", b"mine", 4)


def test_networks_are_apart(parent: Sandbox, fork: Fork) -> None:
    run(
        parent,
        "server = socket.create_server(('127.0.0.1', 0)); server.settimeout(0.2); port = server.getsockname()[1]",
    )
    children = fork(parent, 2)
    run(children[0], "server.close()")
    refused = "refusal(socket.create_connection, ('127.0.0.1', port), 5)"
    assert value(children[0], refused) == "ECONNREFUSED", "the parent still listens there, but elsewhere"
    assert value(children[1], "client = socket.create_connection(('127.0.0.1', port), 5); True") is True
    nobody = """
try: server.accept(); came = True
except TimeoutError: came = False
came
"""
    assert value(parent, nobody) is False


def test_files_and_shared_memory_of_one_never_appear_in_another(parent: Sandbox, fork: Fork) -> None:
    children = fork(parent, 2)
    family = [parent, *children]
    for number, each in enumerate(family):
        run(
            each,
            f"for folder in ('/root', '/tmp', '/dev/shm', '/var/tmp'): open(f'{{folder}}/of-{number}', 'w').close()",
        )
    look = (
        "[sorted(n for n in os.listdir(f) if n.startswith('of-')) for f in ('/root', '/tmp', '/dev/shm', '/var/tmp')]"
    )
    assert one_after_another(family, look) == [[[f"of-{number}"]] * 4 for number in range(3)]


def test_abstract_sockets_and_ipc_are_ones_own(parent: Sandbox, fork: Fork) -> None:
    children = fork(parent, 2)
    code = """
import ctypes
c = ctypes.CDLL(None, use_errno=True)
door = socket.socket(socket.AF_UNIX); door.bind(b'\\0door'); door.listen()
(c.shmget(77, 4096, 0o3600) >= 0, c.semget(77, 1, 0o3600) >= 0)
"""
    assert all_the_same([parent, *children], code) == (True, True), "IPC_CREAT | IPC_EXCL worked for each"


def test_each_relative_has_namespaces_of_its_own(parent: Sandbox, fork: Fork) -> None:
    children = fork(parent, 2)
    (grandchild,) = fork(children[0])
    family = [parent, *children, grandchild]
    for kind in ("user", "pid", "mnt", "net", "ipc", "uts", "cgroup"):
        links = at_once(family, f"os.readlink('/proc/self/ns/{kind}')")
        assert len(set(links)) == len(family), f"{kind}: {links}"


def test_a_child_has_the_walls_of_its_parent(parent: Sandbox, fork: Fork) -> None:
    (child,) = fork(parent)
    (grandchild,) = fork(child)
    look = """
def walls(thread):
    with open(f'/proc/self/task/{thread}/status') as file:
        lines = {line.partition(':')[0]: line.partition(':')[2].strip() for line in file}
    return [lines[name] for name in ('CapInh', 'CapPrm', 'CapEff', 'CapAmb', 'CapBnd', 'NoNewPrivs', 'Seccomp',
                                     'Seccomp_filters', 'Uid', 'Gid', 'TracerPid')]
gate = threading.Event(); extra = threading.Thread(target=gate.wait, daemon=True); extra.start()
sorted({tuple(walls(thread)) for thread in os.listdir('/proc/self/task')})
"""
    seen = all_the_same([parent, child, grandchild], look)
    assert len(seen) == 1, "all threads are alike"
    assert seen[0][:4] == ("0000000000000000",) * 4
    assert seen[0][5:7] == ("1", "2")
    assert seen[0][10] == "0"
    assert parent.info().walls == child.info().walls
    assert parent.info().limits == child.info().limits


def test_threads_that_crossed_a_fork_have_no_capability_and_the_filter(parent: Sandbox, fork: Fork) -> None:
    run(
        parent,
        """
import ctypes
asked, found = threading.Semaphore(0), []
def looks():
    c = ctypes.CDLL(None, use_errno=True)
    while True:
        asked.acquire()
        with open('/proc/thread-self/status') as file: text = file.read()
        wanted = ('CapPrm', 'CapEff', 'CapAmb', 'Seccomp:', 'NoNewPrivs')
        lines = [line.split()[1] for line in text.splitlines() if line.startswith(wanted)]
        found.append((lines, c.unshare(0x10000000), c.setns(0, 0), c.mount(b'x', b'/tmp', b'tmpfs', 0, None)))
threading.Thread(target=looks, daemon=True).start()
""",
    )
    children = fork(parent, 2)
    seen = all_the_same([parent, *children], "asked.release()\nuntil(lambda: found)")
    assert seen == [(["0" * 16] * 3 + ["1", "2"], -1, -1, -1)]


def test_a_child_has_a_control_group_of_its_own(memory_is_counted: None, parent: Sandbox, fork: Fork) -> None:
    children = fork(parent, 2)
    run(children[0], "ballast = bytearray(80 << 20)")
    used = [each.info().usage["memory_bytes"] for each in (parent, *children)]
    assert used[1] - used[2] > 64 << 20, used
    assert used[0] < 80 << 20, used


def test_descriptors_of_the_engine_and_of_relatives_are_not_in_a_child(parent: Sandbox, fork: Fork) -> None:
    look = """
def listed():
    return sorted((int(n), os.readlink(f'/proc/self/fd/{n}').split('[')[0]) for n in os.listdir('/proc/self/fd')
                  if os.path.exists(f'/proc/self/fd/{n}') or os.path.islink(f'/proc/self/fd/{n}'))
[(number, link) for number, link in listed() if not link.startswith('/proc/')]
"""
    run(parent, "kept = os.open('/root', os.O_RDONLY)")
    children = fork(parent, 2)
    (grandchild,) = fork(children[0])
    assert all_the_same([parent, *children, grandchild], look)
