"""Resolves names with the host's own resolver, in threads of which no sandbox and no owner can take all.

A name whose servers never answer occupies a thread for some 30 s, and a thread in getaddrinfo cannot be stopped.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from ramet.protocol.network.rules import Address

_THREADS = 256  # created when needed, and kept
_AT_ONCE_EACH = 8  # per sandbox
_WAITING_EACH = 256
_SECONDS = 10.0


class NotResolved(Exception):
    """A name could not be resolved. ``missing``: it is known not to exist."""

    def __init__(self, message: str, missing: bool = False) -> None:
        super().__init__(message)
        self.missing = missing


class Resolver:
    """The threads for all sandboxes, and who uses them.

    An owner may use half of what the others leave, and each of its sandboxes a quarter of what is left to the owner. So
    there is a thread for the next one, until very many ask for names without an answer.
    """

    def __init__(self, ask: Callable[[str], Sequence[Address]] | None = None) -> None:
        self._ask = ask or _ask_host
        self._threads = ThreadPoolExecutor(_THREADS, "resolver")
        self._of_owners: Counter[str] = Counter()
        self._of_sandboxes: Counter[Lookups] = Counter()
        self._waiting: dict[Lookups, deque[asyncio.Future[None]]] = {}

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def thread(self, lookups: Lookups) -> None:
        """Wait for a thread. The caller calls ``back`` when the work is done, even if its own caller has left."""
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(lookups, deque()).append(turn)
        self._admit()
        try:
            await turn
        except BaseException:
            if turn.cancelled():
                self._leave_queue(lookups, turn)
            else:
                # We got the thread in the same turn of the loop in which we were cancelled: return it.
                self.back(lookups)
            raise

    def back(self, lookups: Lookups) -> None:
        """Return a thread and admit the next."""
        # Counter subtraction drops entries that reach zero, so the tables do not grow with every sandbox ever seen.
        self._of_owners -= Counter([lookups.owner])
        self._of_sandboxes -= Counter([lookups])
        self._admit()

    def submit(self, name: str) -> asyncio.Future[Sequence[Address]]:
        """Resolve a name. The caller must hold a thread."""
        return asyncio.wrap_future(self._threads.submit(self._ask, name))

    def _leave_queue(self, lookups: Lookups, turn: asyncio.Future[None]) -> None:
        queue = self._waiting.get(lookups)
        if queue is not None and turn in queue:
            queue.remove(turn)
            if not queue:
                del self._waiting[lookups]

    def _admit(self) -> None:
        """Give threads to sandboxes that wait and may have one, one each in turn."""
        admitted = True
        while admitted:
            admitted = False
            for lookups in list(self._waiting):
                if not self._may_have_one(lookups):
                    continue
                # Removed and put back at the end: sandboxes take turns, however many lookups one of them has queued.
                queue = self._waiting.pop(lookups)
                turn = queue.popleft()
                if queue:
                    self._waiting[lookups] = queue  # behind the other sandboxes
                if turn.done():
                    continue  # it was cancelled, and removes itself in a moment
                self._of_owners[lookups.owner] += 1
                self._of_sandboxes[lookups] += 1
                turn.set_result(None)
                admitted = True

    def _may_have_one(self, lookups: Lookups) -> bool:
        free = _THREADS - self._of_owners.total()
        # Half of what is free, so that owners who come later find threads. Every owner may have one in any case.
        left_to_owner = free // 2 - self._of_owners[lookups.owner]
        of_owner = left_to_owner > 0 or self._of_owners[lookups.owner] == 0
        of_sandbox = max(1, min(_AT_ONCE_EACH, left_to_owner // 4))
        return free > 0 and of_owner and self._of_sandboxes[lookups] < of_sandbox


class Lookups:
    """The lookups of one sandbox. A thread counts until it returns, even if its caller has left."""

    def __init__(self, resolver: Resolver, owner: str = "") -> None:
        self.owner = owner
        self._resolver = resolver
        self._waiting = 0

    async def addresses(self, name: str) -> list[Address]:
        """All addresses of a name, each once, in the resolver's order. Raises NotResolved."""
        # Waiters cost memory, and a sandbox chooses how many there are.
        if self._waiting >= _WAITING_EACH:
            raise NotResolved(f"{name} was not looked up: this sandbox asks for too many names at once")
        self._waiting += 1
        try:
            async with asyncio.timeout(_SECONDS):
                await self._resolver.thread(self)
                # Shielded: a timeout ends our wait, not the thread. `_back` counts it when it really returns.
                found = await asyncio.shield(self._submit(name))
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

    def _submit(self, name: str) -> asyncio.Future[Sequence[Address]]:
        try:
            answer = self._resolver.submit(name)
        except RuntimeError:  # the system gives us no more threads
            self._resolver.back(self)
            raise NotResolved(f"{name} cannot be looked up: too many names are being looked up") from None
        answer.add_done_callback(self._back)
        return answer

    def _back(self, answer: asyncio.Future[Sequence[Address]]) -> None:
        self._resolver.back(self)
        if not answer.cancelled():
            answer.exception()  # mark as retrieved: the caller has seen it, or has left


def _ask_host(name: str) -> Sequence[Address]:
    """Ask the host's resolver. Blocks; raises OSError, UnicodeError."""
    found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    return [ipaddress.ip_address(str(place[0]).partition("%")[0]) for *_, place in found]
