"""Threads at any point of their lives: locking, sleeping, waiting in the kernel, starting and ending, many of them."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from ramet import Sandbox
from tests.fork.relatives import Fork, all_the_same, at_once, run, value

_LOCKERS = """
import queue
sys.setswitchinterval(0.0005)
lock, relock, condition = threading.Lock(), threading.RLock(), threading.Condition()
line, progress, baton = queue.Queue(8), [0] * 16, 0
def locks(me):
    while True:
        with lock: progress[me] += 1
def relocks(me):
    while True:
        with relock:
            with relock: progress[me] += 1
def hands_over(me, mine):
    global baton
    while True:
        with condition:
            condition.wait_for(lambda: baton == mine, timeout=1)
            baton = (mine + 1) % 4
            condition.notify_all()
            progress[me] += 1
def puts(me):
    while True:
        line.put(me); progress[me] += 1
def gets(me):
    while True:
        line.get(); progress[me] += 1
work = [(locks, ()), (relocks, ()), (puts, ()), (gets, ())] * 3 + [(hands_over, (n,)) for n in range(4)]
for number, (target, more) in enumerate(work):
    threading.Thread(target=target, args=(number, *more), daemon=True).start()
def all_move():
    seen = list(progress)
    until(lambda: all(now > then for now, then in zip(progress, seen)), 60)
    return len(seen)
all_move()
"""


@pytest.mark.deep("load")
def test_sixteen_locking_threads_survive_fifty_forks(parent: Sandbox) -> None:
    """No child deadlocks: in each, all sixteen threads move on."""
    run(parent, _LOCKERS)
    for _ in range(10):
        with ExitStack() as stack:
            children = [stack.enter_context(child) for _ in range(5) for child in parent.fork(1)]
            assert at_once(children, "all_move()") == [16] * 5
    assert value(parent, "all_move()") == 16


def test_sixteen_locking_threads_move_in_all_children_of_one_fork(parent: Sandbox, fork: Fork) -> None:
    run(parent, _LOCKERS)
    children = fork(parent, 4)
    assert at_once([parent, *children], "all_move()") == [16] * 5


_WAITERS = """
import ctypes, errno, select, struct
c = ctypes.CDLL(None, use_errno=True)
class Seconds(ctypes.Structure): _fields_ = [('whole', ctypes.c_long), ('nano', ctypes.c_long)]
class Polled(ctypes.Structure): _fields_ = [(name, ctypes.c_int) for name in ('fd', 'events')]
ends, entered = {}, set()
def waits(name, action):
    def body():
        entered.add(name)
        try: ends[name] = action()
        except BaseException as error: ends[name] = repr(error)
    threading.Thread(target=body, name=name, daemon=True).start()
def raw(function, *arguments):
    # As C programs do: a call that was disturbed is made again.
    while (result := function(*arguments)) == -1 and ctypes.get_errno() == errno.EINTR: pass
    return result

for_read, for_read_w = os.pipe(); for_select, for_select_w = os.pipe(); for_poll, for_poll_w = os.pipe()
for_epoll, for_epoll_w = os.pipe(); epoll = select.epoll(); epoll.register(for_epoll, select.EPOLLIN)
for_recv, for_recv_w = socket.socketpair(); listening = socket.create_server(('127.0.0.1', 0))
event, lock, condition = threading.Event(), threading.Lock(), threading.Condition(); lock.acquire()
word, other_word = ctypes.c_int(0), ctypes.c_int(0)
half_a_second = ctypes.byref(Seconds(0, 500_000_000))
full, full_w = os.pipe()
os.set_blocking(full_w, False)
try:
    while True: os.write(full_w, bytes(4096))
except BlockingIOError: pass
os.set_blocking(full_w, True)
def in_condition():
    with condition: return condition.wait(600)
def in_accept():
    connection, _ = listening.accept()
    with connection: return connection.recv(9)
