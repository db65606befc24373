"""The processes of one terminal: a session whose leader is a child of the engine. It ends when its leader ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator

from ramet.errors import RametError
from ramet.isolation.kernel.terminals import Started, set_size

_HANG_UP_SECONDS = 1.0  # from SIGHUP to SIGKILL
_END_SECONDS = 10.0
_LOOK_SECONDS = 0.01
_STOP_PASSES = 100
_ENDED = ("Z", "X", "x")


class TerminalSession:
    """The processes of one terminal. Owned by its body.

    The race that `held` guards against: once a dead leader is reaped, the kernel may give its pid to another process,
    and signals or a freeze would reach that one. So while anybody holds the session, a dead leader stays a zombie.
    """

    def __init__(self, master: int, leader: Started, on_reaped: Callable[[TerminalSession], None]) -> None:
        loop = asyncio.get_running_loop()
        self.master = master
        self.leader = leader
        self.pid = leader.pid  # in the engine's numbering
        self.pidfd = leader.pidfd
        self.ended: asyncio.Future[int] = loop.create_future()  # exit code as a shell reports it
        self.reaped: asyncio.Future[None] = loop.create_future()
        self._on_reaped = on_reaped
        self._holds = 0
        loop.add_reader(self.pidfd, self._on_end)

    def __repr__(self) -> str:
        return f"<TerminalSession {self.pid} {f'ended {self.ended.result()}' if self.ended.done() else 'runs'}>"

    def resize(self, columns: int, rows: int) -> None:
        set_size(self.master, columns, rows)

    def close_master(self) -> None:
        """Hang up: processes that still have the terminal open get end-of-file and errors."""
        if self.master >= 0:
            os.close(self.master)
            self.master = -1

    def _on_end(self) -> None:
        try:
            # WNOWAIT: look without reaping, because a holder may still use the pid. `_reap` does it later.
            status = os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:  # it was reaped elsewhere
            code = 128 + signal.SIGKILL
        else:
            if status is None:
                return
            code = status.si_status if status.si_code == os.CLD_EXITED else 128 + status.si_status
        asyncio.get_running_loop().remove_reader(self.pidfd)
        if not self.ended.done():
            self.ended.set_result(code)
        self._reap()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Inside the block the leader's pid names the leader and no other process, dead or alive."""
        self._holds += 1
        try:
            yield
        finally:
            self._holds -= 1
            self._reap()

    def _reap(self) -> None:
        if self._holds or not self.ended.done() or self.reaped.done():
            return
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED | os.WNOHANG)
        os.close(self.pidfd)
        # Without an await in between: from the waitid and the close on, other processes and files may get its numbers,
        # and the owner must forget them before other code of the loop runs.
        self._on_reaped(self)
        self.reaped.set_result(None)

    def kill(self) -> None:
        """Kill the leader alone; for a body that is about to end all other processes."""
        if not self.ended.done():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    async def end(self, hang_up: bool = True) -> None:
        """End all processes of the session: SIGHUP, then SIGKILL. Raises RametError if some survive."""
        if self.ended.done():
            return
        # The leader may end during any await below: its pid, by which we find the session, must stay its own.
        with self.held():
            if hang_up:
                # SIGCONT: a stopped process gets its SIGHUP only when it goes on. In a thread: it reads all of /proc.
                await asyncio.to_thread(_signal_all, self.pid, signal.SIGHUP, signal.SIGCONT)
                await self._wait_until_empty(_HANG_UP_SECONDS)
            gone = False
            until = time.monotonic() + _END_SECONDS
            # Again and again: a process that was just being created when we looked is in no list of /proc yet.
            while not gone and time.monotonic() < until:
                await asyncio.to_thread(_kill_all, self.pid)
                gone = await self._wait_until_empty(_HANG_UP_SECONDS)
            # The members are gone from /proc a moment before the loop hears of the leader's end.
            await asyncio.wait([self.ended], timeout=_HANG_UP_SECONDS)
        if not gone:
            raise RametError(
                "the processes of the terminal could not all be ended", hint="close the sandbox: that ends everything"
            )

    async def _wait_until_empty(self, seconds: float) -> bool:
        until = time.monotonic() + seconds
        while await asyncio.to_thread(_signal_all, self.pid):
            if time.monotonic() > until:
                return False
            await asyncio.sleep(_LOOK_SECONDS)
        return True


def _kill_all(session: int) -> None:
    """Stop all of them first, then kill.

    The race: while some are killed, the others could create children in the places that become free under the limit of
    processes, faster than we kill them.
    """
    seen: set[int] = set()
    for _ in range(_STOP_PASSES):
        found = _signal_all(session, signal.SIGSTOP)
        if found <= seen:
            break
        seen |= found
    _signal_all(session, signal.SIGKILL)


def _signal_all(session: int, *numbers: int) -> set[int]:
    """Signal the living processes of a session; returns their pids."""
    found: set[int] = set()
    for name in os.listdir("/proc"):
        if not name.isdigit() or not _is_member(int(name), session):
            continue
        with contextlib.suppress(ProcessLookupError):
            pidfd = os.pidfd_open(int(name))
            try:
                # Look again: between the first look and pidfd_open another process may have got the number. The pidfd
                # cannot change its process any more.
                if not _is_member(int(name), session):
                    continue
                found.add(int(name))
                for number in numbers:
                    signal.pidfd_send_signal(pidfd, number)
            finally:
                os.close(pidfd)
    return found


def _is_member(pid: int, session: int) -> bool:
    """Whether the process belongs to the session and is alive."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            words = file.read().rpartition(")")[2].split()
    except OSError:
        return False
    return int(words[3]) == session and words[0] not in _ENDED
