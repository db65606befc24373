"""Operations on the terminals of a sandbox."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from ramet.client.handle import SandboxHandle
from ramet.client.operations.steps import Emit, Operation, ask, carry_out, final, next_frame
from ramet.errors import ProtocolError
from ramet.protocol import calls, checks, fields
from ramet.protocol.argument_errors import kind_of, must
from ramet.protocol.frames import encode
from ramet.protocol.values.terminals import INPUT_BYTES_AT_MOST, TerminalInfo, check_arguments, check_size

_WAIT_MS = 30_000  # for one poll; wait() polls again, because a longer silence might look like a lost connection
_ONE_WORD = re.compile(r"[\w./+-]+")


def open_terminal(
    sandbox_id: str,
    command: str | Sequence[str],
    cols: int,
    rows: int,
    env: Mapping[str, str] | None,
    cwd: str | None,
) -> Operation[str]:
    """Start a program on a new terminal. Returns the id of the terminal."""
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
    return ask(encode(calls.TERMINAL_OPEN, header), lambda answer: fields.text(answer, "terminal"))


def _arguments(command: object) -> object:
    """Make an argument list of a string: one word is a program, which needs no shell; anything else is for bash."""
    if not isinstance(command, str):
        return list(command) if isinstance(command, Sequence) and not isinstance(command, bytes) else command
    return [command] if _ONE_WORD.fullmatch(command) or not command else ["bash", "-c", command]


def list_terminals(sandbox_id: str) -> Operation[list[TerminalInfo]]:
    """Return the terminals that run, and some that have ended."""
    return ask(encode(calls.TERMINAL_LIST, {"sandbox": sandbox_id}), _read_terminals)


def _read_terminals(header: Mapping[str, object]) -> list[TerminalInfo]:
    found = []
    for entry in fields.array(header, "terminals"):
        if not isinstance(entry, dict):
            raise ProtocolError("a terminal in a list is an object")
        found.append(TerminalInfo.read(entry))
    return found


class TerminalHandle:
    """A terminal of a sandbox by its id. Knows how far its output was read from here."""

    def __init__(self, sandbox: SandboxHandle, terminal_id: str) -> None:
        self.sandbox = sandbox
        self.id = terminal_id
        self._next_seq = 0
        self.exit_code: int | None = None

    def _header(self, **more: object) -> dict[str, object]:
        return {"sandbox": self.sandbox.open(), "terminal": self.id, **more}

    def read(self) -> Operation[None]:
        """Emit output, from where the last reader stopped, until the program ends."""
        return self._read(self._header())

    def _read(self, header: dict[str, object]) -> Operation[None]:
        yield encode(calls.TERMINAL_ATTACH, {**header, "since": self._next_seq})
        while (frame := (yield from next_frame())).kind == calls.TERMINAL_DATA:
            self._next_seq = fields.natural(frame.header, "seq") + len(frame.blob)
            yield Emit(frame.blob)
        self.exit_code = fields.whole(final(frame).header, "exit_code")

    def write(self, data: bytes | bytearray | memoryview | str) -> Iterator[Operation[None]]:
        """Yield one operation for each piece of the input: the engine bounds how much one call may carry."""
        if not isinstance(data, str | bytes | bytearray | memoryview):
            raise must("data", "be bytes or a string", kind_of(data))
        whole = data.encode("utf-8", "surrogateescape") if isinstance(data, str) else bytes(data)
        header = self._header()
        for start in range(0, len(whole), INPUT_BYTES_AT_MOST):
            yield carry_out(encode(calls.TERMINAL_INPUT, header, whole[start : start + INPUT_BYTES_AT_MOST]))

    def resize(self, cols: int, rows: int) -> Operation[None]:
        columns, rows = check_size(cols, rows)
        return carry_out(encode(calls.TERMINAL_RESIZE, self._header(cols=columns, rows=rows)))

    def kill(self) -> Operation[None]:
        return carry_out(encode(calls.TERMINAL_KILL, self._header()))

    def poll(self, wait: bool) -> Operation[int | None]:
        """Return the exit code, None while the program runs. With ``wait``, wait some seconds for it."""
        header = self._header(since=0, max_bytes=0, timeout_ms=_WAIT_MS if wait else 0)
        return ask(encode(calls.TERMINAL_READ, header), self._read_exit_code)

    def _read_exit_code(self, header: Mapping[str, object]) -> int | None:
        self.exit_code = fields.optional_whole(header, "exit_code")
        return self.exit_code
