"""Sandboxes that cannot be frozen, or hardly: a fork of them is right or fails, and neither hangs nor harms."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

import pytest

from ramet import ForkFailed, Forks, Sandbox, SandboxLost
from tests.behaviour.waiting import wait_until
from tests.conftest import Neighbour
from tests.fork.attacks import WITNESS, Check, armed, forked_rightly
from tests.fork.belongings import at_rest, wait_until_no_more_than
from tests.fork.relatives import TOOLS, run, value


def result_or_none(forked: Future[Forks]) -> list[Sandbox]:
    try:
        return list(forked.result(90))
    except (ForkFailed, SandboxLost):
        return []


def wait_until_it_answers(sandbox: Sandbox) -> None:
    """The state that it is restored to may end by itself at first: its thread sees /root/go, too."""

    def answers() -> bool:
        with suppress(SandboxLost):
            return sandbox.run_code("6 * 7", timeout=30).value == "42"
        return False

    wait_until(answers, "it has a REPL again")


def assert_fork_while_it_acts_harms_nobody(attack: str, n: int, check: Check) -> None:
    """The attack waits for /root/go, which comes while it is forked. Afterwards all have a REPL and the check holds."""
    sandbox = armed(attack)
    with ThreadPoolExecutor(1) as threads:
        forked = threads.submit(sandbox.fork, n)
        sandbox.files.write("/root/go", b"")
        children = result_or_none(forked)
    for child in children:
        # Forked before it happened, which then happens in the child too, or revived after it.
        wait_until_it_answers(child)
        child.close()
    check()
    wait_until_it_answers(sandbox)
    sandbox.close()


@pytest.mark.deep("load")
def test_a_vfork_that_is_held_fails_the_fork_and_then_lets_go(neighbour_still_answers: Check) -> None:
    """The thread that waits for a vfork child cannot be stopped: the kernel lets only death wake it."""
    attack = """
import ctypes, struct
c = ctypes.CDLL(None, use_errno=True)
c.mmap.restype = ctypes.c_void_p
c.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
code = c.mmap(None, 4096, 7, 0x22, -1, 0)
stack = c.mmap(None, 65536, 3, 0x22, -1, 0) + 65536 - 64
# clone(CLONE_VM | CLONE_VFORK | SIGCHLD, stack): the parent returns the pid, the child calls pause for ever.
# mov eax, 56; mov edi, flags; mov rsi, stack; three zeroes; syscall; test; jz child; ret; child: pause; jmp child
text = bytes.fromhex('b838000000' 'bf11410000' '48be') + struct.pack('<Q', stack)
text += bytes.fromhex('31d2' '4d31d2' '4d31c0' '0f05' '85c0' '7401' 'c3' 'b822000000' '0f05' 'ebf7')
ctypes.memmove(code, text, len(text))
holds = threading.Thread(target=ctypes.CFUNCTYPE(ctypes.c_int)(code), daemon=True); holds.start()
def others():
    mine = os.getpid()
    for name in os.listdir('/proc'):
        if name.isdigit() and int(name) not in (1, mine):
            with open(f'/proc/{name}/status') as file: text = file.read()
            if f'PPid:\\t{mine}\\n' in text: return int(name)
held = until(others)
"""
    sandbox = armed(attack)
    assert not forked_rightly(sandbox)
    neighbour_still_answers()
    result = sandbox.run_code("os.kill(held, 9); holds.join(20); answer()", timeout=30)
    if not result.restarted:
        assert result.value == "42"
        assert forked_rightly(sandbox)
    sandbox.close()
    neighbour_still_answers()


@pytest.mark.deep("restarts")
def test_a_repl_that_replaced_itself_is_not_forked_as_if_it_were_itself(neighbour_still_answers: Check) -> None:
    attack = """
def replaces():
    while not os.path.exists('/root/go'): time.sleep(0.002)
    os.execv('/bin/sleep', ['sleep', '1000'])
threading.Thread(target=replaces, daemon=True).start()
"""
    for _ in range(3):
        assert_fork_while_it_acts_harms_nobody(attack, 2, neighbour_still_answers)


def test_a_repl_that_its_own_child_has_stopped_holds_up_nobody(neighbour_still_answers: Check) -> None:
    attack = """
