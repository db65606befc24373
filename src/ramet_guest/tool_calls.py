"""Calls of tools: a connection to the tool socket for each call under way, kept for later ones.

Any thread of any process of the sandbox may call. What a process inherits by forking belongs to its parent; what a
thawed sandbox finds is dead. An exception in the middle of an exchange hangs up, which tells the engine that nobody
waits: a connection is kept only when an answer was read to its end.
"""

from __future__ import annotations

from _socket import AF_UNIX, SHUT_RDWR, SOCK_STREAM, socket
from errno import EBADF, ENOTSOCK
from posix import getpid, register_at_fork

from ramet_guest.tool_errors import ToolError, failure
from ramet_guest.tool_frames import READ_BYTES, Answer, NotUnderstood
from ramet_guest.tool_values import decode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

IDLE_AT_MOST = 8


class Unanswered(Exception):
    """The connection was closed before anything of the answer came."""


class Connections:
    """Those of this process. Owns the ones that no call is using; has no lock, which a fork could leave taken."""

    def __init__(self) -> None:
        self.address = b""
        self._pid = getpid()
        self._idle: list[socket] = []

    def __repr__(self) -> str:
        return f"<Connections to {self.address!r}, {len(self._idle)} idle>"

    def use(self, name: str) -> None:
        """Calls go to the socket with this abstract name from now on."""
        address = b"\0" + name.encode()
        if address != self.address:
            self.address = address
            self.forget()

    def forget(self) -> None:
        """Closes what is idle."""
        idle, self._idle = self._idle, []
        self._pid = getpid()
        for connection in idle:
            connection.close()

    def take(self) -> socket | None:
        """One that was used before, if there is one."""
        if getpid() != self._pid:
            # A fork that Python was not told of. Their numbers may be those of other files by now.
            idle, self._idle, self._pid = self._idle, [], getpid()
            for connection in idle:
                connection.detach()
        return self._idle.pop() if self._idle else None

    def make(self, blocking: bool) -> socket:
        connection = socket(AF_UNIX, SOCK_STREAM)
        # Not as `socket.setdefaulttimeout` of user code has it.
        connection.setblocking(blocking)
        return connection

    def give_back(self, connection: socket, keep: int = IDLE_AT_MOST) -> None:
        if len(self._idle) < keep:
            self._idle.append(connection)
        else:
            hang_up(connection)

    def trim(self) -> None:
        """Closes what a crowd of calls leaves behind."""
        while len(self._idle) > IDLE_AT_MOST:
            hang_up(self._idle.pop())


connections = Connections()
# At once: later the child may have put other files under these numbers.
register_at_fork(after_in_child=connections.forget)


def hang_up(connection: socket) -> None:
    """Closes it for the other side too if a forked child still holds a copy. Interrupts wait until this is over."""
    try:
        connection.shutdown(SHUT_RDWR)
    except OSError as error:
        if error.errno in (EBADF, ENOTSOCK):
            # User code closed our descriptor; what has its number now is not ours to close.
            connection.detach()
            return
    connection.close()


def call(tool: str, request: bytes, plain: bool = False) -> tuple[Any, ToolError | None]:
    """Makes a call and waits for it; its value, or how it failed."""
    try:
        answer = ask(request)
    except ToolError as error:
        error.tool = tool
        return None, error.with_traceback(None)
    return read(tool, answer, plain)


def ask(request: bytes) -> Answer:
    connection = connections.take()
    if connection is not None:
        try:
            return exchange(connection, request)
        except Unanswered:
            pass  # of an earlier life of the sandbox, or closed by an engine that needed room for others
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


def exchange(connection: socket, request: bytes) -> Answer:
    begun = b""
    try:
        if connection.gettimeout() is not None:
            connection.setblocking(True)
        connection.sendall(request)
        begun = connection.recv(READ_BYTES)
        answer = Answer(begun)
        while not answer.complete:
            with answer.space() as space:
                count = connection.recv_into(space)
            answer.received(count)
    except BaseException as error:
        hang_up(connection)
        raise explained(error, not begun) from None
    connections.give_back(connection)
    return answer


def read(tool: str, answer: Answer, plain: bool = False) -> tuple[Any, ToolError | None]:
    """What an answer says."""
    header = answer.header
    if header.get("outcome") == "value":
        try:
            return decode(answer.value, plain), None
        except Exception as error:
            message = f"the value that the tool returned cannot be read here: {type(error).__name__}: {error}"
            return None, ToolError(message, tool)
    return None, failure(tool, str(header.get("kind", "error")), str(header.get("message", "")))


def explained(error: BaseException, unanswered: bool = False) -> BaseException:
    """What an exception in the middle of an exchange means to the caller."""
    if isinstance(error, NotUnderstood) or (isinstance(error, OSError) and error.errno is not None):
        return Unanswered() if unanswered else broken_off()
    return error  # of a signal's handler, whatever it is: the kernel always gives a number


def broken_off() -> ToolError:
    return ToolError("the engine, which passes calls on to tools, cannot be reached", kind="gone")
