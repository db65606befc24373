"""The socket in a sandbox's network namespace at which its programs ask for packages. Trusts no byte that it reads.

A request is one line of JSON. The answers are lines, too: progress, then a last one with a descriptor of the tree, or
with the reason why there is none. Then the connection ends.
"""

from __future__ import annotations

import array
import asyncio
import fcntl
import json
import socket
import termios
from collections.abc import Callable
from contextlib import suppress

from ramet.engine.packages.packages import NotAllowed, NotAvailable, Packages, report
from ramet.engine.packages.requester import Requester
from ramet.engine.packages.requirements import REQUEST_BYTES_AT_MOST, NotPlain, Requirements, read_request
from ramet.engine.packages.trees import Kept
from ramet.engine.seams import Body
from ramet.errors import RametError
from ramet_guest.wire import PACKAGES_SOCKET

# Abstract unix sockets belong to a network namespace, and every pod has its own. So the name can be the same in all
# pods, and a copy of a sandbox knows it already.
NAME = PACKAGES_SOCKET
_BACKLOG = 16
_LINKS_AT_MOST = 8  # further connections wait in the backlog
_INSTALLATIONS_AT_MOST = 200  # for each body of a sandbox; requests that the store answers do not count
_REQUEST_SECONDS = 10.0
_SEND_SECONDS = 30.0
_UNTOLD_LINES_AT_MOST = 1000
_CROWDED_SECONDS = 0.5
_FIRST_LOOK_SECONDS, _LAST_LOOK_SECONDS = 0.001, 1.0


class PackageService:
    """Owned by a sandbox with a network, one for each body. ``requester`` describes the sandbox as it is now."""

    def __init__(self, packages: Packages, body: Body, requester: Callable[[], Requester]) -> None:
        self._packages = packages
        self._body = body
        self._requester = requester
        self._loop = asyncio.get_running_loop()
        self._listener: socket.socket | None = None
        self._closed = False
        self._again: asyncio.TimerHandle | None = None
        self._links: set[asyncio.Task[None]] = set()
        self._turn = asyncio.Lock()
        self._installations = 0

    def __repr__(self) -> str:
        return f"<PackageService {len(self._links)} links, {self._installations} installations>"

    async def open(self) -> None:
        """Listen in the sandbox. If that is not possible, there is no service and pip does everything itself."""
        try:
            listener = await self._body.listen(NAME, _BACKLOG)
        except (OSError, RametError):
            return
        if listener is None:
            return  # code in the sandbox has taken the name
        if self._closed:  # close() ran while the pod made the socket
            listener.close()
            return
        listener.setblocking(False)
        self._listener = listener
        self._loop.add_reader(listener, self._on_connection)

    def close(self) -> None:
        """Close listener and connections at once. The name in the pod is free afterwards, for the next service."""
        if self._closed:
            return
        self._closed = True  # first: an `open` that is waiting for the pod sees it, and closes its listener
        if self._again is not None:
            self._again.cancel()
        if self._listener is not None:
            self._loop.remove_reader(self._listener)
            self._listener.close()
            self._listener = None
        for task in self._links:
            task.cancel()

    def _on_connection(self) -> None:
        if self._listener is None:
            return
        if len(self._links) >= _LINKS_AT_MOST:
            self._loop.remove_reader(self._listener)  # until a connection ends
            return
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError:  # out of descriptors: try again when others may have returned some
            self._loop.remove_reader(self._listener)
            self._again = self._loop.call_later(_CROWDED_SECONDS, self._go_on)
            return
        connection.setblocking(False)
        task = self._loop.create_task(self._serve(connection))
        self._links.add(task)
        # The connection is closed only when the task is done: until then the loop may watch its descriptor, and a
        # closed number can be reused for another socket.
        task.add_done_callback(lambda _: self._on_link_end(task, connection))

    def _on_link_end(self, task: asyncio.Task[None], connection: socket.socket) -> None:
        connection.close()
        self._links.discard(task)
        self._go_on()

    def _go_on(self) -> None:
        if self._listener is not None:
            self._loop.add_reader(self._listener, self._on_connection)

    async def _serve(self, connection: socket.socket) -> None:
        try:
            await self._answer(_Link(connection))
        except (OSError, TimeoutError):
            pass  # the program has disconnected, or is too slow
        except Exception as error:
            report(error)

    async def _answer(self, link: _Link) -> None:
        async with asyncio.timeout(_REQUEST_SECONDS):
            line = await link.read_line()
        try:
            wanted, settings = read_request(line)
            requester = self._requester()
            why = requester.why_not(settings)
            if why is not None:
                raise NotAvailable(why)
            kept = await self._get(link, requester, wanted)
        except NotAllowed as error:
            await link.send({"why": str(error), "refused": True})
            return
        except (NotPlain, NotAvailable) as error:
            await link.send({"why": str(error)})
            return
        # Before it is sent: from then on the sandbox may hold the tree, and the store must not count on its memory.
        kept.borrowers.add(self._body)
        about = {"base": kept.about.base, "added": kept.about.added}
        await link.send({"given": about}, kept)
        await link.wait_until_taken()

    async def _get(self, link: _Link, requester: Requester, wanted: Requirements) -> Kept:
        """Get the tree; give up when the program disconnects. Raises NotAvailable, or ConnectionError."""
        getting = asyncio.create_task(self._get_in_turn(link, requester, wanted))
        gone = asyncio.create_task(link.wait_for_end())
        telling = asyncio.create_task(link.keep_telling())
        try:
            await asyncio.wait((getting, gone), return_when=asyncio.FIRST_COMPLETED)
            if getting.done():
                return getting.result()
            raise ConnectionError("the requester disconnected")
        finally:
            # Waited for: `telling` must not write between the lines of the final answer, and `gone` and `telling` use
            # the connection, which is closed next.
            for task in (getting, gone, telling):
                task.cancel()
            await asyncio.gather(getting, gone, telling, return_exceptions=True)

    async def _get_in_turn(self, link: _Link, requester: Requester, wanted: Requirements) -> Kept:
        """One request at a time, so that one sandbox does not take the room of all others."""
        async with self._turn:
            return await self._packages.get(requester, wanted, link.tell, self._may_install)

    def _may_install(self) -> bool:
        """Count an installation that is about to begin. False if this body has had too many."""
        self._installations += 1
        return self._installations <= _INSTALLATIONS_AT_MOST


