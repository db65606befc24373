"""What a fork carries over of a process: docs/fork.md, row by row. Descriptors and files have their own module."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from ramet import Sandbox
from tests.behaviour.waiting import UNTIL_GO, go, wait_until_running
from tests.fork.relatives import Fork, all_the_same, at_once, one_after_another, run, value

# --- variables, modules, working folder, environment, umask, signal handlers -----------------------------------------


@pytest.mark.promise("fork-keeps-variables")
def test_variables_and_modules_are_there_and_later_changes_are_not(parent: Sandbox, fork: Fork) -> None:
    run(parent, "import decimal\nlist_of_mine = [1, 2]\nclass Kind: pass\nobject_of_mine = Kind()\nsame = list_of_mine")
    children = fork(parent, 2)
    run(parent, "list_of_mine.append('parent')")
    run(children[0], "list_of_mine.append('child')")
    assert value(parent, "list_of_mine") == [1, 2, "parent"]
    assert one_after_another(children, "list_of_mine") == [[1, 2, "child"], [1, 2]]
    look = "(same is list_of_mine, type(object_of_mine) is Kind, decimal is sys.modules['decimal'])"
    assert all_the_same([parent, *children], look) == (True, True, True)


def test_the_value_of_the_last_cell_and_the_history_of_in_and_out_are_there(parent: Sandbox, fork: Fork) -> None:
    run(parent, "6 * 7")
    (child,) = fork(parent)
    assert value(child, "_") == 42
    assert value(parent, "_") == 42


def test_working_folder_environment_and_umask_are_the_same_and_then_ones_own(parent: Sandbox, fork: Fork) -> None:
    run(parent, "os.mkdir('/tmp/here'); os.chdir('/tmp/here'); os.environ['MINE'] = 'yes'; _ = os.umask(0o027)")
    children = fork(parent, 2)
    look = (
        "before = os.umask(0); _ = os.umask(before)\n(os.getcwd(), os.environ['MINE'], os.path.realpath('.'), before)"
    )
    assert all_the_same([parent, *children], look) == ("/tmp/here", "yes", "/tmp/here", 0o027)
    run(children[0], "os.chdir('/'); os.environ['MINE'] = 'no'; _ = os.umask(0o077)")
    assert all_the_same([parent, children[1]], look) == ("/tmp/here", "yes", "/tmp/here", 0o027)
    assert value(children[0], "subprocess.check_output('echo $MINE $PWD', shell=True, text=True)") == "no /\n"


def test_a_working_folder_that_was_removed_is_removed_in_the_child_too(parent: Sandbox, fork: Fork) -> None:
    run(parent, "os.mkdir('/tmp/gone'); os.chdir('/tmp/gone'); os.rmdir('/tmp/gone')")
    (child,) = fork(parent)
    assert all_the_same([parent, child], "refusal(os.getcwd)") == "ENOENT"


def test_signal_handlers_are_the_same_and_each_sandbox_catches_its_own(parent: Sandbox, fork: Fork) -> None:
    run(
        parent,
        """
caught = []
_ = signal.signal(signal.SIGUSR1, lambda number, frame: caught.append(number))
_ = signal.signal(signal.SIGUSR2, signal.SIG_IGN)
""",
    )
    children = fork(parent, 2)
    run(children[0], "os.kill(os.getpid(), signal.SIGUSR1); os.kill(os.getpid(), signal.SIGUSR2)")
    assert value(children[0], "until(lambda: caught)") == [10]
    assert one_after_another([parent, children[1]], "caught") == [[], []]
    assert all_the_same([parent, *children], "signal.getsignal(signal.SIGUSR2) == signal.SIG_IGN")


def test_a_blocked_signal_stays_blocked_in_every_thread(parent: Sandbox, fork: Fork) -> None:
    run(
        parent,
        """
_ = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
masks, ask = [], threading.Semaphore(0)
def worker():
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    while True:
        ask.acquire()
        masks.append(sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())))
threading.Thread(target=worker, daemon=True).start()
_ = signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
""",
    )
    (child,) = fork(parent)
    look = "ask.release(); _ = until(lambda: masks)\n([int(n) for n in masks[-1]], bool(signal.pthread_sigmask(0, ())))"
    assert all_the_same([parent, child], look) == ([10, 12], False)


# --- threads, pools, event loops, timers -----------------------------------------------------------------------------


@pytest.mark.promise("fork-keeps-threads")
def test_threads_run_on_with_the_same_idents_and_tids(parent: Sandbox, fork: Fork) -> None:
    run(
        parent,
        """
