"""Running uvicorn inside a process of ours: its options, its signals, and how many descriptors it may use."""

from __future__ import annotations

import asyncio
import resource
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress

import uvicorn

# A supervisor or a person ends a door with these; each door installs its own handlers for them.
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class WebServer(uvicorn.Server):
    """A uvicorn server that leaves signals to the door.

    uvicorn's own handlers would raise the signal once more after the shutdown, and the process would end with the
    signal instead of our exit code.
    """

    def __init__(
        self, application: Callable[..., Awaitable[None]], protocol: type[asyncio.Protocol], shutdown_seconds: int
    ) -> None:
        """``shutdown_seconds``: how long requests may go on after ``should_exit`` is set."""
        super().__init__(
            uvicorn.Config(
                application,
                http=protocol,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                interface="asgi3",
                timeout_graceful_shutdown=shutdown_seconds,
                backlog=2048,
            )
        )

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def descriptor_limit() -> int:
    """The number of descriptors that this process may have open."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if allowed == resource.RLIM_INFINITY else allowed


def raise_descriptor_limit() -> int:
    """Raise the soft limit to the hard one, and return the limit that holds now.

    Each connection takes a descriptor, and the soft limit is low for the sake of programs that use select(2).
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return descriptor_limit()
