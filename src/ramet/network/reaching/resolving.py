"""Names to addresses, as the host's own resolver has them, in threads of which neither a sandbox nor an owner can take
all: a name whose servers never answer holds a thread for some 30 s, and nobody can take it back.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from ramet.protocol.rules import Address

_THREADS = 256  # made when they are needed, and kept
_AT_ONCE_EACH = 8  # of one sandbox
_WAITING_EACH = 256
_SECONDS = 10.0


class NotResolved(Exception):
    """A name leads nowhere, or nobody could say where to. ``missing``: it is known not to exist."""

    def __init__(self, message: str, missing: bool = False) -> None:
        super().__init__(message)
        self.missing = missing


class Resolver:
    """The threads of all sandboxes, and who has them.

    An owner may have half of those that the others leave, and each of its sandboxes a quarter of what the owner may
    have more: so there is one for whoever comes next, until very many ask for names that nobody answers for.
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
        """Wait for one. Whoever has it calls ``back`` when its work is done, also if nobody waits for that any more."""
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(lookups, deque()).append(turn)
        self._admit()
        try:
            await turn
        except BaseException:
            if turn.cancelled():
                self._leave_queue(lookups, turn)
            else:
                self.back(lookups)  # it was our turn in the moment in which we stopped waiting
            raise

    def back(self, lookups: Lookups) -> None:
        # What is zero then is not kept.
        self._of_owners -= Counter([lookups.owner])
        self._of_sandboxes -= Counter([lookups])
        self._admit()

    def submit(self, name: str) -> asyncio.Future[Sequence[Address]]:
        """By whoever has a thread."""
        return asyncio.wrap_future(self._threads.submit(self._ask, name))

    def _leave_queue(self, lookups: Lookups, turn: asyncio.Future[None]) -> None:
        queue = self._waiting.get(lookups)
        if queue is not None and turn in queue:
            queue.remove(turn)
            if not queue:
                del self._waiting[lookups]

    def _admit(self) -> None:
        """Give threads to those who wait and may have one, one for each sandbox in turn."""
        admitted = True
        while admitted:
            admitted = False
            for lookups in list(self._waiting):
                if not self._may_have_one(lookups):
                    continue
                queue = self._waiting.pop(lookups)
                turn = queue.popleft()
                if queue:
                    self._waiting[lookups] = queue  # behind the others
                if turn.done():
                    continue  # it was cancelled, and will leave the queue in a moment
                self._of_owners[lookups.owner] += 1
                self._of_sandboxes[lookups] += 1
                turn.set_result(None)
                admitted = True

    def _may_have_one(self, lookups: Lookups) -> bool:
        free = _THREADS - self._of_owners.total()
        left_to_owner = free // 2 - self._of_owners[lookups.owner]
        of_owner = left_to_owner > 0 or self._of_owners[lookups.owner] == 0
        of_sandbox = max(1, min(_AT_ONCE_EACH, left_to_owner // 4))
        return free > 0 and of_owner and self._of_sandboxes[lookups] < of_sandbox


class Lookups:
    """What one sandbox asks the resolver. A thread counts until it is back, also when nobody waits for it any more."""

    def __init__(self, resolver: Resolver, owner: str = "") -> None:
        self.owner = owner
        self._resolver = resolver
        self._waiting = 0

    async def addresses(self, name: str) -> list[Address]:
        """All addresses of a name, in the resolver's order, each once."""
        if self._waiting >= _WAITING_EACH:
            raise NotResolved(f"{name} was not looked up: this sandbox asks for too many names at once")
        self._waiting += 1
        try:
            async with asyncio.timeout(_SECONDS):
                await self._resolver.thread(self)
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
            answer.exception()  # whoever waited has seen it


def _ask_host(name: str) -> Sequence[Address]:
    """Blocks."""
    found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    return [ipaddress.ip_address(str(place[0]).partition("%")[0]) for *_, place in found]
