"""What a fork carries over of descriptors, shared memory and files: docs/fork.md, row by row."""

from __future__ import annotations

import pytest

from ramet import Sandbox
from tests.fork.relatives import Fork, all_the_same, one_after_another, run, value

# --- descriptors -----------------------------------------------------------------------------------------------------


@pytest.mark.promise("fork-keeps-open-files")
def test_open_files_keep_number_flags_and_offset_and_then_move_alone(parent: Sandbox, fork: Fork) -> None:
    run(
        parent,
        """
import fcntl
with open('/root/book', 'w') as file: _ = file.write('abcdefghij' * 100)
reader = open('/root/book', 'rb', buffering=0); _ = reader.read(3)
appender = os.open('/root/log', os.O_WRONLY | os.O_APPEND | os.O_CREAT)
twin = os.dup(reader.fileno())
os.set_inheritable(twin, True)
""",
    )
    children = fork(parent, 2)
    look = """
(reader.fileno(), twin, reader.tell(), os.lseek(twin, 0, 1), os.get_inheritable(reader.fileno()),
 os.get_inheritable(twin), bool(fcntl.fcntl(appender, fcntl.F_GETFL) & os.O_APPEND))
"""
    before = value(parent, look)
    assert before[2:] == (3, 3, False, True, True)
    assert all_the_same([parent, *children], look) == before
    assert value(children[0], "(reader.read(4), os.lseek(twin, 0, 1))") == (b"defg", 7), "duplicates move together"
    assert one_after_another([parent, children[1]], "reader.tell()") == [3, 3]
    for number, each in enumerate([parent, *children]):
        run(each, f"_ = os.write(appender, b'{number}')")
    assert one_after_another([parent, *children], "open('/root/log').read()") == ["0", "1", "2"]


def test_a_buffered_file_is_flushed_by_each_into_its_own_copy(parent: Sandbox, fork: Fork) -> None:
    run(parent, "draft = open('/root/draft', 'w'); _ = draft.write('begun, ')")
    children = fork(parent, 2)
    for name, each in zip(("parent", "first", "second"), [parent, *children], strict=True):
        run(each, f"_ = draft.write('{name}'); draft.close()")
    texts = one_after_another([parent, *children], "open('/root/draft').read()")
    assert texts == ["begun, parent", "begun, first", "begun, second"]


def test_deleted_files_and_memfds_become_private_copies(parent: Sandbox, fork: Fork) -> None:
    run(
        parent,
        """
import tempfile
nameless = tempfile.TemporaryFile(); _ = nameless.write(b'nameless'); nameless.flush()
deleted = open('/root/deleted', 'w+b', buffering=0); _ = deleted.write(b'deleted'); os.unlink('/root/deleted')
try: memory = os.memfd_create('mine')
except OSError: memory = os.open('/dev/shm', os.O_TMPFILE | os.O_RDWR)  # there are none where nobody counts them
_ = os.write(memory, b'memory')
""",
    )
    children = fork(parent, 2)
    look = "(os.pread(nameless.fileno(), 99, 0), os.pread(deleted.fileno(), 99, 0), os.pread(memory, 99, 0))"
    assert all_the_same([parent, *children], look) == (b"nameless", b"deleted", b"memory")
    run(children[0], "[os.pwrite(n, b'CHILD', 0) for n in (nameless.fileno(), deleted.fileno(), memory)]")
    assert all_the_same([parent, children[1]], look) == (b"nameless", b"deleted", b"memory")
    assert value(children[0], look) == (b"CHILDess", b"CHILDed", b"CHILDy")
    assert value(children[0], "os.path.exists('/root/deleted')") is False


@pytest.mark.promise("fork-keeps-pipes")
def test_pipes_and_pairs_keep_what_was_written_and_nobody_reads_anothers(parent: Sandbox, fork: Fork) -> None:
    run(
        parent,
        """
reading, writing = os.pipe(); _ = os.write(writing, b'in the pipe')
left, right = socket.socketpair(); _ = left.send(b'in the pair')
""",
    )
    children = fork(parent, 2)
    run(parent, "_ = os.write(writing, b', parent'); _ = left.send(b', parent')")
    look = "(os.read(reading, 99), right.recv(99))"
    assert one_after_another(children, look) == [(b"in the pipe", b"in the pair")] * 2
    assert value(parent, look) == (b"in the pipe, parent", b"in the pair, parent")
    both_ways = "_ = right.send(b'back'); _ = os.write(writing, b'again')\n(left.recv(9), os.read(reading, 9))"
    assert all_the_same([parent, *children], both_ways) == (b"back", b"again")
    assert all_the_same([parent, *children], "os.close(writing)\nos.read(reading, 9)") == b""


