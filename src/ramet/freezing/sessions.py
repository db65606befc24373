"""The processes of one terminal: a session, led by a child of the engine. The session ends when its leader does."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator

from ramet.errors import RametError
from ramet.isolation.terminals import Started, set_size

_HANG_UP_SECONDS = 1.0  # from SIGHUP to SIGKILL
_END_SECONDS = 10.0
_LOOK_SECONDS = 0.01
_STOP_PASSES = 100
_ENDED = ("Z", "X", "x")


class Session:
    """Owned by its body. While somebody holds on, a dead leader stays a zombie: its number is nobody else's."""

    def __init__(self, master: int, leader: Started, on_reaped: Callable[[Session], None]) -> None:
        loop = asyncio.get_running_loop()
        self.master = master
        self.leader = leader
        self.pid = leader.pid  # in the engine's numbering
        self.pidfd = leader.pidfd
        self.ended: asyncio.Future[int] = loop.create_future()  # exit code as a shell says it
        self.reaped: asyncio.Future[None] = loop.create_future()
        self._on_reaped = on_reaped
        self._holds = 0
        loop.add_reader(self.pidfd, self._on_end)

    def __repr__(self) -> str:
        return f"<Session {self.pid} {f'ended {self.ended.result()}' if self.ended.done() else 'runs'}>"

    def resize(self, columns: int, rows: int) -> None:
        set_size(self.master, columns, rows)

    def close_master(self) -> None:
        """Hangs up: whoever still has the terminal open gets end-of-file and errors."""
        if self.master >= 0:
            os.close(self.master)
            self.master = -1

    def _on_end(self) -> None:
        try:
            status = os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
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
        """Inside, its number means it and nobody else, dead or alive."""
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
        self._on_reaped(self)  # at once: from here on its number and its descriptor may be others'
        self.reaped.set_result(None)

    def kill(self) -> None:
        """The leader alone; for a body that is about to end all others."""
        if not self.ended.done():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    async def end(self, hang_up: bool = True) -> None:
        """End all processes of the session: SIGHUP, and SIGKILL for those who stay."""
        if self.ended.done():
            return
        with self.held():
            if hang_up:
                await asyncio.to_thread(_signal_all, self.pid, signal.SIGHUP, signal.SIGCONT)
                await self._wait_until_empty(_HANG_UP_SECONDS)
            gone = False
            until = time.monotonic() + _END_SECONDS
            while not gone and time.monotonic() < until:
                await asyncio.to_thread(_kill_all, self.pid)
                gone = await self._wait_until_empty(_HANG_UP_SECONDS)
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
    """Stopped first, all of them: places that killed ones leave would be taken by others' children."""
    seen: set[int] = set()
    for _ in range(_STOP_PASSES):
        found = _signal_all(session, signal.SIGSTOP)
        if found <= seen:
            break
        seen |= found
    _signal_all(session, signal.SIGKILL)


def _signal_all(session: int, *numbers: int) -> set[int]:
    """Signal the living processes of a session; who they were."""
    found: set[int] = set()
    for name in os.listdir("/proc"):
        if not name.isdigit() or not _is_member(int(name), session):
            continue
        with contextlib.suppress(ProcessLookupError):
            pidfd = os.pidfd_open(int(name))
            try:
                # Looked at again: the number may be somebody else's by now, the descriptor cannot.
                if not _is_member(int(name), session):
                    continue
                found.add(int(name))
                for number in numbers:
                    signal.pidfd_send_signal(pidfd, number)
            finally:
                os.close(pidfd)
    return found


def _is_member(pid: int, session: int) -> bool:
    """Whether it is of the session, and alive."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            words = file.read().rpartition(")")[2].split()
    except OSError:
        return False
    return int(words[3]) == session and words[0] not in _ENDED
