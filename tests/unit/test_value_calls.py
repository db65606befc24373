"""Values of names, between a scripted guest and a client: parts, refusals, an end for everything."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import replace
from typing import Any, cast

import pytest

from ramet.engine.calls import values as value_calls
from ramet.engine.cells.sandbox import Sandbox
from ramet.engine.cells.turns import Caller
from ramet.engine.files.transfer import Transfer
from ramet.engine.settings import Settings
from ramet.errors import (
    ExecutionCancelled,
    InvalidArgument,
    LimitReached,
    NameUnknown,
    ProtocolError,
    RametError,
    SandboxClosed,
    SandboxLost,
    ValueUnsupported,
)
from ramet.protocol import calls, guest
from ramet.protocol.frames import FROM_ENGINE, Frame, FrameDecoder, encode
from ramet.protocol.values.value_bounds import INLINE_BYTES
from tests.unit.scripted import ScriptedBody
from tests.unit.scripted_engine import QUICK
from tests.waiting import settle, until

SETTINGS = replace(QUICK, value_seconds=30.0, value_interrupt_seconds=0.5)


class Client:
    """Takes what it is sent, when it wants to."""

    def __init__(self) -> None:
        self.data = b""
        self.reads = asyncio.Event()
        self.reads.set()

    async def send(self, frame: bytes) -> None:
        await self.reads.wait()
        (told,) = FrameDecoder(FROM_ENGINE).feed(frame)
        assert told.kind == calls.CHUNK
        assert len(told.blob) <= calls.CHUNK_BYTES
        self.data += told.blob


@pytest.fixture
def settings() -> Settings:
    return SETTINGS


def ask(sandbox: Sandbox, client: Client, caller: Caller | None = None, **header: object) -> asyncio.Future[Any]:
    kind = calls.SET_VALUE if "path" in header else calls.GET_VALUE
    frame = Frame(kind, {"sandbox": sandbox.id, "name": "x", **header}, b"")
    return asyncio.ensure_future(value_calls.begin(frame, sandbox, caller or Caller(), cast(Transfer, client)))


def tell(body: ScriptedBody, data: bytes, more: bool = False, error: object = None) -> None:
    body.send(encode(guest.VALUE, {"more": more, "error": error}, data))


async def asked(body: ScriptedBody) -> Frame:
    async with asyncio.timeout(5):
        return await body.next_frame()


async def ended(work: asyncio.Future[Any]) -> Any:
    async with asyncio.timeout(5):
        return await work


async def test_the_parts_of_a_value_are_passed_on_in_order(sandbox: Sandbox, body: ScriptedBody) -> None:
    client = Client()
    work = ask(sandbox, client)
    assert ((await asked(body)).kind, sandbox.state) == (guest.VALUE_GET, "running")
    tell(body, b"a" * 100_000, more=True)
    assert (await asked(body)).kind == guest.VALUE_NEXT
    tell(body, b"b")
    await ended(work)
    assert client.data == b"a" * 100_000 + b"b"
    assert sandbox.state == "idle"


async def test_a_client_that_reads_slowly_is_waited_for_and_nothing_piles_up(
    sandbox: Sandbox, body: ScriptedBody
) -> None:
    client = Client()
    client.reads.clear()
    work = ask(sandbox, client)
    await asked(body)
    tell(body, b"a" * 100_000, more=True)
    await settle()
    assert body.silent()  # nothing more is asked for
    client.reads.set()
    assert (await asked(body)).kind == guest.VALUE_NEXT
    tell(body, b"")
    await ended(work)


async def test_a_guest_that_never_comes_to_an_end_is_cut_off(sandbox: Sandbox, body: ScriptedBody) -> None:
    work = ask(sandbox, Client())
    frame = await asked(body)
    for _ in range(1000):
        if frame.kind == guest.VALUE_DROP:
            break
        tell(body, b"", more=True)
        frame = await asked(body)
    assert frame.kind == guest.VALUE_DROP
    with pytest.raises(LimitReached):
        await ended(work)
    assert sandbox.state == "idle"


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("unknown", NameUnknown),
        ("unsupported", ValueUnsupported),
        ("format", ValueUnsupported),
        ("failed", ValueUnsupported),
        ("large", LimitReached),
    ],
)
async def test_what_the_guest_refuses_is_an_error_of_ours_with_a_hint(
    sandbox: Sandbox, body: ScriptedBody, kind: str, error: type[RametError]
) -> None:
    for header in ({}, {"path": None}):
        work = ask(sandbox, Client(), **header)
        while (await asked(body)).kind == guest.VALUE_DROP:
            pass  # of the one before
        tell(body, b"", error={"kind": kind, "message": "x is odd"})
        with pytest.raises(error, match="x is odd") as refused:
            await ended(work)
        assert refused.value.hint


@pytest.mark.parametrize("answer", [{"kind": "other", "message": "m"}, {"kind": "unknown"}, 7])
async def test_a_guest_that_makes_no_sense_is_ended(sandbox: Sandbox, body: ScriptedBody, answer: object) -> None:
    work = ask(sandbox, Client())
    await asked(body)
    tell(body, b"", error=answer)
    with pytest.raises(SandboxLost):
        await ended(work)
    assert signal.SIGKILL in body.signals


async def test_a_caller_that_leaves_interrupts_what_makes_the_value(sandbox: Sandbox, body: ScriptedBody) -> None:
    caller = Caller()
    work = ask(sandbox, Client(), caller)
    await asked(body)
    caller.leave()
    await until(lambda: signal.SIGINT in body.signals)
    tell(body, b"late", more=True)
    with pytest.raises(ExecutionCancelled):
        await ended(work)
    assert (await asked(body)).kind == guest.VALUE_DROP
    assert not sandbox.repl.asked
    assert sandbox.state == "idle"


@pytest.mark.parametrize("told", [False, True], ids=["guest is slow", "client is slow"])
async def test_a_sandbox_that_closes_does_not_wait_for_a_value(
    sandbox: Sandbox, body: ScriptedBody, told: bool
) -> None:
    client = Client()
    client.reads.clear()
    work = ask(sandbox, client)
    await asked(body)
    if told:
        tell(body, b"a")
        await until(lambda: not sandbox.repl.asked)
    async with asyncio.timeout(5):
        await sandbox.close()
    with pytest.raises(SandboxClosed):
        await ended(work)


async def test_arguments_are_checked_before_anything_is_queued(sandbox: Sandbox) -> None:
    client, caller = cast(Transfer, Client()), Caller()
    with pytest.raises(InvalidArgument):
        value_calls.begin(Frame(calls.GET_VALUE, {"name": "a b"}, b""), sandbox, caller, client)
    with pytest.raises(InvalidArgument):
        value_calls.begin(Frame(calls.SET_VALUE, {"name": "a", "path": "a\0b"}, b""), sandbox, caller, client)
    with pytest.raises(ProtocolError):
        value_calls.begin(Frame(calls.SET_VALUE, {"name": "a"}, b"x" * (INLINE_BYTES + 1)), sandbox, caller, client)
    assert sandbox.queue.waiting == 0
