"""Ends child processes without blocking the loop: the kernel takes a while to give gigabytes back."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal


def end_process(pidfd: int) -> asyncio.Future[None]:
    """Kill a child of the engine. The future is done when it is reaped and `pidfd`, which this owns, is closed."""
    loop = asyncio.get_running_loop()
    gone: asyncio.Future[None] = loop.create_future()

    def reap() -> None:
        with contextlib.suppress(ChildProcessError):  # it was reaped elsewhere
            os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG)
        # In this order: a closed number may belong to another file at once, and the loop would watch that one.
        loop.remove_reader(pidfd)
        os.close(pidfd)
        if not gone.done():
            gone.set_result(None)

    with contextlib.suppress(ProcessLookupError):  # it has ended; the reader below sees it all the same
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    loop.add_reader(pidfd, reap)
    return gone
