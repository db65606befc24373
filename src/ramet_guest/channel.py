"""Frames on the control socket.

    u32 length of all that follows | u8 version | u8 kind | u32 header length | header (JSON, ASCII) | blob

All numbers are little-endian. The channel is used by the main thread; other threads may only publish results.
"""

import json
import os
import select
import socket
import struct
from collections.abc import Callable
from threading import Lock
from typing import Any, NamedTuple, NoReturn

from ramet_guest.wire import DONE, FRAME_VERSION, INTERRUPT, REPL_CONTROL, RESULT, TAKEN

MAXIMUM_FRAME_BYTES = (64 << 20) + (64 << 10)
CHUNK_BYTES = 32 << 10
MAXIMUM_HELD_BYTES = 64 << 10

_PREFIX = struct.Struct("<IBBI")
_AFTER_LENGTH = _PREFIX.size - 4
_encode_json = json.JSONEncoder(ensure_ascii=True, separators=(",", ":")).encode
_scan_json: Callable[[str, int], tuple[Any, int]] = json.JSONDecoder().raw_decode
_getpid = os.getpid
_poll = select.poll


class GuestFrame(NamedTuple):
    kind: int
    header: dict[str, Any]
    blob: bytes


class ControlChannel:
    """The guest's end of the control socket. Owned by the process whose pid is `pid`; forked copies have none."""

    def __init__(self, descriptor: int) -> None:
        self.pid = _getpid()
        self._lock = Lock()
        self._pending = b""
        self._held = b""
        # The id of the running cell. None between cells: results of background threads are dropped then.
        self.cell: int | None = None
        # The last result that the engine says to have taken, and whether it has interrupted the cell meanwhile.
        self._taken = 0
        self._interrupt_read = False
        self.attach(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, fileno=descriptor))

    def attach(self, control: socket.socket) -> socket.socket | None:
        """Talks over `control` from now on; returns the one used before."""
        before = getattr(self, "_socket", None)
        self._socket: socket.socket | None = control
        self._receive = control.recv
        self._send_all = control.sendall
        self._inode = os.fstat(control.fileno()).st_ino
        return before

    def replaced(self) -> bool:
        """Whether our descriptor is another socket than it was: the process was thawed and has not noticed yet."""
        try:
            return self._socket is not None and os.fstat(self._socket.fileno()).st_ino != self._inode
        except OSError:  # user code closed it
            return False

    @property
    def life(self) -> int:
        """Another number for each process that this one has been."""
        return self._inode

    def adopt(self) -> None:
        """This process owns the socket that the descriptor is now."""
        self.pid = _getpid()
        if self.replaced():
            self._inode = os.fstat(self.fileno()).st_ino

    def abandon(self) -> None:
        """Closes our copy of the socket. We are a forked child: only the parent may answer."""
        control, self._socket = self._socket, None
        if control is not None:
            control.close()

    def receive(self) -> GuestFrame:
        """Blocks until a whole frame has come. The engine's leaving ends this process."""
        data = self._pending
        while len(data) < _PREFIX.size:
            data = self._more(data)
        length, version, kind, header_length = _PREFIX.unpack_from(data)
        header_end = _PREFIX.size + header_length
        end = 4 + length
        if version != FRAME_VERSION or header_end > end or length > MAXIMUM_FRAME_BYTES:
            leave(1)
        if len(data) < end:
            data = self._rest(data, end)
        self._pending = data[end:]
        header: dict[str, Any] = _scan_json(data[_PREFIX.size : header_end].decode("ascii"), 0)[0]
        return GuestFrame(kind, header, data[header_end:end])

    def _more(self, data: bytes) -> bytes:
        try:
            chunk = self._receive(CHUNK_BYTES)
        except BlockingIOError:  # user code made the descriptor non-blocking
            select.select([REPL_CONTROL], [], [])
            return self._more(data)
        except OSError as error:
            if error.errno is None:
                raise  # a user's signal handler raised, TimeoutError for instance; the kernel always gives a number
            leave(1)  # user code closed or replaced our descriptor: nobody can reach us any more
        if not chunk:
            leave(0)
        # Kept at once: a user's signal handler may raise out of the next wait.
        self._pending = data = data + chunk if data else chunk
        return data

    def _rest(self, data: bytes, end: int) -> bytes:
        # Rare (large cells), so a list of pieces that an exception out of recv would lose is worth its simplicity:
        # joining 50 MB from 32 KiB chunks one by one would copy gigabytes.
        pieces = [data]
        missing = end - len(data)
        while missing > 0:
            chunk = self._receive(min(missing, 1 << 20))
            if not chunk:
                leave(0)
            pieces.append(chunk)
            missing -= len(chunk)
        return b"".join(pieces)

    def readable(self) -> bool:
        """Whether a frame is waiting."""
        control = self._socket
        if control is None:
            return False
        if self._pending:
            return True
        poll = _poll()
        poll.register(control.fileno(), select.POLLIN)
        return bool(poll.poll(0))

    def begin(self, cell: int) -> None:
        self.cell = cell
        self._interrupt_read = False

    def speaks(self) -> bool:
        """Whether results go to the engine: a cell runs, and we are no copy of its process."""
        return self.cell is not None and self._socket is not None and _getpid() == self.pid

    def wait_until_readable(self) -> None:
        poll = _poll()
        poll.register(self.fileno(), select.POLLIN)
        poll.poll()

    def has_taken(self, number: int) -> bool:
        """Whether the engine has taken the result with this number. Interrupts wait: what was read must be kept.

        Only for the main thread, while a cell runs: nobody else reads then, and there is nothing else to be read but
        interrupts.
        """
        if self._taken < number and self._socket is not None:
            try:
                chunk = self._socket.recv(CHUNK_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return False
            except OSError as error:
                if error.errno is None:
                    raise  # as in _more
                leave(1)
            if not chunk:
                leave(0)
            self._pending += chunk
            self._read_taken()
        return self._taken >= number

    def _read_taken(self) -> None:
        data = self._pending
        while len(data) >= _PREFIX.size:
            length, _, kind, header_length = _PREFIX.unpack_from(data)
            if kind not in (TAKEN, INTERRUPT) or len(data) < 4 + length:
                break
            if kind == TAKEN:
                header = _scan_json(data[_PREFIX.size : _PREFIX.size + header_length].decode("ascii"), 0)[0]
                self._taken = max(self._taken, header["number"])
            else:
                self._interrupt_read = True
            data = data[4 + length :]
        self._pending = data

    def interrupt_waits(self) -> bool:
        """Whether the engine has interrupted the running cell.

        Behind a RUN it sends nothing else before the answer but TAKEN, which is left over where an interrupt ended the
        wait for it.
        """
        control = self._socket
        if self._interrupt_read:
            return True
        if control is None or not self.readable():
            return False
        if self._taken:
            self.has_taken(self._taken + 1)
            self._read_taken()
            return self._interrupt_read
        data = self._pending
        if not data:
            try:
                data = control.recv(_PREFIX.size, socket.MSG_PEEK | socket.MSG_DONTWAIT)
            except OSError:  # user code closed it
                return False
        return len(data) >= _PREFIX.size and _PREFIX.unpack_from(data)[2] == INTERRUPT

    def holds_data(self) -> bool:
        """Whether the next frame, or a part of it, was read together with the last one."""
        return bool(self._pending)

    def fileno(self) -> int:
        return -1 if self._socket is None else self._socket.fileno()

    def send(self, kind: int, header: bytes, blob: bytes = b"") -> None:
        """Sends one frame whole. Interrupts that arrive inside this function wait until it is over."""
        frame = pack(kind, header, blob)
        with self._lock:
            # A copy made behind Python's back (fork by C code) must not answer for the REPL.
            if self._socket is not None and _getpid() == self.pid:
                self._send_all(frame)

    def publish(self, header: bytes, blob: bytes, last: bool = False) -> None:
        """Sends a RESULT of the running cell; between cells nobody waits for one and it is dropped.

        `header` has a %d for the cell's id. The `last` result of a cell travels with the answer that follows at once:
        one wake-up of the engine instead of two.
        """
        with self._lock:
            if self.cell is None or self._socket is None or _getpid() != self.pid:
                return
            header = header % self.cell
            frame = pack(RESULT, header, blob)
            if last and len(frame) <= MAXIMUM_HELD_BYTES:
                self._held += frame
                return
            held, self._held = self._held, b""
            self._send_all(held + frame)

    def done(self, exit_code: int, error: dict[str, str] | None, interrupted: bool) -> None:
        """Ends the running cell. Everything it wrote is in the pipes already."""
        if error is None and not interrupted:
            header = b'{"id":%d,"exit_code":%d,"error":null,"interrupted":false}' % (self.cell or 0, exit_code)
        else:
            header = encode_header(
                {"id": self.cell, "exit_code": exit_code, "error": error, "interrupted": interrupted}
            )
        with self._lock:
            self.cell = None
            held, self._held = self._held, b""
            if self._socket is not None and _getpid() == self.pid:
                try:
                    self._send_all(held + pack(DONE, header))
                except OSError as error:
                    if error.errno is None:
                        raise  # from a user's signal handler, see _more
                    leave(1)


def pack(kind: int, header: bytes, blob: bytes = b"") -> bytes:
    length = len(header)
    return _PREFIX.pack(_AFTER_LENGTH + length + len(blob), FRAME_VERSION, kind, length) + header + blob


def encode_header(header: dict[str, Any] | list[Any]) -> bytes:
    return _encode_json(header).encode("ascii")


def leave(code: int) -> NoReturn:
    """Ends the process at once: the engine is gone or speaks nonsense, nobody is left to tell."""
    os._exit(code)
