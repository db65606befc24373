"""Ending processes of the engine without ever waiting for one: giving back gigabytes takes the kernel a while."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal


def end_process(pidfd: int) -> asyncio.Future[None]:
    """Kill a child of the engine; it is reaped and `pidfd` closed when it is gone, which the future tells."""
    loop = asyncio.get_running_loop()
    gone: asyncio.Future[None] = loop.create_future()

    def reap() -> None:
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG)
        loop.remove_reader(pidfd)
        os.close(pidfd)
        if not gone.done():
            gone.set_result(None)

    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    loop.add_reader(pidfd, reap)
    return gone