script = f'import os, time\\nwhile not os.path.exists("/root/go"): time.sleep(0.002)\\nos.kill({os.getpid()}, 19)\\n'
script += 'open("/root/stopped", "w").close()\\nwhile not os.path.exists("/root/on"): time.sleep(0.002)\\n'
script += f'os.kill({os.getpid()}, 18)'
attacker = subprocess.Popen([sys.executable, '-c', script])
"""
    sandbox = armed(attack)
    sandbox.files.write("/root/go", b"")
    wait_until(lambda: sandbox.files.exists("/root/stopped"), "the REPL is stopped")
    with ThreadPoolExecutor(1) as threads:
        children = result_or_none(threads.submit(sandbox.fork, 1))
    neighbour_still_answers()
    sandbox.files.write("/root/on", b"")
    for child in children:
        assert child.run_code("answer()", timeout=30).value == "42"
        child.close()
    assert sandbox.run_code("6 * 7", timeout=30).value == "42"
    sandbox.close()


def test_a_repl_killed_while_it_is_forked_gives_right_children_or_none(neighbour_still_answers: Check) -> None:
    before = at_rest()
    for spins in (0, 1_000, 10_000, 50_000, 100_000, 300_000):
        attack = f"""
script = '''
import os
os.write(1, b'ready')
while not os.path.exists('/root/go'): pass
for _ in range({spins}): pass
os.kill(%d, 9)
''' % os.getpid()
attacker = subprocess.Popen([sys.executable, '-c', script], stdout=subprocess.PIPE)
assert attacker.stdout.read(5) == b'ready'
"""
        assert_fork_while_it_acts_harms_nobody(attack, 3, neighbour_still_answers)
    wait_until_no_more_than(before)


def test_a_main_thread_that_has_left_its_process_is_no_trap(neighbour: Neighbour) -> None:
    """The process lives on as threads of a dead leader."""
    attack = """
import ctypes
c = ctypes.CDLL(None)
_ = signal.signal(signal.SIGUSR1, lambda *_: c.syscall(60, 0))
stays = threading.Thread(target=threading.Event().wait, daemon=True); stays.start()
def kills():
    while not os.path.exists('/root/go'): time.sleep(0.002)
    os.kill(os.getpid(), signal.SIGUSR1)
    open('/root/sent', 'w').close()
    threading.Event().wait()
threading.Thread(target=kills, daemon=True).start()
"""
    sandbox = armed(attack)
    sandbox.files.write("/root/go", b"")
    wait_until(lambda: sandbox.files.exists("/root/sent"), "the signal was sent")
    with ThreadPoolExecutor(1) as threads:
        for child in result_or_none(threads.submit(sandbox.fork, 1)):
            child.close()
    neighbour.assert_unharmed()
    sandbox.close()


_ODD_STATES = {
    "it made itself undumpable": "import ctypes; assert ctypes.CDLL(None).prctl(4, 0, 0, 0, 0) == 0",
    "it may open no more files": "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))",
    "it may write no files": "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))",
    "it may map no more memory": "import resource; resource.setrlimit(resource.RLIMIT_AS, (1 << 20, 1 << 20))",
    "it has many maps": "import mmap; maps = [mmap.mmap(-1, 4096, prot=1 + 2 * (n % 2)) for n in range(3000)]",
    "it hides memory from forks": "import mmap; hidden = mmap.mmap(-1, 1 << 20, flags=0x22); hidden.madvise(10)",
    "it blocks every signal": "_ = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())",
    "it ignores every signal": (
        "for number in signal.valid_signals() - {9, 19, 32, 33}: _ = signal.signal(number, signal.SIG_IGN)"
    ),
    "it has closed its own output": "os.close(1); os.close(2)",
    "it has no working folder": "os.mkdir('/tmp/x'); os.chdir('/tmp/x'); os.rmdir('/tmp/x')",
    "it is in another session": "_ = refusal(os.setsid)",
    "its environment is gone": "os.environ.clear()",
    "its lowest folder cannot be entered": "os.mkdir('/root/shut'); os.chdir('/root/shut'); os.chmod('/root/shut', 0)",
}


@pytest.mark.parametrize("state", _ODD_STATES)
def test_a_sandbox_in_an_odd_state_is_forked_rightly_or_not_at_all(state: str, neighbour_still_answers: Check) -> None:
    sandbox = armed(_ODD_STATES[state])
    forked_rightly(sandbox)
    neighbour_still_answers()
    assert sandbox.run_code("answer()", timeout=30).value == "42", "the parent is unharmed"
    sandbox.close()


def test_a_sandbox_full_of_threads_is_forked_rightly_or_not_at_all(neighbour_still_answers: Check) -> None:
    with Sandbox(pids=40) as sandbox:
        run(sandbox, TOOLS + WITNESS)
        run(
            sandbox,
            """
gate = threading.Event(); crowd = []
try:
    while True:
        one = threading.Thread(target=gate.wait, daemon=True); one.start(); crowd.append(one)
except RuntimeError: pass
len(crowd)
""",
        )
        forked_rightly(sandbox)
        neighbour_still_answers()
        assert value(sandbox, "gate.set(); answer()") == 42
