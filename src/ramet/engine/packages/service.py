"""The socket in a sandbox's own network at which its programs ask for packages. Trusts nothing that it reads.

A request is one line of JSON. The answers are lines too: some that tell how it goes, and one that ends it, with a
descriptor of the tree or with why there is none. Then the connection ends.
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

from ramet.engine.packages.asker import Asker
from ramet.engine.packages.keeping import Kept
from ramet.engine.packages.packages import NotAllowed, NotAvailable, Packages, report
from ramet.engine.packages.wanting import REQUEST_BYTES_AT_MOST, NotPlain, Wanted, read_request
from ramet.engine.seams import Body
from ramet.errors import RametError

# Every pod has a network of its own: the name is the same in all, so a copy of a sandbox knows it already.
NAME = "ramet-packages"
_BACKLOG = 16
_LINKS_AT_MOST = 8  # more wait in the backlog
_INSTALLATIONS_AT_MOST = 200  # in the life of a sandbox's body; what is found in the store does not count
_REQUEST_SECONDS = 10.0
_SEND_SECONDS = 30.0
_UNTOLD_LINES_AT_MOST = 1000
_CROWDED_SECONDS = 0.5
_FIRST_LOOK_SECONDS, _LAST_LOOK_SECONDS = 0.001, 1.0


class PackageService:
    """Owned by a sandbox with a network, for as long as it has one body. ``asker`` tells what it is at the moment."""

    def __init__(self, packages: Packages, body: Body, asker: Callable[[], Asker]) -> None:
        self._packages = packages
        self._body = body
        self._asker = asker
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
        """Listen. Where that is not possible there is no service, and pip does all by itself."""
        try:
            listener = await self._body.listen(NAME, _BACKLOG)
        except (OSError, RametError):
            return
        if listener is None:
            return  # code in the sandbox has taken the name
        if self._closed:
            listener.close()
            return
        listener.setblocking(False)
        self._listener = listener
        self._loop.add_reader(listener, self._on_connection)

    def close(self) -> None:
        """All at once: whoever waits in the sandbox finds the connection closed, and the name is free."""
        if self._closed:
            return
        self._closed = True
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
            self._loop.remove_reader(self._listener)  # until one ends
            return
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError:  # no descriptors left: somebody gives some back
            self._loop.remove_reader(self._listener)
            self._again = self._loop.call_later(_CROWDED_SECONDS, self._go_on)
            return
        connection.setblocking(False)
        task = self._loop.create_task(self._serve(connection))
        self._links.add(task)
        # Not before the task is over: until then the loop may wait for it.
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
            pass  # whoever asked has gone, or does not go on
        except Exception as error:
            report(error)

    async def _answer(self, link: _Link) -> None:
        async with asyncio.timeout(_REQUEST_SECONDS):
            line = await link.read_line()
        try:
            wanted, settings = read_request(line)
            asker = self._asker()
            why = asker.why_not(settings)
            if why is not None:
                raise NotAvailable(why)
            kept = await self._get(link, asker, wanted)
        except NotAllowed as error:
            await link.send({"why": str(error), "refused": True})
            return
        except (NotPlain, NotAvailable) as error:
            await link.send({"why": str(error)})
            return
        kept.borrowers.add(self._body)
        about = {"base": kept.about.base, "added": kept.about.added}
        await link.send({"given": about}, kept)
        await link.wait_until_taken()

    async def _get(self, link: _Link, asker: Asker, wanted: Wanted) -> Kept:
        """Given up when whoever asked hangs up."""
        getting = asyncio.create_task(self._get_in_turn(link, asker, wanted))
        gone = asyncio.create_task(link.wait_for_end())
        telling = asyncio.create_task(link.keep_telling())
        try:
            await asyncio.wait((getting, gone), return_when=asyncio.FIRST_COMPLETED)
            if getting.done():
                return getting.result()
            raise ConnectionError("whoever asked has gone")
        finally:
            for task in (getting, gone, telling):
                task.cancel()
            await asyncio.gather(getting, gone, telling, return_exceptions=True)

    async def _get_in_turn(self, link: _Link, asker: Asker, wanted: Wanted) -> Kept:
        """One at a time, so that one sandbox does not take the room of all."""
        async with self._turn:
            return await self._packages.get(asker, wanted, link.tell, self._may_install)

    def _may_install(self) -> bool:
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
        """Whoever says more than the request is as good as gone."""
        with suppress(OSError):
            await self._loop.sock_recv(self._connection, 1)

    async def wait_until_taken(self) -> None:
        """All that was sent was read, or thrown away.

        The kernel counts descriptors that lie unread in sockets for all of one uid, and lets nobody of it send one when
        there are too many: the engine could make no sandbox any more. So an answer keeps its place among the few.
        """
        seconds = _FIRST_LOOK_SECONDS
        while any(fcntl.ioctl(self._connection, termios.TIOCOUTQ, bytes(4))):
            await asyncio.sleep(seconds)
            seconds = min(2 * seconds, _LAST_LOOK_SECONDS)

    def tell(self, line: str) -> None:
        """A line of how it goes; left out when whoever asked does not read."""
        with suppress(asyncio.QueueFull):
            self._untold.put_nowait(line)

    async def keep_telling(self) -> None:
        with suppress(OSError, TimeoutError):
            while True:
                await self.send({"line": await self._untold.get()})

    async def send(self, answer: dict[str, object], kept: Kept | None = None) -> None:
        data = json.dumps(answer).encode() + b"\n"
        async with self._sending, asyncio.timeout(_SEND_SECONDS):
            if kept is not None:
                data = data[await self._send_first(data, kept) :]
            await self._loop.sock_sendall(self._connection, data)

    async def _send_first(self, data: bytes, kept: Kept) -> int:
        """With the descriptor; how many bytes."""
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
