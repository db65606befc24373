"""The operations of terminals, as in ``operations``: generators that say what to send. And what both faces share."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from ramet.client.handle import Handle
from ramet.client.operations import Emit, Operation, ask, final, next_frame
from ramet.errors import ProtocolError
from ramet.protocol import calls, checks, fields
from ramet.protocol.frames import encode
from ramet.protocol.refusing import kind_of, must
from ramet.protocol.terminals import INPUT_BYTES_AT_MOST, TerminalInfo, check_arguments, check_size

_WAIT_MS = 30_000  # asked again and again: an answer that takes longer might be taken for lost on the way
_ONE_WORD = re.compile(r"[\w./+-]+")


def open_terminal(
    sandbox_id: str,
    command: str | Sequence[str],
    cols: int,
    rows: int,
    env: Mapping[str, str] | None,
    cwd: str | None,
) -> Operation[str]:
    """Checks its arguments at once; gives the terminal's id."""
    columns, rows = check_size(cols, rows)
    checks.check_environment(env or {})
    if cwd is not None:
        checks.check_path(cwd, "cwd")
    header = {
        "sandbox": sandbox_id,
        "argv": list(check_arguments(_arguments(command))),
        "env": dict(env or {}),
        "cwd": cwd,
        "cols": columns,
        "rows": rows,
    }
    return _open(header)


def _arguments(command: object) -> object:
    """A string is a line for bash; one word is the program itself, without a shell around it."""
    if not isinstance(command, str):
        return list(command) if isinstance(command, Sequence) and not isinstance(command, bytes) else command
    return [command] if _ONE_WORD.fullmatch(command) or not command else ["bash", "-c", command]


def _open(header: Mapping[str, object]) -> Operation[str]:
    frame = yield from ask(encode(calls.TERMINAL_OPEN, header))
    return fields.text(frame.header, "terminal")


def list_terminals(sandbox_id: str) -> Operation[list[TerminalInfo]]:
    frame = yield from ask(encode(calls.TERMINAL_LIST, {"sandbox": sandbox_id}))
    found = []
    for entry in fields.array(frame.header, "terminals"):
        if not isinstance(entry, dict):
            raise ProtocolError("a terminal in a list is an object")
        found.append(TerminalInfo.read(entry))
    return found


class TerminalHandle:
    """A terminal of a sandbox by its id, and how far its output was read from here."""

    def __init__(self, sandbox: Handle, terminal_id: str) -> None:
        self.sandbox = sandbox
        self.id = terminal_id
        self._next_seq = 0
        self.exit_code: int | None = None

    def _header(self, **more: object) -> dict[str, object]:
        self.sandbox.open()
        return {"sandbox": self.sandbox.id, "terminal": self.id, **more}

    def read(self) -> Operation[None]:
        """Emits output, from where the last reading stopped, until the program ends."""
        return self._read(self._header())

    def _read(self, header: dict[str, object]) -> Operation[None]:
        yield encode(calls.TERMINAL_ATTACH, {**header, "since": self._next_seq})
        while (frame := (yield from next_frame())).kind == calls.TERMINAL_DATA:
            self._next_seq = fields.natural(frame.header, "seq") + len(frame.blob)
            yield Emit(frame.blob)
        self.exit_code = fields.whole(final(frame).header, "exit_code")

    def write(self, data: bytes | bytearray | memoryview | str) -> Iterator[Operation[None]]:
        """One operation for each piece: a call has a bound."""
        if not isinstance(data, str | bytes | bytearray | memoryview):
            raise must("data", "be bytes or a string", kind_of(data))
        whole = data.encode("utf-8", "surrogateescape") if isinstance(data, str) else bytes(data)
        header = self._header()
        for start in range(0, len(whole), INPUT_BYTES_AT_MOST):
            yield _simple(encode(calls.TERMINAL_INPUT, header, whole[start : start + INPUT_BYTES_AT_MOST]))

    def resize(self, cols: int, rows: int) -> Operation[None]:
        columns, rows = check_size(cols, rows)
        return _simple(encode(calls.TERMINAL_RESIZE, self._header(cols=columns, rows=rows)))

    def kill(self) -> Operation[None]:
        return _simple(encode(calls.TERMINAL_KILL, self._header()))

    def poll(self, wait: bool) -> Operation[int | None]:
        """The exit code, None if it has none yet; waits a while for it."""
        return self._poll(self._header(since=0, max_bytes=0, timeout_ms=_WAIT_MS if wait else 0))

    def _poll(self, header: dict[str, object]) -> Operation[int | None]:
        frame = yield from ask(encode(calls.TERMINAL_READ, header))
        self.exit_code = fields.optional_whole(frame.header, "exit_code")
        return self.exit_code


def _simple(request: bytes) -> Operation[None]:
    yield from ask(request)
