"""Calls about values: of names in a sandbox, taken and given between two cells.

The engine passes what a REPL sends on unread: only the client, which asked for it, decodes it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from ramet.engine.calls.call import Answer, QueuedCall
from ramet.engine.cells.sandbox import Sandbox
from ramet.engine.cells.turns import Caller, Turns
from ramet.engine.files.transfer import Transfer
from ramet.errors import LimitReached, NameUnknown, ProtocolError, RametError, ValueUnsupported
from ramet.protocol import calls, checks, fields, guest
from ramet.protocol.frames import Frame, encode
from ramet.protocol.values.value_bounds import INLINE_BYTES, VALUE_BYTES_AT_MOST, check_name

_ANOTHER_WAY = "write it to a file in the sandbox and download that, or make it plain data first"
_SMALLER = "take a part of it, or write it to a file in the sandbox and download that"
# The guest fills each part with a mebibyte, but for the last.
_PARTS_AT_MOST = VALUE_BYTES_AT_MOST // (1024 * 1024) + 10

Work = Callable[[], Awaitable[None]]


class ValueCall(QueuedCall):
    """Takes a value from a REPL, or gives it one, in a turn of its sandbox."""

    def work(self) -> Answer:
        peer, sandbox = self.peer, self.find_sandbox()
        registry = peer.registry
        transfer = Transfer(peer.channel, registry.executor, registry.walks, sandbox.owner, peer.settings)
        return begin(self.frame, sandbox, self.caller, transfer)


def begin(frame: Frame, sandbox: Sandbox, caller: Caller, transfer: Transfer) -> Awaitable[dict[str, object]]:
    """Begin the call of a frame, to be awaited. Its turn is in the queue when this returns, or this raises."""
    name = check_name(fields.text(frame.header, "name"))
    if frame.kind == calls.GET_VALUE:
        turns = caller.queue(sandbox, needs_repl=True)
        return _in_turn(turns, lambda: _get(sandbox, name, transfer))
    if frame.kind != calls.SET_VALUE:
        raise ProtocolError(f"a call of unknown kind {frame.kind}")
    path = fields.optional_text(frame.header, "path")
    if path is not None:
        checks.check_path(path)
    if len(frame.blob) > INLINE_BYTES:
        raise ProtocolError(f"a value of {len(frame.blob)} bytes in a frame, at most {INLINE_BYTES} allowed")
    turns = caller.queue(sandbox, needs_repl=True)
    return _in_turn(turns, lambda: _set(sandbox, name, path, frame.blob))


async def _in_turn(turns: Turns, work: Work) -> dict[str, object]:
    await turns.carry_out(work)
    return {}


async def _get(sandbox: Sandbox, name: str, transfer: Transfer) -> None:
    repl = sandbox.repl
    total_bytes = parts = 0
    question = guest.get_value(name)
    try:
        while True:
            told = await repl.value(question)
            if told.refusal is not None:
                raise _refused(*told.refusal)
            total_bytes, parts = total_bytes + len(told.data), parts + 1
            if total_bytes > VALUE_BYTES_AT_MOST or parts > _PARTS_AT_MOST:
                raise LimitReached(f"{name} has more than {VALUE_BYTES_AT_MOST} bytes", hint=_SMALLER)
            for start in range(0, len(told.data), calls.CHUNK_BYTES):
                await transfer.send(encode(calls.CHUNK, {}, told.data[start : start + calls.CHUNK_BYTES]))
            if not told.more:
                return
            question = guest.next_of_value()
    except BaseException:
        repl.drop_value()
        raise


async def _set(sandbox: Sandbox, name: str, path: str | None, data: bytes) -> None:
    sandbox.touched(memory=True)
    told = await sandbox.repl.value(guest.set_value(name, path, data))
    if told.refusal is not None:
        raise _refused(*told.refusal)


def _refused(kind: str, message: str) -> RametError:
    if kind == "unknown":
        return NameUnknown(
            message, hint="names are those of the sandbox's global variables; run the cell that makes it"
        )
    if kind == "large":
        return LimitReached(message, hint=_SMALLER)
    return ValueUnsupported(message, hint=_ANOTHER_WAY, details={"kind": kind})
