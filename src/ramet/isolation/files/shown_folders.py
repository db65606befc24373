"""The host folders that one pod shows read-only, and how changes on the host become visible there.

Each is shown through an overlay of the pod's own (native/pod/tree.c says why). The kernel looks a name up in the host's
folder once and caches the answer, including "does not exist". What the host later replaces or creates under that name
would not be seen. A remount that changes nothing makes the kernel drop all cached names that are not in use.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Sequence

from ramet.isolation.kernel import syscalls

# A sandbox can make the kernel cache as many names as its memory limit allows (190 bytes each), and dropping them then
# takes seconds. Callers wait at most this long; the work itself continues.
_WAIT_SECONDS = 0.25


class ShownFolders:
    """The mounts of one pod's shown folders, one descriptor each. Closed with the pod."""

    def __init__(self, mounts: Sequence[int] = ()) -> None:
        self._mounts = list(mounts)
        # At most one remount runs per pod, or a sandbox that makes them slow would collect threads.
        self._under_way: asyncio.Future[None] | None = None
        self._closed = False

    def __bool__(self) -> bool:
        return bool(self._mounts)

    async def refresh(self) -> None:
        """Make what the host has changed until now visible, unless the sandbox has made that slow."""
        if not self._mounts or self._closed:
            return
        if self._under_way is not None:
            # The remount in progress may have dropped the name before it changed, so it does not count for this call.
            # Wait for it, then start another.
            await asyncio.wait([self._under_way], timeout=_WAIT_SECONDS)
        # Another caller may have started one while we waited. It began after our caller's change, so it is the one to
        # await.
        if self._under_way is None and not self._closed:
            self._under_way = self._begin()
        if self._under_way is not None:
            await asyncio.wait([self._under_way], timeout=_WAIT_SECONDS)

    def _begin(self) -> asyncio.Future[None] | None:
        """Start a remount in its own thread: in a shared pool, slow remounts of one sandbox would delay another's."""
        loop = asyncio.get_running_loop()
        over: asyncio.Future[None] = loop.create_future()

        # In the thread: only system calls on descriptors that stay open until `end` has run, see `close`.
        def work() -> None:
            for mount in self._mounts:
                with contextlib.suppress(OSError):
                    syscalls.forget_names(mount)
            with contextlib.suppress(RuntimeError):  # the loop is closed: the engine is ending
                loop.call_soon_threadsafe(end)

        # Back in the event loop, so `_under_way` and `_closed` need no lock.
        def end() -> None:
            self._under_way = None
            over.set_result(None)
            if self._closed:
                self._release()

        try:
            threading.Thread(target=work, name="ramet-refresh", daemon=True).start()
        except RuntimeError:  # no thread available: the pod keeps showing what it showed
            return None
        return over

    def close(self) -> None:
        """Close the descriptors, or leave that to the remount in progress, under which no number may be reused."""
        if not self._closed:
            self._closed = True
            if self._under_way is None:
                self._release()

    def _release(self) -> None:
        for mount in self._mounts:
            os.close(mount)
        self._mounts = []