counts, go_on = [0] * 4, threading.Barrier(5)
def count(number):
    local = threading.local()
    local.mine = number
    while True:
        go_on.wait()
        counts[local.mine] += 1
        go_on.wait()
threads = [threading.Thread(target=count, args=(n,), name=f'counter {n}', daemon=True) for n in range(4)]
[t.start() for t in threads]
def step():
    go_on.wait(20); go_on.wait(20)
    return counts
step()
""",
    )
    identity = "[(t.name, t.ident, t.native_id, t.is_alive()) for t in threads]"
    before = value(parent, identity)
    children = fork(parent, 2)
    assert all_the_same([parent, *children], identity) == before
    listed = "sorted(int(n) for n in os.listdir('/proc/self/task') if int(n) != os.getpid())"
    assert all_the_same([parent, *children], f"[t.native_id in {listed} for t in threads]") == [True] * 4
    assert value(children[0], "step(); step()") == [3] * 4
    assert value(children[1], "step()") == [2] * 4
    assert value(parent, "counts") == [1] * 4
    assert value(parent, "step()") == [2] * 4


def test_the_main_thread_has_another_pid_in_every_relative(
    request: pytest.FixtureRequest, parent: Sandbox, fork: Fork
) -> None:
    if sys.version_info < (3, 12) and request.node.callspec.params["parent"] == "busy_loop":
        pytest.skip("before Python 3.12 a loop that runs knows its process id, so copies keep it")
    run(parent, "os.getpid()")
    children = fork(parent, 3)
    (grandchild,) = fork(children[0])
    pids = at_once([parent, *children, grandchild], "(os.getpid(), threading.main_thread().native_id)")
    assert len({pid for pid, _ in pids[:2]} | {pids[-1][0]}) == 3, "no descendant has the pid of its ancestor"
    assert all(value(each, "os.path.exists(f'/proc/{os.getpid()}')") for each in children)
    assert all_the_same([parent, *children, grandchild], "threading.current_thread() is threading.main_thread()")


@pytest.mark.promise("fork-keeps-locks")
def test_a_thread_keeps_the_recursive_lock_that_it_holds(parent: Sandbox, fork: Fork) -> None:
    run(
        parent,
        """
held, ask, answers, taken = threading.RLock(), threading.Semaphore(0), [], threading.Event()
def holder():
    with held:
        taken.set()
        ask.acquire()
        answers.append(held.acquire(blocking=False))
        held.release()
threading.Thread(target=holder, daemon=True).start()
taken.wait(20)
""",
    )
    (child,) = fork(parent)
    look = (
        "free = held.acquire(blocking=False); ask.release()\n(free, until(lambda: answers), held.acquire(timeout=20))"
    )
    assert all_the_same([child, parent], look) == (False, [True], True)


def test_a_pool_of_threads_takes_more_work(parent: Sandbox, fork: Fork) -> None:
    run(
        parent,
        """
from concurrent.futures import ThreadPoolExecutor
pool = ThreadPoolExecutor(4)
pending_gate = threading.Event()
pending = pool.submit(lambda: pending_gate.wait(60) and 'pending done')
_ = list(pool.map(str, range(100)))
""",
    )
    children = fork(parent, 2)
    look = "pending_gate.set()\n(sum(pool.map(lambda n: n * n, range(100))), pending.result(20))"
    assert all_the_same([parent, *children], look) == (328350, "pending done")


@pytest.mark.promise("fork-keeps-loops")
def test_an_event_loop_in_a_thread_serves_in_the_child(parent: Sandbox, fork: Fork) -> None:
    run(
        parent,
        """
import asyncio
loop = asyncio.new_event_loop()
ticks = 0
async def tick():
    global ticks
    while True:
        await asyncio.sleep(0.005)
        ticks += 1
threading.Thread(target=loop.run_forever, daemon=True).start()
ticking = asyncio.run_coroutine_threadsafe(tick(), loop)
async def twice(n):
    await asyncio.sleep(0)
    return n * 2
""",
    )
    children = fork(parent, 2)
    look = "seen = ticks; _ = until(lambda: ticks > seen)\nasyncio.run_coroutine_threadsafe(twice(21), loop).result(20)"
    assert all_the_same([parent, *children], look) == 42


def test_a_timer_that_was_set_fires_in_parent_and_child(parent: Sandbox, fork: Fork) -> None:
    run(
        parent,
        """