waits('sleep', lambda: time.sleep(0.5))
waits('raw nanosleep', lambda: raw(c.nanosleep, half_a_second, None))
waits('read', lambda: os.read(for_read, 9))
waits('select', lambda: len(select.select([for_select], [], [], 600)[0]))
waits('poll for ever', lambda: raw(c.poll, ctypes.byref(Polled(for_poll, 1)), 1, -1))
waits('poll until timeout', lambda: raw(c.poll, ctypes.byref(Polled(listening.fileno(), 2)), 1, 500))
waits('epoll', lambda: len(epoll.poll(600)))
waits('recv', lambda: for_recv.recv(9))
waits('accept', in_accept)
waits('write to a full pipe', lambda: os.write(full_w, b'more'))
waits('event', lambda: event.wait())
waits('event with timeout', lambda: event.wait(600))
waits('lock with timeout', lambda: lock.acquire(timeout=0.5))
waits('condition', in_condition)
waits('futex', lambda: raw(c.syscall, 202, ctypes.byref(word), 128, 0, None, 0, 0))
waits('futex until timeout', lambda: raw(c.syscall, 202, ctypes.byref(other_word), 128, 0, half_a_second, 0, 0))
until(lambda: len(entered) == 16)
def state(thread):
    with open(f'/proc/self/task/{thread.native_id}/stat') as file: return file.read().rpartition(')')[2].split()[0]
until(lambda: all(state(t) == 'S' for t in threading.enumerate() if t.name in entered and t.is_alive()))

def wake():
    for descriptor in (for_read_w, for_select_w, for_poll_w, for_epoll_w): os.write(descriptor, b'x')
    for_recv_w.send(b'x')
    with socket.create_connection(listening.getsockname()) as connection: connection.sendall(b'x')
    os.read(full, 65536)
    event.set()
    def woken():
        with condition: condition.notify_all()
        c.syscall(202, ctypes.byref(word), 129, 99, None, None, 0)
        return len(ends) == 16
    try: until(woken)
    except TimeoutError: raise TimeoutError(f'still waiting: {sorted(entered - set(ends))}')
    return ends
"""


def test_threads_that_wait_in_the_kernel_wait_on_and_are_woken(parent: Sandbox, fork: Fork) -> None:
    run(parent, _WAITERS)
    children = fork(parent, 2)
    woken = all_the_same([parent, *children], "wake()")
    assert woken == {
        "sleep": None,
        "raw nanosleep": 0,
        "read": b"x",
        "select": 1,
        "poll for ever": 1,
        "poll until timeout": 0,
        "epoll": 1,
        "recv": b"x",
        "accept": b"x",
        "write to a full pipe": 4,
        "event": True,
        "event with timeout": True,
        "lock with timeout": False,
        "condition": True,
        "futex": 0,
        "futex until timeout": -1,
    }


def test_threads_that_wait_are_forked_again_in_the_next_generation(parent: Sandbox, fork: Fork) -> None:
    """A thread frozen twice inside one and the same call."""
    run(parent, _WAITERS)
    (child,) = fork(parent)
    (grandchild,) = fork(child)
    (last,) = fork(grandchild)
    assert len(all_the_same([parent, child, grandchild, last], "wake()")) == 16


def test_threads_inside_c_code_go_on_where_they_were(parent: Sandbox, fork: Fork) -> None:
    run(
        parent,
        """
import hashlib, zlib
block = bytes(range(256)) * 8192
rounds, wrong = [0] * 3, []
def digests(me):
    expected = hashlib.sha256(block).hexdigest()
    while True:
        if hashlib.sha256(block).hexdigest() != expected: wrong.append('sha256')
        rounds[me] += 1
def packs(me):
    while True:
        if zlib.decompress(zlib.compress(block, 1)) != block: wrong.append('zlib')
        rounds[me] += 1
def sorts(me):
    import random
    own = random.Random(1); numbers = [own.random() for _ in range(20000)]; expected = sorted(numbers)
    while True:
        if sorted(numbers) != expected: wrong.append('sort')
        rounds[me] += 1
for number, target in enumerate((digests, packs, sorts)):
    threading.Thread(target=target, args=(number,), daemon=True).start()
def all_go_round():
    seen = list(rounds)
    until(lambda: all(now > then + 2 for now, then in zip(rounds, seen)))
    return wrong
all_go_round()
""",
    )
    for _ in range(3):
        children = fork(parent, 2)
        assert at_once([parent, *children], "all_go_round()") == [[], [], []]


def test_vector_registers_of_a_thread_in_the_middle_of_machine_code_are_there(parent: Sandbox, fork: Fork) -> None:
    """It loads two of them, waits for a word in memory without leaving its code, and then stores them."""
    run(
        parent,
        """
