"""Sandboxes that fight back while they are forked: each fork is right or fails with ForkFailed, and all others go on.

What these do was done to an early prototype, which hung, died, or ran the attacker's code outside the walls.
"""

from __future__ import annotations

import pytest

from ramet import ForkFailed, Sandbox
from tests.fork.attacks import Check, armed, assert_harms_nobody
from tests.fork.relatives import Fork, at_once, run, value

# Another process of the sandbox, which is not stopped with the REPL's threads, writes to its memory without pause.
_REWRITER = """
script = '''
import os, struct, sys
pid, place, payload, rounds = int(sys.argv[1]), int(sys.argv[2]), bytes.fromhex(sys.argv[3]), 0
memory = os.open(f'/proc/{pid}/mem', os.O_RDWR)
original = os.pread(memory, len(payload), place)
os.write(1, b'ready')
while True:
    os.pwrite(memory, payload, place)
    for _ in range(20): pass
    os.pwrite(memory, original, place)
'''
def rewrite(place, payload):
    attacker = subprocess.Popen(
        [sys.executable, '-c', script, str(os.getpid()), str(place), payload.hex()], stdout=subprocess.PIPE)
    assert attacker.stdout.read(5) == b'ready'
    return attacker

import ctypes, struct
c = ctypes.CDLL(None, use_errno=True)
c.mmap.restype = ctypes.c_void_p
c.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
code = c.mmap(None, 4096, 7, 0x22, -1, 0)
def calls_in(name):
    # Where a mapping holds the two bytes of the `syscall` instruction.
    for line in open('/proc/self/maps'):
        if name in line and ' r-xp ' in line:
            low, high = (int(end, 16) for end in line.split()[0].split('-'))
            text = ctypes.string_at(low, high - low)
            found = text.find(b'\\x0f\\x05')
            while found >= 0:
                yield low + found
                found = text.find(b'\\x0f\\x05', found + 2)
def jump_to(target): return bytes.fromhex('49bb') + struct.pack('<Q', target) + bytes.fromhex('41ffe3')

# clone(CLONE_UNTRACED | SIGCHLD) by whoever runs this: a task that nobody traces, which then waits for ever.
# mov eax, 56; mov edi, flags; four zeroes; syscall; again: mov eax, 34 (pause); syscall; jmp again
loose = bytes.fromhex('b838000000' 'bf11008000' '31f6' '31d2' '4d31d2' '4d31c0' '0f05' 'b822000000' '0f05' 'ebf7')
ctypes.memmove(code, loose, len(loose))
"""

_PAYLOADS = {
    "a jump to code that makes a loose task": "jump_to(code)",
    "an endless loop": "bytes.fromhex('ebfe')",
    "a halt": "bytes.fromhex('f4f4')",
    "nothing at all": "bytes.fromhex('9090')",
}


_FIRST, *_OTHERS = _PAYLOADS


@pytest.mark.promise("wall-hostile-forks")
@pytest.mark.parametrize(
    "payload", [_FIRST, *(pytest.param(one, marks=pytest.mark.deep("attacks")) for one in _OTHERS)]
)
def test_system_calls_rewritten_through_proc_mem(payload: str, neighbour_still_answers: Check) -> None:
    """The kernel's page of quick calls holds a `syscall` that the REPL itself hardly uses: the one to take over."""
    attack = (
        f"{_REWRITER}\nattackers = [rewrite(place, {_PAYLOADS[payload]}) for place in list(calls_in('[vdso]'))[:2]]"
    )
    assert_harms_nobody(attack, 8, neighbour_still_answers, "[a.kill() for a in attackers]", poisoned=True)


@pytest.mark.deep("restarts")
def test_a_page_shared_with_another_process_where_the_engine_works(neighbour_still_answers: Check) -> None:
    """Whatever the engine puts there, an accomplice would read and change between its check and its use."""
    attack = """
import ctypes, mmap
c = ctypes.CDLL(None, use_errno=True)
c.mmap.restype = ctypes.c_void_p
c.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
size = 64 << 20
try: memory = os.memfd_create('shared')
except OSError: memory = os.open('/dev/shm', os.O_TMPFILE | os.O_RDWR)  # there are none where nobody counts them
os.ftruncate(memory, size)
# MAP_SHARED | MAP_FIXED, readable, writable and executable, at the engine's own favourite place and around it.
assert c.mmap(0x1fa000000000, size, 7, 0x11, memory, 0) == 0x1fa000000000
script = '''
import mmap, os, sys
page = mmap.mmap(int(sys.argv[1]), 1 << 20)
os.write(1, b'ready')
while True:
    for place in range(0, 1 << 20, 64): page[place:place + 8] = bytes(a ^ 0x80 for a in page[place:place + 8])
'''
attacker = subprocess.Popen([sys.executable, '-c', script, str(memory)], pass_fds=[memory], stdout=subprocess.PIPE)
assert attacker.stdout.read(5) == b'ready'
"""
    assert_harms_nobody(attack, 5, neighbour_still_answers, "attacker.kill()")


