"""A call that its caller gives up is undone at the server: a cell is cancelled by its id, what was made is closed."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ramet.client.drivers import asynchronous, blocking
from ramet.client.operations import cells, sandboxes
from ramet.client.operations.cells import CellOrder
from ramet.client.operations.steps import Operation
from ramet.protocol import calls
from ramet.protocol.frames import Frame, encode
from ramet.protocol.requests.sandboxes import SandboxOptions
from ramet.transport.http.janitor import janitor
from ramet.transport.http.remote import remote_engine
from tests.http_client.servers import DONE, FORTY_TWO, WAIT_SECONDS, Peer, chunked, serving

BEGUN = encode(calls.OUTPUT, {"stream": 0}, b"begun\n")
LOOP = "print('begun')\nwhile True: pass"


class Endless:
    """A server whose cells never end by themselves; it notes every other call."""

    def __init__(self) -> None:
        self.cells: list[Frame] = []
        self.others: list[Frame] = []
        self.keys: list[bytes | None] = []
        self.asked = threading.Event()

    def __call__(self, peer: Peer) -> None:
        while (request := peer.read()) is not None:
            frame = request.frames[0]
            if frame.kind == calls.RUN:
                self.cells.append(frame)
                peer.send(chunked(BEGUN) if frame.header["stream"] else chunked())
                self.asked.set()
                peer.wait_until_closed()
                return
            self.others.append(frame)
            self.keys.append(request.headers.get(b"idempotency-key"))
            if frame.kind == calls.CREATE and len(self.others) == 1:
                self.asked.set()
                peer.wait_until_closed()
                return
            peer.answer(encode(calls.ANSWER, {"id": "sbx_made", "pid": 1, "cancelled": True}))

    def assert_cancelled(self) -> None:
        (cell,), (cancel,) = self.cells, self.others
        assert cancel.kind == calls.CANCEL
        assert cancel.header == {"sandbox": "sbx_1", "execution": cell.header["execution"]}


def wait_until_asleep(thread: threading.Thread) -> None:
    """It has nothing more to read, and waits for the server."""
    looks = 0
    end = time.monotonic() + WAIT_SECONDS
    while looks < 20:
        assert time.monotonic() < end
        state = Path(f"/proc/self/task/{thread.native_id}/stat").read_text().rpartition(")")[2].split()[0]
        looks = looks + 1 if state == "S" else 0
        time.sleep(0.005)


def cell() -> Operation[None]:
    return cells.stream("sbx_1", LOOP, "python", None, order=CellOrder())


def test_closing_the_iterator_cancels_the_cell() -> None:
    script = Endless()
    with serving(script) as server:
        events = blocking.iterate(remote_engine(server.url, None), cell())
        assert next(events).data == "begun\n"
        events.close()
        script.assert_cancelled()


def test_an_interrupt_from_the_keyboard_cancels_the_cell() -> None:
    script = Endless()
    with serving(script) as server:

        def press_when_it_runs() -> None:
            assert script.asked.wait(WAIT_SECONDS)
            os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=press_when_it_runs).start()
        operation = cells.run("sbx_1", LOOP, "python", None, order=CellOrder())
        with pytest.raises(KeyboardInterrupt):
            blocking.perform(remote_engine(server.url, None), operation)
        script.assert_cancelled()


def test_an_interrupt_that_did_not_wake_the_waiting_thread_cancels_the_cell() -> None:
    """As when it comes right before the wait: another thread takes the signal, and the wait goes on."""
    script = Endless()
    noticed = threading.Event()
    was_noticed: list[bool] = []
    with serving(script) as server:

        def press_when_it_runs() -> None:
            assert script.asked.wait(WAIT_SECONDS)
            wait_until_asleep(threading.main_thread())
            signal.pthread_kill(threading.get_ident(), signal.SIGINT)
            # Much longer than a second, and much shorter than the client's patience with a silent server.
            was_noticed.append(noticed.wait(15))

        pressing = threading.Thread(target=press_when_it_runs)
        pressing.start()
        operation = cells.run("sbx_1", LOOP, "python", None, order=CellOrder())
        with pytest.raises(KeyboardInterrupt):
            blocking.perform(remote_engine(server.url, None), operation)
        noticed.set()
        pressing.join()
        script.assert_cancelled()
    assert was_noticed == [True]


def test_closing_an_asynchronous_iterator_cancels_the_cell() -> None:
    async def give_up(url: str) -> None:
        events = asynchronous.iterate(remote_engine(url, None), cell())
        await anext(events)
        await events.aclose()

    script = Endless()
    with serving(script) as server:
        asyncio.run(give_up(server.url))
        janitor.finish()
        script.assert_cancelled()


def test_a_task_that_is_cancelled_cancels_the_cell() -> None:
    async def give_up(url: str) -> None:
        operation = cells.run("sbx_1", LOOP, "python", None, order=CellOrder())
        task = asyncio.create_task(asynchronous.perform(remote_engine(url, None), operation))
        assert await asyncio.to_thread(script.asked.wait, WAIT_SECONDS)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    script = Endless()
    with serving(script) as server:
        asyncio.run(give_up(server.url))
        janitor.finish()
        script.assert_cancelled()


def test_a_sandbox_whose_creation_was_given_up_is_closed() -> None:
    async def give_up(url: str) -> None:
        task = asyncio.create_task(
            asynchronous.perform(remote_engine(url, None), sandboxes.create(SandboxOptions(cpus=1)))
        )
        assert await asyncio.to_thread(script.asked.wait, WAIT_SECONDS)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    script = Endless()
    with serving(script) as server:
        asyncio.run(give_up(server.url))
        janitor.finish()
    assert [frame.kind for frame in script.others] == [calls.CREATE, calls.CREATE, calls.CLOSE]
    assert script.keys[0] == script.keys[1] is not None
    assert script.others[2].header == {"sandbox": "sbx_made"}


def test_a_call_that_ended_is_not_cancelled() -> None:
    seen: list[int] = []

    def note(peer: Peer) -> None:
        while (request := peer.read()) is not None:
            seen.append(request.frames[0].kind)
            peer.answer(FORTY_TWO if request.frames[0].kind == calls.RUN else DONE)

    with serving(note) as server:
        engine = remote_engine(server.url, None)
        blocking.perform(engine, cells.run("sbx_1", "1", "python", None, order=CellOrder()))
        list(blocking.iterate(engine, cell()))
        asyncio.run(asynchronous.perform(engine, cells.run("sbx_1", "1", "python", None, order=CellOrder())))
        janitor.finish()
    assert seen == [calls.RUN] * 3


def test_a_server_that_is_gone_does_not_hold_up_who_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    from ramet.transport.http import blocking as driver

    monkeypatch.setattr(driver, "_ERRAND_SECONDS", 0.2)
    asked: list[Callable[[], None]] = []

    def deaf(peer: Peer) -> None:
        peer.read()
        asked.append(peer.reset)
        if len(asked) == 1:
            peer.send(chunked(BEGUN))
        peer.wait_until_closed()

    with serving(deaf) as server:
        events = blocking.iterate(remote_engine(server.url, None), cell())
        next(events)
        events.close()
    assert len(asked) == 2
