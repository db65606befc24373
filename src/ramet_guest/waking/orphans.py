"""Handles `multiprocessing` pools, processes and managers in the copy of a sandbox, where their processes are missing.

The processes stayed with the sandbox that was forked. Waiting for them would never end, so using them raises an error
at once, and work that was submitted before the fork fails the same way. New pools, processes and managers work.

Threads of a copy run before its REPL learns that it is one. So the threads that watch over workers are patched in
advance, in every sandbox, to recognise a copy (`watch`). The REPL does the rest when it learns of it (`disown`).
"""

from __future__ import annotations

import os
import select
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

from ramet_guest.channel import ControlChannel

_STAYED = "stayed with the sandbox that this one is a copy of"
POOL = f"the worker processes of this pool {_STAYED}: make a new pool"
PROCESS = f"this process {_STAYED}: start a new one"
MANAGER = f"the server process of this manager {_STAYED}: make a new manager"
# Exit codes that the copy sees: a process that is missing counts as killed; one of a fork server, of which only the end
# of its pipe is visible, counts as 255.
_KILLED = -9
_UNSEEN = 255
_LOCK_SECONDS = 1.0
_MARK = "_ramet_stayed_behind"


def watch(channel: ControlChannel) -> None:
    """Patches the threads that watch over workers.

    Called after each cell; does nothing until their modules are imported.
    """
    pool = sys.modules.get("multiprocessing.pool")
    if pool is not None:
        _teach(pool, "Pool", "_join_exited_workers", lambda plain: staticmethod(_join_exited(plain, channel)))
    futures = sys.modules.get("concurrent.futures.process")
    if futures is not None:
        _teach(futures, "_ExecutorManagerThread", "terminate_broken", lambda plain: _terminate_broken(plain, channel))


def _teach(module: Any, class_name: str, name: str, made: Callable[[Any], Any]) -> None:
    owner = getattr(module, class_name, None)  # None while another thread imports the module
    plain = getattr(owner, name, None)
    if plain is not None and not hasattr(plain, _MARK):
        setattr(owner, name, made(plain))


def _join_exited(plain: Callable[[Any], bool], channel: ControlChannel) -> Callable[[Any], bool]:
    """Wraps the function of the thread that replaces a pool's workers.

    In a copy it ends the thread silently instead of joining processes that are not its own.
    """

    def join_exited_workers(pool: Any) -> bool:
        life, workers = channel.life, list(pool)
        if any(is_lost(worker, channel) for worker in workers):
            raise SystemExit
        cleaned = plain(pool)
        if cleaned and (channel.replaced() or channel.life != life):
            # The freeze fell into `plain`: in the copy it saw all workers end, and would now start others.
            for worker in workers:
                mark(worker)
            pool[:] = workers
            if channel.life != life:
                break_what_is_marked()  # `disown` has already run and did not see these marks
            raise SystemExit
        return cleaned

    setattr(join_exited_workers, _MARK, True)
    return join_exited_workers


def _terminate_broken(plain: Callable[[Any, Any], None], channel: ControlChannel) -> Callable[[Any, Any], None]:
    """Wraps the function by which an executor's manager thread reacts to a worker that ended."""

    def terminate_broken(self: Any, cause: Any) -> None:
        if not any(is_lost(worker, channel) for worker in list(self.processes.values())):
            plain(self, cause)
            return
        from concurrent.futures.process import BrokenProcessPool

        # The executor's own lock: without it `submit` in another thread could add work after we took the pending items.
        with self.shutdown_lock:
            executor = self.executor_reference()
            if executor is not None:
                executor._broken = POOL
                executor._shutdown_thread = True
            items = list(self.pending_work_items.values())
            self.pending_work_items.clear()
            self.processes.clear()
            self.call_queue.cancel_join_thread()
            self.call_queue.close()
            self.thread_wakeup.close()
        for item in items:
            with suppress(Exception):  # the caller may have cancelled it meanwhile
                item.future.set_exception(BrokenProcessPool(POOL))

    setattr(terminate_broken, _MARK, True)
    return terminate_broken


def is_lost(process: Any, channel: ControlChannel) -> bool:
    """Whether this is a process of the sandbox that we are a copy of."""
    if hasattr(process, _MARK):
        return True
    # The REPL of a copy may not know yet, so ask the channel. Workers of a ThreadPool are threads, which a copy has;
    # they carry no parent's id.
    return hasattr(process, "_parent_pid") and channel.replaced()


def disown() -> None:
    """Marks all processes as lost and breaks their pools and managers.

    We are a copy: the only processes alive are those that our threads have just started.
    """
    module = sys.modules.get("multiprocessing.process")
    if module is None:
        return
    processes = [process for process in list(module._children) if stayed_behind(process)]
    for process in processes:
        mark(process)
        module._children.discard(process)
    forget_helpers()
    break_what_is_marked()