def test_shared_memory_that_looks_like_what_the_engine_left_there_is_refused(parent: Sandbox, fork: Fork) -> None:
    """What the engine put there for the thaw is there again, but shared: the core takes it for its own."""
    code = """
import ctypes
c = ctypes.CDLL(None, use_errno=True)
c.mmap.restype = ctypes.c_void_p
c.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
places = [line.split()[0].split('-') for line in open('/proc/self/maps') if line.startswith('1fa0')]
start, end = int(places[0][0], 16), int(places[-1][1], 16)
memory = os.open('/dev/shm/shared', os.O_RDWR | os.O_CREAT); _ = os.write(memory, ctypes.string_at(start, end - start))
assert c.mmap(start, end - start, 7, 0x11, memory, 0) == start
"""
    run(parent, code)
    with pytest.raises(ForkFailed, match="it shares memory at .*, which is reserved for forks"):
        fork(parent)
    assert value(parent, "6 * 7") == 42


def test_a_private_page_of_the_sandbox_where_the_engine_works_is_kept(parent: Sandbox, fork: Fork) -> None:
    code = """
import ctypes
c = ctypes.CDLL(None, use_errno=True)
c.mmap.restype = ctypes.c_void_p
c.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
assert c.mmap(0x1fa000000000, 1 << 20, 3, 0x32, -1, 0) == 0x1fa000000000
ctypes.memset(0x1fa000000000, 0x41, 1 << 20)
"""
    run(parent, code)
    try:
        children = fork(parent, 2)
    except ForkFailed:
        return
    assert at_once([parent, *children], "ctypes.string_at(0x1fa000000000, 1 << 20) == b'A' * (1 << 20)") == [True] * 3


_CHURN = """
def churns():
    while True:
        one = threading.Thread(target=lambda: None); one.start(); one.join()
for _ in range(3): threading.Thread(target=churns, daemon=True).start()
"""
_PROCESS_CHURN = """
def churns():
    while True: subprocess.run(['true'])
for _ in range(2): threading.Thread(target=churns, daemon=True).start()
"""
_SIGNAL_STORM = """
storms = 0
def count(number, frame):
    global storms
    storms += 1
_ = signal.signal(signal.SIGUSR1, count)
script = f'import os\\nwhile True: os.kill({os.getpid()}, 10)'
attacker = subprocess.Popen([sys.executable, '-c', script])
_ = until(lambda: storms)
"""
_STOP_AND_GO = """
script = f'''
import os, signal
os.write(1, b'ready')
while not os.path.exists('/root/end'):
    os.kill({os.getpid()}, signal.SIGSTOP); os.kill({os.getpid()}, signal.SIGCONT)
'''
attacker = subprocess.Popen([sys.executable, '-c', script], stdout=subprocess.PIPE)
assert attacker.stdout.read(5) == b'ready'
"""
_MAP_CHURN = """
import mmap
def churns():
    while True:
        maps = [mmap.mmap(-1, 4096) for _ in range(50)]
        [m.close() for m in maps]
threading.Thread(target=churns, daemon=True).start()
def descriptors():
    while True:
        some = [os.pipe() for _ in range(20)]
        for pair in some: [os.close(n) for n in pair]
threading.Thread(target=descriptors, daemon=True).start()
"""


@pytest.mark.parametrize(
    ("attack", "disarm"),
    [
        pytest.param(_CHURN, "", id="threads that start and end"),
        pytest.param(_PROCESS_CHURN, "", id="processes that start and end"),
        pytest.param(_SIGNAL_STORM, "attacker.kill()", id="a storm of signals"),
        pytest.param(_MAP_CHURN, "", id="maps and descriptors that come and go"),
    ],
)
@pytest.mark.deep("attacks")
def test_a_sandbox_that_never_rests_is_forked_all_the_same(
    attack: str, disarm: str, neighbour_still_answers: Check
) -> None:
    forks_that_worked = assert_harms_nobody(attack, 6, neighbour_still_answers, disarm)
    assert forks_that_worked > 0


@pytest.mark.deep("restarts")
def test_a_sandbox_that_is_stopped_and_continued_without_end_holds_up_nobody(neighbour_still_answers: Check) -> None:
    assert_harms_nobody(_STOP_AND_GO, 4, neighbour_still_answers, "open('/root/end', 'w').close(); attacker.wait(20)")


_ENTRY = """
for place in calls_in('[vdso]'):
    memory = os.open('/proc/self/mem', os.O_RDWR)
    assert os.pwrite(memory, bytes.fromhex('cd80'), place) == 2  # int 0x80: the same registers, another table of calls
    os.close(memory)
"""


def test_the_32_bit_way_into_the_kernel_in_the_place_of_ours_is_seen_before_its_call(
    neighbour_still_answers: Check,
) -> None:
    """By number, registers and address it is the clone that was asked for; only the kernel knows that it is not."""
    sandbox = armed(_REWRITER + _ENTRY)
    try:
        with pytest.raises(ForkFailed, match="tampered with"):
            sandbox.fork()
        # Its shadow is gone at once, and not only when the next fork finds it dead.
        with pytest.raises(ForkFailed, match="tampered with|shadow"):
            sandbox.fork()
        neighbour_still_answers()
        assert sandbox.run_code("answer()", timeout=30).value == "42"
    finally:
        sandbox.close()
