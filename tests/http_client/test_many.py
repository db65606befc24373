"""Many calls at once, on one loop and from many threads, with connections that are counted."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from ramet.client.drivers import asynchronous, blocking
from ramet.client.operations import cells
from ramet.client.operations.cells import CellOrder
from ramet.client.operations.steps import Operation
from ramet.protocol.values.results import Result
from ramet.transport.http import connections
from ramet.transport.http.remote import remote_engine
from tests.http_client.servers import FORTY_TWO, answer


class Crowd:
    """A server that answers nobody before so many have asked; then everybody."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._asked = 0
        self._all_asked = asyncio.Event()
        self.open = 0
        self.most_open = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
                await reader.readexactly(length)
                self._asked += 1
                if self._asked >= self._size:
                    self._all_asked.set()
                await self._all_asked.wait()
                writer.write(answer(FORTY_TWO))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.open -= 1
            writer.close()


def cell_of(number: int) -> Operation[Result]:
    return cells.run(f"sbx_{number}", "1", "python", None, order=CellOrder())


@pytest.mark.usefixtures("many_descriptors")
@pytest.mark.deep("load")
async def test_five_hundred_cells_run_at_once_on_one_loop() -> None:
    crowd = Crowd(500)
    async with await asyncio.start_server(crowd, "127.0.0.1", 0, backlog=1000) as server:
        engine = remote_engine(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", None)
        async with asyncio.timeout(60):
            for _ in range(2):
                cells = [asynchronous.perform(engine, cell_of(n)) for n in range(500)]
                results = await asyncio.gather(*cells)
                assert {result.stdout for result in results} == {"42\n"}
                while crowd.open > 100:  # kept for later: no more than this
                    await asyncio.sleep(0)
        engine._server.connections.close_idle()


async def test_more_calls_than_connections_wait_for_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_CONNECTIONS_AT_MOST", 10)
    crowd = Crowd(1)
    async with await asyncio.start_server(crowd, "127.0.0.1", 0, backlog=1000) as server:
        engine = remote_engine(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", None)
        cells = [asyncio.create_task(asynchronous.perform(engine, cell_of(n))) for n in range(200)]
        for given_up in cells[50:150:3]:
            await asyncio.sleep(0)
            given_up.cancel()
        async with asyncio.timeout(60):
            results = await asyncio.gather(*cells, return_exceptions=True)
            # As many may be in use as before: nobody who gave up has kept a place.
            await asyncio.gather(*(asynchronous.perform(engine, cell_of(n)) for n in range(20)))
        assert sum(isinstance(result, asyncio.CancelledError) for result in results) <= 34
        assert sum(not isinstance(result, BaseException) for result in results) >= 166
        assert crowd.most_open <= 10 + 2, "errands come on top"
        engine._server.connections.close_idle()


async def test_many_threads_share_the_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_CONNECTIONS_AT_MOST", 8)
    crowd = Crowd(1)
    async with await asyncio.start_server(crowd, "127.0.0.1", 0, backlog=1000) as server:
        engine = remote_engine(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", None)

        def run(number: int) -> str:
            return blocking.perform(engine, cell_of(number)).stdout

        with ThreadPoolExecutor(32) as threads:
            loop = asyncio.get_running_loop()
            said = await asyncio.gather(*(loop.run_in_executor(threads, run, n) for n in range(300)))
        assert set(said) == {"42\n"}
        assert crowd.most_open <= 8
        engine._server.connections.close_idle()