def break_what_is_marked() -> None:
    """Breaks pools and managers whose processes are marked."""
    util = sys.modules.get("multiprocessing.util")
    owners = [] if util is None else [owner_of(each) for each in list(util._finalizer_registry.values())]
    pool, managers = sys.modules.get("multiprocessing.pool"), sys.modules.get("multiprocessing.managers")
    for owner in owners:
        with suppress(Exception):  # user code may have changed the object
            if pool is not None and isinstance(owner, pool.Pool) and any(hasattr(one, _MARK) for one in owner._pool):
                break_pool(owner)
            elif managers is not None and isinstance(owner, managers.BaseManager) and hasattr(owner._process, _MARK):
                break_manager(owner, util)


def stayed_behind(process: Any) -> bool:
    """Whether the process stayed with the original.

    One that ended before the fork keeps its exit code and can be joined.
    """
    try:
        code = process._popen.poll()
        if code is None:
            # If the process id was kept (before Python 3.12, with a running loop), the parent's id proves nothing. The
            # wait status may not be there yet, or another thread may have taken it; the pipe that closes with the
            # process is certain.
            return bool(process._parent_pid != os.getpid()) or has_ended(process._popen.sentinel)
        if code == _KILLED or (code == _UNSEEN and process._popen.method == "forkserver"):
            return True
        process._parent_pid = os.getpid()
    except Exception:
        pass
    return False


def has_ended(sentinel: int) -> bool:
    """Whether the pipe has no writer left. A process keeps its end open as long as it lives."""
    poll = select.poll()
    poll.register(sentinel, select.POLLIN)
    return bool(poll.poll(0))


def mark(process: Any) -> None:
    setattr(process, _MARK, True)
    for name in ("join", "is_alive", "terminate", "kill"):
        setattr(process, name, refusing(PROCESS))


def owner_of(finalizer: Any) -> Any:
    """Returns the object that a finalizer of `multiprocessing` belongs to."""
    reference = getattr(finalizer, "_weakref", None)
    return None if reference is None else reference()


def forget_helpers() -> None:
    """Forgets the process that tracks shared memory, so that the next use starts another without warning of a crash."""
    module = sys.modules.get("multiprocessing.resource_tracker")
    tracker = getattr(module, "_resource_tracker", None)
    if tracker is not None and getattr(tracker, "_fd", None) is not None:
        with suppress(Exception):
            os.close(tracker._fd)
        with suppress(Exception):
            os.waitpid(tracker._pid, os.WNOHANG)
        tracker._fd = tracker._pid = None


def break_pool(pool: Any) -> None:
    """Makes every method that submits work raise, and every method that ends the pool do nothing."""
    for handler in (pool._worker_handler, pool._task_handler, pool._result_handler):
        handler._state = "TERMINATE"
    pool._state = "TERMINATE"
    pool._terminate.cancel()
    pool._terminate = pool.join = nothing
    pool._check_running = refusing(POOL)
    pool._pool.clear()
    pool._taskqueue.put(None)  # ends the thread that hands out tasks, which then ends the one that takes results
    jobs = list(pool._cache.values())
    if jobs:
        # In a thread: callbacks are user code and may take any time.
        threading.Thread(target=fail, args=(jobs,), daemon=True).start()


def fail(jobs: list[Any]) -> None:
    """Fails pending results of a pool, so that threads waiting for them wake up."""
    for job in jobs:
        failure = (False, RuntimeError(POOL))
        with suppress(Exception):
            if hasattr(job, "_cond"):
                # With a timeout: a thread that holds this lock must not keep the other jobs from failing.
                if job._cond.acquire(timeout=_LOCK_SECONDS):
                    try:
                        job._items.append(failure)
                        job._length = job._index  # no result follows
                        job._cond.notify_all()
                    finally:
                        job._cond.release()
                continue
            if hasattr(job, "_number_left"):
                job._number_left = 1
            job._set(0, failure)


def break_manager(manager: Any, util: Any) -> None:
    manager.shutdown.cancel()
    manager._create = refusing(MANAGER)
    for proxy in list(util._afterfork_registry.values()):
        token = getattr(proxy, "_token", None)
        if token is not None and token.address == manager._address:
            proxy._callmethod = refusing(MANAGER)


def refusing(message: str) -> Callable[..., NoReturn]:
    def refuse(*arguments: object, **options: object) -> NoReturn:
        raise RuntimeError(message)

    return refuse


def nothing(*arguments: object) -> None:
    pass