def test_eventfds_timerfds_and_epolls_keep_their_state(parent: Sandbox, fork: Fork) -> None:
    run(
        parent,
        """
import select
TIMERFD = """
        + repr(_TIMERFD)
        + """
exec(TIMERFD)
counter = os.eventfd(5)
timer = make_timer(0.2)
far_timer = make_timer(3600)
quiet, bell = os.pipe()
waiting = select.epoll()
waiting.register(quiet, select.EPOLLIN)
waiting.register(timer, select.EPOLLIN)
waiting.register(far_timer, select.EPOLLIN)
""",
    )
    children = fork(parent, 2)
    assert all_the_same([parent, *children], "os.eventfd_read(counter)") == 5
    look = "until(lambda: waiting.poll(0)) == [(timer, select.EPOLLIN)]"
    assert all_the_same([parent, *children], look) is True
    assert all_the_same([parent, *children], "int.from_bytes(os.read(timer, 8), 'little') > 0") is True
    run(children[0], "_ = os.write(bell, b'x')")
    assert value(children[0], "waiting.poll(5) == [(quiet, select.EPOLLIN)]") is True
    assert one_after_another([parent, children[1]], "waiting.poll(0)") == [[], []]


# Python has timerfds from 3.13 on only; the calls themselves are older.
_TIMERFD = """
import ctypes
def make_timer(seconds):
    c = ctypes.CDLL(None, use_errno=True)
    descriptor = c.timerfd_create(1, 0o2000000)
    whole, rest = int(seconds), int(seconds % 1 * 1e9)
    assert c.timerfd_settime(descriptor, 0, (ctypes.c_long * 4)(0, 0, whole, rest), None) == 0
    return descriptor
"""


@pytest.mark.promise("fork-keeps-listeners")
def test_listening_sockets_listen_again_at_the_same_address(parent: Sandbox, fork: Fork) -> None:
    run(
        parent,
        """
tcp = socket.create_server(('127.0.0.1', 0)); tcp.settimeout(20)
unix = socket.socket(socket.AF_UNIX); unix.bind('/tmp/door'); unix.listen(); unix.settimeout(20)
abstract = socket.socket(socket.AF_UNIX); abstract.bind(b'\\0mine'); abstract.listen(); abstract.settimeout(20)
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); udp.bind(('127.0.0.1', 0)); udp.settimeout(20)
def through(server):
    client = socket.socket(server.family); client.settimeout(20); client.connect(server.getsockname())
    served, _ = server.accept()
    with client, served:
        client.sendall(str(os.getpid()).encode())
        return int(served.recv(99)) == os.getpid()
def by_datagram():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.sendto(b'hello', udp.getsockname())
        return udp.recv(99)
""",
    )
    children = fork(parent, 2)
    look = "(tcp.getsockname(), udp.getsockname(), [through(s) for s in (tcp, unix, abstract)], by_datagram())"
    assert all_the_same([parent, *children], look)[2:] == ([True, True, True], b"hello")


def test_a_connection_inside_the_sandbox_goes_on_in_the_child(parent: Sandbox, fork: Fork) -> None:
    run(
        parent,
        """
server = socket.create_server(('127.0.0.1', 0))
client = socket.create_connection(server.getsockname()); served, _ = server.accept()
client.settimeout(20); served.settimeout(20)
client.sendall(b'unread')
def echo():
    client.sendall(b'-ping'); seen = b''
    while len(seen) < 11: seen += served.recv(99)
    served.sendall(b'pong')
    return seen, client.recv(99)
""",
    )
    children = fork(parent, 2)
    assert all_the_same([parent, *children], "echo()") == (b"unread-ping", b"pong")


@pytest.mark.promise("fork-closes-connections")
def test_a_connection_to_another_process_is_closed_in_the_child_and_gives_no_strangers_bytes(
    parent: Sandbox, fork: Fork
) -> None:
    run(
        parent,
        """
mine, theirs = socket.socketpair()
other = subprocess.Popen(['cat'], stdin=theirs, stdout=theirs); theirs.close()
mine.settimeout(20)
""",
    )
    children = fork(parent, 2)
    assert one_after_another(children, "refusal(mine.recv, 9) in (b'', 'ECONNRESET')") == [True, True]
    assert value(parent, "mine.sendall(b'echo')\nmine.recv(9)") == b"echo"
    run(parent, "mine.close(); other.wait(20)")


# --- memory and files ------------------------------------------------------------------------------------------------


