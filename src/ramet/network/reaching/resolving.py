"""Names to addresses, as the host's own resolver has them, in threads that one sandbox cannot take all of."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from ramet.protocol.rules import Address

# A resolver that does not answer holds a thread for some 30 s.
_THREADS = 64
_AT_ONCE_EACH = 8  # of one sandbox
_WAITING_EACH = 256
_SECONDS = 10.0


class NotResolved(Exception):
    """A name leads nowhere, or nobody could say where to. ``missing``: it is known not to exist."""

    def __init__(self, message: str, missing: bool = False) -> None:
        super().__init__(message)
        self.missing = missing


class Resolver:
    """The threads of all sandboxes."""

    def __init__(self, ask: Callable[[str], Sequence[Address]] | None = None) -> None:
        self._ask = ask or _ask_host
        self._threads = ThreadPoolExecutor(_THREADS, "resolver")

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def submit(self, name: str) -> asyncio.Future[Sequence[Address]]:
        return asyncio.wrap_future(self._threads.submit(self._ask, name))


class Lookups:
    """What one sandbox asks the resolver. A thread counts until it is back, also when nobody waits for it any more."""

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver
        self._turns = asyncio.Semaphore(_AT_ONCE_EACH)
        self._waiting = 0

    async def addresses(self, name: str) -> list[Address]:
        """All addresses of a name, in the resolver's order, each once."""
        if self._waiting >= _WAITING_EACH:
            raise NotResolved(f"{name} is not looked up: this sandbox asks for too many names at once")
        self._waiting += 1
        try:
            async with asyncio.timeout(_SECONDS):
                await self._turns.acquire()
                answer = self._resolver.submit(name)
                answer.add_done_callback(self._back)
                found = await asyncio.shield(answer)
        except TimeoutError:
            raise NotResolved(f"{name} cannot be looked up: the resolver did not answer") from None
        except OSError as error:
            missing = isinstance(error, socket.gaierror) and error.errno in (socket.EAI_NONAME, socket.EAI_NODATA)
            raise NotResolved(f"{name} cannot be looked up: {error.strerror}", missing) from None
        except UnicodeError:
            raise NotResolved(f"{name} is not a name that can be looked up", missing=True) from None
        finally:
            self._waiting -= 1
        if not found:
            raise NotResolved(f"{name} has no address", missing=True)
        return list(dict.fromkeys(found))

    def _back(self, answer: asyncio.Future[Sequence[Address]]) -> None:
        self._turns.release()
        if not answer.cancelled():
            answer.exception()  # whoever waited has seen it


def _ask_host(name: str) -> Sequence[Address]:
    """Blocks."""
    found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    return [ipaddress.ip_address(str(place[0]).partition("%")[0]) for *_, place in found]
