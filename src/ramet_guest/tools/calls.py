"""Tool calls: each call under way has a connection to the tool socket, which is kept for later ones.

Any thread of any process of the sandbox may call. Connections that a process inherits by a fork belong to its parent;
those that a thawed sandbox finds are dead. An exception in the middle of an exchange closes the connection, which tells
the engine that the caller is gone. A connection is kept only if its answer was read to the end.
"""

from __future__ import annotations

from _socket import AF_UNIX, SHUT_RDWR, SOCK_STREAM, socket
from errno import EBADF, ENOTSOCK
from posix import getpid, register_at_fork

from ramet_guest.tools.errors import ToolError, failure
from ramet_guest.tools.frames import READ_BYTES, GuestToolAnswer, MalformedAnswer
from ramet_guest.tools.returned_values import decode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

IDLE_AT_MOST = 8


class Unanswered(Exception):
    """Raised when the connection was closed before any byte of the answer arrived."""


class ToolConnections:
    """The idle connections of this process.

    It has no lock: a fork in another thread could copy it in the locked state, and the child would wait for ever.
    Single operations on a list are atomic.
    """

    def __init__(self) -> None:
        self.address = b""
        self._pid = getpid()
        self._idle: list[socket] = []

    def __repr__(self) -> str:
        return f"<ToolConnections to {self.address!r}, {len(self._idle)} idle>"

    def use(self, name: str) -> None:
        """Directs calls to the socket with this abstract name."""
        address = b"\0" + name.encode()
        if address != self.address:
            self.address = address
            self.forget()

    def forget(self) -> None:
        """Closes all idle connections."""
        idle, self._idle = self._idle, []
        self._pid = getpid()
        for connection in idle:
            connection.close()

    def take(self) -> socket | None:
        """Returns a kept connection, or None."""
        if getpid() != self._pid:
            # The process was forked without Python's hooks. Detach instead of closing: the child may have opened other
            # files under these numbers.
            idle, self._idle, self._pid = self._idle, [], getpid()
            for connection in idle:
                connection.detach()
        return self._idle.pop() if self._idle else None

    def make(self, blocking: bool) -> socket:
        connection = socket(AF_UNIX, SOCK_STREAM)
        # Overrides the `socket.setdefaulttimeout` of user code.
        connection.setblocking(blocking)
        return connection

    def give_back(self, connection: socket, keep: int = IDLE_AT_MOST) -> None:
        if len(self._idle) < keep:
            self._idle.append(connection)
        else:
            hang_up(connection)

    def trim(self) -> None:
        """Closes connections that a burst of calls left behind."""
        while len(self._idle) > IDLE_AT_MOST:
            hang_up(self._idle.pop())


connections = ToolConnections()
# Closes them right after the fork: later the child may have opened other files under these numbers.
register_at_fork(after_in_child=connections.forget)


def hang_up(connection: socket) -> None:
    """Closes a connection, also for the engine if a forked child still holds a copy.

    Interrupts wait until this is over.
    """
    try:
        connection.shutdown(SHUT_RDWR)
    except OSError as error:
        if error.errno in (EBADF, ENOTSOCK):
            # User code closed our descriptor; its number may now belong to another file, so do not close it.
            connection.detach()
            return
    connection.close()


def call(tool: str, request: bytes, plain: bool = False) -> tuple[Any, ToolError | None]:
    """Makes a call and waits for it. Returns its value or its error."""
    try:
        answer = ask(request)
    except ToolError as error:
        error.tool = tool
        return None, error.with_traceback(None)
    return read(tool, answer, plain)


def ask(request: bytes) -> GuestToolAnswer:
    connection = connections.take()
    if connection is not None:
        try:
            return exchange(connection, request)
        except Unanswered:
            pass  # it was from before a thaw, or the engine closed it to make room
    connection = connections.make(blocking=True)
    try:
        connection.connect(connections.address)
    except BaseException as error:
        connection.close()
        raise explained(error) from None
    try:
        return exchange(connection, request)
    except Unanswered:
        raise broken_off() from None


def exchange(connection: socket, request: bytes) -> GuestToolAnswer:
    begun = b""
    try:
        if connection.gettimeout() is not None:
            connection.setblocking(True)
        connection.sendall(request)
        begun = connection.recv(READ_BYTES)
        answer = GuestToolAnswer(begun)
        while not answer.complete:
            with answer.space() as space:
                count = connection.recv_into(space)
            answer.received(count)
    except BaseException as error:
        # Also if interrupted: the rest of the answer is still to come on this connection, so it cannot be kept. Closing
        # it tells the engine that the caller is gone.
        hang_up(connection)
        raise explained(error, not begun) from None
    connections.give_back(connection)
    return answer


def read(tool: str, answer: GuestToolAnswer, plain: bool = False) -> tuple[Any, ToolError | None]:
    """Reads the value or the error out of an answer."""
    header = answer.header
    if header.get("outcome") == "value":
        try:
            return decode(answer.value, plain), None
        except Exception as error:
            message = f"the value that the tool returned cannot be read here: {type(error).__name__}: {error}"
            return None, ToolError(message, tool)
    return None, failure(tool, str(header.get("kind", "error")), str(header.get("message", "")))


def explained(error: BaseException, unanswered: bool = False) -> BaseException:
    """Maps an exception in the middle of an exchange to the one for the caller."""
    if isinstance(error, MalformedAnswer) or (isinstance(error, OSError) and error.errno is not None):
        return Unanswered() if unanswered else broken_off()
    return error  # raised by a signal handler of user code: errors of the kernel always have a number


def broken_off() -> ToolError:
    return ToolError("the engine, which passes calls on to tools, cannot be reached", kind="gone")