import ctypes, mmap
avx = ' avx ' in open('/proc/cpuinfo').read()
code = bytes.fromhex('440f103f')                              # movups xmm15, [rdi]
code += bytes.fromhex('c57c107720') if avx else b''           # vmovups ymm14, [rdi + 32]
code += bytes.fromhex('c7878400000001000000')                 # mov dword [rdi + 132], 1
code += bytes.fromhex('8b8780000000 85c0 74f6')               # wait: mov eax, [rdi + 128]; test eax, eax; jz wait
code += bytes.fromhex('440f117f40')                           # movups [rdi + 64], xmm15
code += bytes.fromhex('c57c117760 c5f877') if avx else b''    # vmovups [rdi + 96], ymm14; vzeroupper
page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
_ = page.write(code + bytes.fromhex('c3'))
enter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
memory = (ctypes.c_uint8 * 136)(*range(1, 17), *[0] * 16, *range(101, 133))
words = ctypes.cast(memory, ctypes.POINTER(ctypes.c_uint32))
thread = threading.Thread(target=enter, args=(ctypes.addressof(memory),), daemon=True); thread.start()
_ = until(lambda: words[33])
""",
    )
    children = fork(parent, 2)
    stored = all_the_same([parent, *children], "words[32] = 1; thread.join(20); (avx, bytes(memory)[64:128])")
    assert stored == (stored[0], bytes(range(1, 17)) + bytes(16) + (bytes(range(101, 133)) if stored[0] else bytes(32)))


def test_registers_of_a_computing_thread_are_exact(parent: Sandbox, fork: Fork) -> None:
    """Floating point and vector state: a sum that is computed over and over must never come out different."""
    if not parent.run_code("import numpy as np", timeout=60).ok:
        pytest.skip("numpy is not installed")
    run(
        parent,
        """
data = np.random.default_rng(7).random(200_000)
expected = float((np.sqrt(data) * 1.5 + data).sum())
sums, wrong = 0, []
def computes():
    global sums
    while True:
        found = float((np.sqrt(data) * 1.5 + data).sum())
        if found != expected: wrong.append(found)
        sums += 1
threading.Thread(target=computes, daemon=True).start()
def checked():
    seen = sums
    until(lambda: sums > seen + 20)
    return wrong
checked()
""",
    )
    children = [child for _ in range(5) for child in fork(parent, 1)]
    assert at_once([parent, *children], "checked()") == [[]] * 6


def test_sixty_four_threads_are_all_there(parent: Sandbox, fork: Fork) -> None:
    run(
        parent,
        """
import queue
asked, answered = queue.Queue(), queue.Queue()
seats = threading.Barrier(64)
def answers():
    while True:
        number = asked.get()
        seats.wait(30)
        answered.put((threading.get_native_id(), number * number))
crowd = [threading.Thread(target=answers, daemon=True) for _ in range(64)]
[t.start() for t in crowd]
def ask_all():
    for number in range(64): asked.put(number)
    found = [answered.get(timeout=30) for _ in range(64)]
    return len({tid for tid, _ in found}), sum(square for _, square in found)
ask_all()
""",
    )
    children = fork(parent, 2)
    assert all_the_same([parent, *children], "ask_all()") == (64, 85344)


def test_threads_end_and_start_in_the_child_as_anywhere(parent: Sandbox, fork: Fork) -> None:
    run(
        parent,
        """
gate = threading.Event()
old = [threading.Thread(target=gate.wait) for _ in range(5)]
[t.start() for t in old]
""",
    )
    children = fork(parent, 2)
    code = """
gate.set()
[t.join(20) for t in old]
new = [threading.Thread(target=gate.wait) for _ in range(5)]
[t.start() for t in new]; [t.join(20) for t in new]
any(t.is_alive() for t in old + new)
"""
    assert all_the_same([parent, *children], code) is False


def test_a_deadlock_in_the_parent_is_a_deadlock_in_the_child_and_no_more(parent: Sandbox, fork: Fork) -> None:
    run(
        parent,
        """
one, two, both = threading.Lock(), threading.Lock(), threading.Barrier(2)
def take(first, second):
    with first:
        both.wait(20)
        with second: pass
stuck = [threading.Thread(target=take, args=pair, daemon=True) for pair in ((one, two), (two, one))]
[t.start() for t in stuck]
until(lambda: both.n_waiting == 0 and one.locked() and two.locked())
""",
    )
    (child,) = fork(parent)
    assert all_the_same([parent, child], "([t.is_alive() for t in stuck], 6 * 7)") == ([True, True], 42)
