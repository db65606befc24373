"""The folders of the host that one pod shows read-only, and how what the host changes in them becomes visible there.

Each is shown through an overlay of the pod's own (native/pod.c says why). The kernel asks the folder below once for
each name that is looked up, and keeps the answer, also that there is nothing: what the host replaces or makes later
under such a name would not be seen. A remount that changes nothing makes it forget all answers that nobody uses.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Sequence

from ramet.isolation import syscalls

# A sandbox can have the kernel remember as many names as its memory limit has room for (190 bytes each), and forgetting
# them takes seconds then. Whoever waits goes on after this; the work goes on too.
_WAIT_SECONDS = 0.25


class ShownFolders:
    """Owns a descriptor for each folder. Closed with its pod."""

    def __init__(self, mounts: Sequence[int] = ()) -> None:
        self._mounts = list(mounts)
        self._under_way: asyncio.Future[None] | None = None
        self._closed = False

    def __bool__(self) -> bool:
        return bool(self._mounts)

    async def refresh(self) -> None:
        """What the host has changed until now is seen when this returns, unless a sandbox has made that slow."""
        if not self._mounts or self._closed:
            return
        if self._under_way is not None:
            # It may have passed by the name that just changed.
            await asyncio.wait([self._under_way], timeout=_WAIT_SECONDS)
        if self._under_way is None and not self._closed:
            self._under_way = self._begin()
        if self._under_way is not None:
            await asyncio.wait([self._under_way], timeout=_WAIT_SECONDS)

    def _begin(self) -> asyncio.Future[None] | None:
        """In a thread of its own: in a pool, the slow ones of one sandbox would hold up those of another."""
        loop = asyncio.get_running_loop()
        over: asyncio.Future[None] = loop.create_future()

        def work() -> None:
            for mount in self._mounts:
                with contextlib.suppress(OSError):
                    syscalls.forget_names(mount)
            with contextlib.suppress(RuntimeError):  # the loop has ended, and the engine with it
                loop.call_soon_threadsafe(end)

        def end() -> None:
            self._under_way = None
            over.set_result(None)
            if self._closed:
                self._release()

        try:
            threading.Thread(target=work, name="ramet-refresh", daemon=True).start()
        except RuntimeError:  # no thread to be had: what is seen stays as it was
            return None
        return over

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            if self._under_way is None:
                self._release()

    def _release(self) -> None:
        for mount in self._mounts:
            os.close(mount)
        self._mounts = []