fired, late = [], []
soon = threading.Timer(0.3, fired.append, ('soon',)); soon.start()
cancelled = threading.Timer(3600, late.append, ('late',)); cancelled.start()
""",
    )
    children = fork(parent, 2)
    run(children[0], "cancelled.cancel(); cancelled.join(20)")
    assert all_the_same([parent, *children], "until(lambda: fired)") == ["soon"]
    assert one_after_another([parent, *children], "cancelled.is_alive()") == [True, False, True]


# --- processes, limits, locks ----------------------------------------------------------------------------------------


@pytest.mark.promise("fork-ends-processes")
def test_a_running_child_process_is_gone_as_if_killed(parent: Sandbox, fork: Fork) -> None:
    run(parent, "sleeper = subprocess.Popen(['sleep', '1000']); ended = subprocess.Popen(['true']); _ = ended.wait(20)")
    children = fork(parent, 2)
    assert one_after_another(children, "(sleeper.poll(), sleeper.wait(20), ended.poll())") == [(-9, -9, 0)] * 2
    assert value(parent, "sleeper.poll()") is None
    run(parent, "sleeper.terminate(); _ = sleeper.wait(20)")
    assert value(parent, "sleeper.returncode") == -15


def test_a_child_process_that_ended_unseen_keeps_its_exit_code_in_the_parent(parent: Sandbox, fork: Fork) -> None:
    run(
        parent,
        """
quick = subprocess.Popen(['sh', '-c', 'exit 3'])
def is_zombie():
    with open(f'/proc/{quick.pid}/stat') as file: return file.read().rpartition(')')[2].split()[0] == 'Z'
_ = until(is_zombie)
""",
    )
    (child,) = fork(parent)
    assert value(parent, "quick.wait(20)") == 3
    assert value(child, "quick.wait(20)") in (3, -9)


def test_interval_timers_go_on(parent: Sandbox, fork: Fork) -> None:
    run(
        parent,
        """
alarms = []
_ = signal.signal(signal.SIGALRM, lambda *_: alarms.append(1))
_ = signal.setitimer(signal.ITIMER_REAL, 0.2, 0.05)
""",
    )
    children = fork(parent, 2)
    look = """
seen = len(alarms); _ = until(lambda: len(alarms) > seen + 1)
round(signal.getitimer(signal.ITIMER_REAL)[1], 2)
"""
    assert all_the_same([parent, *children], look) == 0.05
    run(children[0], "_ = signal.setitimer(signal.ITIMER_REAL, 0)")
    assert value(children[1], look) == 0.05


def test_resource_limits_affinity_priority_and_thread_names_are_the_same(parent: Sandbox, fork: Fork) -> None:
    run(
        parent,
        """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (200, 300))
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, 1 << 31))
one_processor = {min(os.sched_getaffinity(0))}
os.sched_setaffinity(0, one_processor)
_ = os.nice(3)
named = threading.Event(); gate = threading.Event()
def worker():
    with open('/proc/thread-self/comm', 'w') as file: _ = file.write('worker bee')
    named.set(); gate.wait()
bee = threading.Thread(target=worker, daemon=True); bee.start(); named.wait(20)
""",
    )
    children = fork(parent, 2)
    look = """
(resource.getrlimit(resource.RLIMIT_NOFILE), resource.getrlimit(resource.RLIMIT_FSIZE),
 os.sched_getaffinity(0) == one_processor, os.getpriority(os.PRIO_PROCESS, 0),
 open(f'/proc/self/task/{bee.native_id}/comm').read(), open('/proc/self/comm').read())
"""
    before = value(parent, look)
    assert before[:3] == ((200, 300), (1 << 30, 1 << 31), True)
    assert before[4] == "worker bee\n"
    assert all_the_same([parent, *children], look) == before


def test_file_locks_are_held_in_the_child_on_its_own_files(parent: Sandbox, fork: Fork) -> None:
    run(
        parent,
        """
