"""Pools, processes and managers of `multiprocessing` in the copy of a sandbox: their processes are not in it.

They stayed with the sandbox that was forked. Waiting for them would never end, so whoever uses them gets an error that
says so, at once; what was begun before the fork fails the same way. New ones work.

Threads of a copy run before its REPL knows that it is one, so those that watch over workers are taught beforehand, in
every sandbox, what to do in a copy (`watch`). The rest is done when the REPL knows (`disown`).
"""

from __future__ import annotations

import os
import select
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

from ramet_guest.channel import Channel

_STAYED = "stayed with the sandbox that this one is a copy of"
POOL = f"the worker processes of this pool {_STAYED}: make a new pool"
PROCESS = f"this process {_STAYED}: start a new one"
MANAGER = f"the server process of this manager {_STAYED}: make a new manager"
# How a process ends in a copy, and one of a fork server, of which nothing but the end of its pipe is seen.
_KILLED = -9
_UNSEEN = 255
_LOCK_SECONDS = 1.0
_MARK = "_ramet_stayed_behind"


def watch(channel: Channel) -> None:
    """Teaches the threads that watch over workers. Called often: does nothing until there is something to teach."""
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


def _join_exited(plain: Callable[[Any], bool], channel: Channel) -> Callable[[Any], bool]:
    """In the thread that replaces workers: in a copy it ends without a word instead of joining what is not its own."""

    def join_exited_workers(pool: Any) -> bool:
        life, workers = channel.life, list(pool)
        if any(is_lost(worker, channel) for worker in workers):
            raise SystemExit
        cleaned = plain(pool)
        if cleaned and (channel.replaced() or channel.life != life):
            # Frozen in the middle of it: in the copy it saw all workers end, and would start others.
            for worker in workers:
                mark(worker)
            pool[:] = workers
            if channel.life != life:
                break_what_is_marked()  # the REPL has looked already
            raise SystemExit
        return cleaned

    setattr(join_exited_workers, _MARK, True)
    return join_exited_workers


def _terminate_broken(plain: Callable[[Any, Any], None], channel: Channel) -> Callable[[Any, Any], None]:
    """In the thread that manages an executor, which has seen that a worker is gone."""

    def terminate_broken(self: Any, cause: Any) -> None:
        if not any(is_lost(worker, channel) for worker in list(self.processes.values())):
            plain(self, cause)
            return
        from concurrent.futures.process import BrokenProcessPool

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
            with suppress(Exception):  # cancelled meanwhile
                item.future.set_exception(BrokenProcessPool(POOL))

    setattr(terminate_broken, _MARK, True)
    return terminate_broken


def is_lost(process: Any, channel: Channel) -> bool:
    """Whether this is a process of the sandbox that we are a copy of."""
    if hasattr(process, _MARK):
        return True
    # Of a copy that does not know yet. Workers of a ThreadPool are threads, which are here, and have no parent's id.
    return hasattr(process, "_parent_pid") and channel.replaced()


def disown() -> None:
    """We are a copy: no process is alive but those that our threads have just started."""
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
    """Pools and managers whose processes were marked."""
    util = sys.modules.get("multiprocessing.util")
    owners = [] if util is None else [owner_of(each) for each in list(util._finalizer_registry.values())]
    pool, managers = sys.modules.get("multiprocessing.pool"), sys.modules.get("multiprocessing.managers")
    for owner in owners:
        with suppress(Exception):  # whatever user code has made of it
            if pool is not None and isinstance(owner, pool.Pool) and any(hasattr(one, _MARK) for one in owner._pool):
                break_pool(owner)
            elif managers is not None and isinstance(owner, managers.BaseManager) and hasattr(owner._process, _MARK):
                break_manager(owner, util)


def stayed_behind(process: Any) -> bool:
    """One that had ended before keeps its exit code, and can be joined here."""
    try:
        code = process._popen.poll()
        if code is None:
            # Where the process id was kept, as before Python 3.12 with a running loop, the parent's id tells nothing.
            # Its end may not be there yet, or another thread may have taken it: the pipe that ends with it tells.
            return bool(process._parent_pid != os.getpid()) or has_ended(process._popen.sentinel)
        if code == _KILLED or (code == _UNSEEN and process._popen.method == "forkserver"):
            return True
        process._parent_pid = os.getpid()
    except Exception:
        pass
    return False


def has_ended(sentinel: int) -> bool:
    """Whether nobody holds the other end of the pipe that a process keeps as long as it lives."""
    poll = select.poll()
    poll.register(sentinel, select.POLLIN)
    return bool(poll.poll(0))


def mark(process: Any) -> None:
    setattr(process, _MARK, True)
    for name in ("join", "is_alive", "terminate", "kill"):
        setattr(process, name, refusing(PROCESS))


def owner_of(finalizer: Any) -> Any:
    """The object that a finalizer of `multiprocessing` is for."""
    reference = getattr(finalizer, "_weakref", None)
    return None if reference is None else reference()


def forget_helpers() -> None:
    """The process that tracks shared memory: another is started when it is needed, without a warning of a crash."""
    module = sys.modules.get("multiprocessing.resource_tracker")
    tracker = getattr(module, "_resource_tracker", None)
    if tracker is not None and getattr(tracker, "_fd", None) is not None:
        with suppress(Exception):
            os.close(tracker._fd)
        with suppress(Exception):
            os.waitpid(tracker._pid, os.WNOHANG)
        tracker._fd = tracker._pid = None


def break_pool(pool: Any) -> None:
    """All that takes work says why it cannot; all that ends a pool has nothing left to do."""
    for handler in (pool._worker_handler, pool._task_handler, pool._result_handler):
        handler._state = "TERMINATE"
    pool._state = "TERMINATE"
    pool._terminate.cancel()
    pool._terminate = pool.join = nothing
    pool._check_running = refusing(POOL)
    pool._pool.clear()
    pool._taskqueue.put(None)  # the thread that hands out tasks ends, and tells the one that takes results
    jobs = list(pool._cache.values())
    if jobs:
        # In a thread: callbacks are user code, and may take any time.
        threading.Thread(target=fail, args=(jobs,), daemon=True).start()


def fail(jobs: list[Any]) -> None:
    """Ends what waits for results of a pool, also in other threads."""
    for job in jobs:
        failure = (False, RuntimeError(POOL))
        with suppress(Exception):
            if hasattr(job, "_cond"):
                if job._cond.acquire(timeout=_LOCK_SECONDS):
                    try:
                        job._items.append(failure)
                        job._length = job._index  # nothing comes after it
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