@pytest.mark.promise("fork-keeps-shared-memory")
def test_shared_memory_becomes_a_private_copy_of_each(parent: Sandbox, fork: Fork) -> None:
    run(
        parent,
        """
import mmap
from multiprocessing import shared_memory
anonymous = mmap.mmap(-1, 8192); anonymous[:6] = b'before'
with open('/root/mapped', 'wb') as file: _ = file.write(b'before' + bytes(8186))
mapped_file = open('/root/mapped', 'r+b'); mapped = mmap.mmap(mapped_file.fileno(), 8192)
block = shared_memory.SharedMemory('block', create=True, size=64); block.buf[:6] = b'before'
""",
    )
    children = fork(parent, 2)
    look = "(anonymous[:6], mapped[:6], bytes(block.buf[:6]), open('/root/mapped', 'rb').read(6))"
    assert all_the_same([parent, *children], look) == (b"before",) * 4
    run(children[0], "anonymous[:6] = b'child1'; mapped[:6] = b'child1'; block.buf[:6] = b'child1'")
    run(parent, "anonymous[:6] = b'parent'; mapped[:6] = b'parent'; block.buf[:6] = b'parent'")
    expected = [(b"parent",) * 4, (b"child1",) * 4, (b"before",) * 4]
    assert one_after_another([parent, *children], look) == expected
    attach = "again = shared_memory.SharedMemory('block'); seen = bytes(again.buf[:6]); again.close(); seen"
    assert one_after_another([parent, *children], attach) == [b"parent", b"child1", b"before"]


def test_shared_memory_is_still_shared_with_the_childs_own_processes(parent: Sandbox, fork: Fork) -> None:
    run(parent, "import mmap\nshared = mmap.mmap(-1, 4096)")
    (child,) = fork(parent)
    code = """
pid = os.fork()
if pid == 0:
    shared[:4] = b'told'
    os._exit(0)
_ = os.waitpid(pid, 0)
shared[:4]
"""
    assert all_the_same([parent, child], code) == b"told"


@pytest.mark.promise("fork-keeps-files")
def test_files_are_the_same_and_then_private(parent: Sandbox, fork: Fork) -> None:
    run(
        parent,
        """
os.makedirs('/root/tree/deep'); os.symlink('deep', '/root/tree/link')
for path, text in (('/root/tree/deep/a', 'a'), ('/root/tree/b', 'b'), ('/tmp/c', 'c'), ('/dev/shm/d', 'd')):
    with open(path, 'w') as file: _ = file.write(text)
os.chmod('/root/tree/b', 0o640); os.link('/root/tree/b', '/root/tree/b2'); os.utime('/root/tree/b', (1, 1))
os.unlink('/etc/hostname'); os.mkfifo('/tmp/fifo')
os.setxattr('/root/tree/b', 'user.mine', b'yes')
""",
    )
    children = fork(parent, 2)
    look = """
status = os.stat('/root/tree/b')
(open('/root/tree/link/a').read(), open('/root/tree/b').read(), open('/tmp/c').read(), open('/dev/shm/d').read(),
 oct(status.st_mode), status.st_nlink, status.st_mtime, os.path.samefile('/root/tree/b', '/root/tree/b2'),
 os.readlink('/root/tree/link'), os.path.exists('/etc/hostname'), os.getxattr('/root/tree/b', 'user.mine'))
"""
    expected = ("a", "b", "c", "d", "0o100640", 2, 1.0, True, "deep", False, b"yes")
    assert all_the_same([parent, *children], look) == expected
    run(children[0], "import shutil; shutil.rmtree('/root/tree'); os.unlink('/dev/shm/d')")
    run(parent, "_ = open('/tmp/c', 'w').write('parent')")
    assert value(children[1], look) == expected
    assert value(children[0], "(os.path.exists('/root/tree'), open('/tmp/c').read())") == (False, "c")
    assert parent.download("/root/tree/b") == b"b"
    assert children[1].download("/root/tree/b") == b"b"


@pytest.mark.deep("load")
def test_large_files_and_many_files_are_all_there(parent: Sandbox, fork: Fork) -> None:
    """More than is copied into each child: they share one sealed layer."""
    run(
        parent,
        """
import hashlib
os.mkdir('/root/many')
for number in range(2000):
    with open(f'/root/many/{number}', 'w') as file: _ = file.write(str(number) * 20)
with open('/root/large', 'wb') as file:
    for number in range(48): _ = file.write(number.to_bytes(4, 'little') * 262144)
def digest():
    whole = hashlib.sha256()
    for name in ['/root/large', *(f'/root/many/{n}' for n in range(2000) if os.path.exists(f'/root/many/{n}'))]:
        with open(name, 'rb') as file: whole.update(file.read())
    return whole.hexdigest()
""",
    )
    before = value(parent, "digest()")
    children = fork(parent, 2)
    assert all_the_same([parent, *children], "digest()") == before
    run(children[0], "os.unlink('/root/many/7')\nwith open('/root/large', 'r+b') as file: _ = file.write(b'x')")
    assert value(children[0], "digest()") != before
    assert all_the_same([parent, children[1]], "digest()") == before
    (grandchild,) = fork(children[0])
    assert value(grandchild, "digest()") == value(children[0], "digest()")