import fcntl
whole = open('/root/whole', 'w'); fcntl.flock(whole, fcntl.LOCK_EX)
part = open('/root/part', 'w'); fcntl.lockf(part, fcntl.LOCK_EX, 10, 5)
def from_another_process():
    code = '''
import fcntl, sys
def tried(action):
    try: action(); return 'got'
    except OSError: return 'held'
print(tried(lambda: fcntl.flock(open('/root/whole', 'w'), fcntl.LOCK_EX | fcntl.LOCK_NB)),
      tried(lambda: fcntl.lockf(open('/root/part', 'w'), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 14)),
      tried(lambda: fcntl.lockf(open('/root/part', 'w'), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 15)))
'''
    return subprocess.check_output([sys.executable, '-c', code], text=True)
""",
    )
    children = fork(parent, 2)
    assert all_the_same([parent, *children], "from_another_process()") == "held held got\n"
    run(children[0], "fcntl.flock(whole, fcntl.LOCK_UN)")
    assert value(children[0], "from_another_process()") == "got held got\n"
    assert all_the_same([parent, children[1]], "from_another_process()") == "held held got\n"


# --- what is lost ----------------------------------------------------------------------------------------------------


def test_what_is_lost_is_lost_in_the_child_only_and_hurts_nobody(parent: Sandbox, fork: Fork) -> None:
    """POSIX timers, SysV ipc, inotify watches, pending signals: docs/limits.md says so."""
    run(
        parent,
        """
import ctypes, struct
c = ctypes.CDLL(None, use_errno=True)
_ = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1}); os.kill(os.getpid(), signal.SIGUSR1)
segment = c.shmget(0x1234, 4096, 0o1600)
watching = c.inotify_init1(0o2004000)
os.mkdir('/tmp/watched'); assert c.inotify_add_watch(watching, b'/tmp/watched', 0x100) >= 0
clock = ctypes.c_int(); assert c.timer_create(1, None, ctypes.byref(clock)) == 0
def notices():
    open('/tmp/watched/new', 'w').close(); os.unlink('/tmp/watched/new')
    return refusal(os.read, watching, 4096) != 'EAGAIN'
def timers():
    if not os.path.exists('/proc/self/timers'): return None
    return sum(line.startswith('ID:') for line in open('/proc/self/timers'))
""",
    )
    children = fork(parent, 2)
    look = "(signal.SIGUSR1 in signal.sigpending(), c.shmget(0x1234, 4096, 0) >= 0, notices(), timers() in (1, None))"
    assert value(parent, look) == (True, True, True, True)
    look = look.replace("timers() in (1, None)", "timers() in (0, None)")
    assert one_after_another(children, look) == [(False, False, False, True)] * 2
    watch_again = "assert c.inotify_add_watch(watching, b'/tmp/watched', 0x100) >= 0\nnotices()"
    assert one_after_another(children, watch_again) == [True, True]


def test_random_generators_continue_alike(parent: Sandbox, fork: Fork) -> None:
    run(parent, "import random; own = random.Random(5); _ = own.random(), random.random()")
    children = fork(parent, 2)
    assert len(set(all_the_same([parent, *children], "(own.random(), random.random(), random.random())"))) == 3


# --- a cell still running --------------------------------------------------------------------------------------------


@pytest.mark.promise("fork-queue")
def test_a_fork_waits_for_the_running_cell(parent: Sandbox, fork: Fork) -> None:
    with ThreadPoolExecutor(3) as threads:
        running = threads.submit(parent.run_code, UNTIL_GO + "\nwritten = 'by the running cell'", timeout=30)
        wait_until_running(parent)
        forked = threads.submit(fork, parent, 2)
        later = threading.Event()
        forked.add_done_callback(lambda _: later.set())
        assert not later.is_set()
        go(parent)
        assert running.result(60).ok
        children = forked.result(60)
    assert one_after_another([parent, *children], "written") == ["by the running cell"] * 3


def test_cells_queued_behind_a_fork_run_in_the_parent_only(parent: Sandbox, fork: Fork) -> None:
    run(parent, "steps = []")
    with ThreadPoolExecutor(4) as threads:
        running = threads.submit(parent.run_code, UNTIL_GO + "\nsteps.append('before')", timeout=30)
        wait_until_running(parent)
        forked = threads.submit(fork, parent, 1)
        wait_until_running(parent, waiting=1)
        behind = threads.submit(parent.run_code, "steps.append('after')")
        wait_until_running(parent, waiting=2)
        go(parent)
        assert running.result(60).ok
        assert behind.result(60).ok
        (child,) = forked.result(60)
    assert value(parent, "steps") == ["before", "after"]
    assert value(child, "steps") == ["before"]