class _Link:
    """One connection, from its only request to its last answer."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._untold: asyncio.Queue[str] = asyncio.Queue(_UNTOLD_LINES_AT_MOST)
        self._sending = asyncio.Lock()

    async def read_line(self) -> bytes:
        data = b""
        while b"\n" not in data:
            piece = await self._loop.sock_recv(self._connection, 65536)
            if not piece:
                raise ConnectionError("no request")
            data += piece
            if len(data) > REQUEST_BYTES_AT_MOST:
                raise ConnectionError("a request that is too long")
        return data.partition(b"\n")[0]

    async def wait_for_end(self) -> None:
        """Wait until the program disconnects. One that sends more than its request is treated as disconnected."""
        with suppress(OSError):
            await self._loop.sock_recv(self._connection, 1)

    async def wait_until_taken(self) -> None:
        """Wait until the program has read everything, or has disconnected.

        The kernel counts the descriptors that lie unread in unix sockets per uid, and refuses to send more when there
        are too many; then the engine could make no sandboxes. So an unread answer keeps its place among the few
        connections of its sandbox. No event tells when a peer has read: the loop polls.
        """
        seconds = _FIRST_LOOK_SECONDS
        while any(fcntl.ioctl(self._connection, termios.TIOCOUTQ, bytes(4))):
            await asyncio.sleep(seconds)
            seconds = min(2 * seconds, _LAST_LOOK_SECONDS)

    def tell(self, line: str) -> None:
        """Queue a line of progress; dropped if the program does not read."""
        with suppress(asyncio.QueueFull):
            self._untold.put_nowait(line)

    async def keep_telling(self) -> None:
        with suppress(OSError, TimeoutError):
            while True:
                await self.send({"line": await self._untold.get()})

    async def send(self, answer: dict[str, object], kept: Kept | None = None) -> None:
        data = json.dumps(answer).encode() + b"\n"
        # The lock: a line of progress that waits for room in the socket must not mix with another answer.
        async with self._sending, asyncio.timeout(_SEND_SECONDS):
            if kept is not None:
                data = data[await self._send_first(data, kept) :]
            await self._loop.sock_sendall(self._connection, data)

    async def _send_first(self, data: bytes, kept: Kept) -> int:
        """Send the first bytes together with the descriptor. Returns how many bytes were sent."""
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [kept.mount.fileno()]))]
        while True:
            try:
                return self._connection.sendmsg([data], rights)
            except BlockingIOError:
                room = self._loop.create_future()
                self._loop.add_writer(self._connection, _settle, room)
                try:
                    await room
                finally:
                    self._loop.remove_writer(self._connection)


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
