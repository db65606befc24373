"""examples/fastapi_app.py, served by uvicorn on loopback and asked by real clients."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import httpx
import pytest
import uvicorn

from ramet import AsyncSandbox, Sandbox
from tests.docs import loading


@pytest.fixture(scope="module")
def example() -> Iterator[ModuleType]:
    with loading.example("fastapi_app") as module:
        yield module


class Served:
    """The application behind a real socket, until it is stopped."""

    def __init__(self, app: Any) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        self._server = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1))
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [listener]})
        self._thread.start()

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(60)
        assert not self._thread.is_alive()

    def client(self, user: str) -> httpx.Client:
        headers = {"Authorization": f"Bearer token-of-{user}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=30, trust_env=False)


@pytest.fixture
def served(example: ModuleType) -> Iterator[Served]:
    running = Served(example.app)
    yield running
    running.stop()


def run(client: httpx.Client, code: str, **more: object) -> dict[str, Any]:
    answer = client.post("/run", json={"code": code, **more})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_a_user_finds_the_same_sandbox_again_and_nobody_elses(served: Served) -> None:
    with served.client("ada") as ada, served.client("bob") as bob:
        assert run(ada, "x = 6")["fresh"] is True
        later = run(ada, "x * 7")
        assert (later["value"], later["fresh"]) == ("42", False)
        assert run(bob, "'x' in globals()")["value"] == "False"


def test_a_failing_cell_is_an_answer_and_a_figure_comes_along(served: Served) -> None:
    with served.client("ada") as ada:
        failed = run(ada, "1 / 0")
        assert (failed["ok"], "ZeroDivisionError" in failed["stderr"]) == (False, True)
        late = run(ada, "while True: pass", timeout_seconds=0.3)
        assert late["cause"] == "timeout"
        assert len(run(ada, "import matplotlib.pyplot as plt; plt.plot([1, 2]);")["images"]) == 1


def test_a_stream_has_an_event_for_each_thing_and_ends_with_the_exit(served: Served) -> None:
    with served.client("ada") as ada:
        with ada.stream("POST", "/stream", json={"code": "print('a'); 6 * 7"}) as answer:
            events = [json.loads(line) for line in answer.iter_lines()]
    assert events[-1] == {"type": "exit", "code": 0}
    assert {"type": "stdout", "data": "a\n"} in events
    assert {"type": "result", "text": "42"} in events


def test_a_client_that_hangs_up_interrupts_its_cell_and_keeps_its_variables(served: Served) -> None:
    endless = "kept = 1\nimport time\nwhile True:\n    print('still here', flush=True)\n    time.sleep(0.05)"
    with served.client("ada") as ada:
        with ada.stream("POST", "/stream", json={"code": endless, "timeout_seconds": 60}) as answer:
            assert "still here" in next(answer.iter_lines())
        # Cells run one at a time: this one waits for ever unless the other was interrupted.
        assert run(ada, "kept", timeout_seconds=30)["value"] == "1"


@pytest.mark.parametrize("cell", [{"code": 3}, {"code": "1", "timeout_seconds": 0}, {"code": "1" * 100_001}, {}])
def test_a_wrong_request_is_refused(served: Served, cell: dict[str, object]) -> None:
    with served.client("ada") as ada:
        assert ada.post("/run", json=cell).status_code == 422


def test_a_stranger_is_refused(served: Served) -> None:
    with served.client("eve") as eve:
        assert eve.post("/run", json={"code": "1"}).status_code == 401


def test_a_reset_gives_a_fresh_sandbox(served: Served) -> None:
    with served.client("ada") as ada:
        run(ada, "x = 1")
        assert ada.delete("/sandbox").status_code == 204
        again = run(ada, "'x' in globals()")
        assert (again["value"], again["fresh"]) == ("False", True)


def test_stopping_the_application_closes_all_sandboxes(example: ModuleType) -> None:
    before = {row.id for row in Sandbox.list_all()}
    running = Served(example.app)
    with running.client("ada") as ada, running.client("bob") as bob:
        run(ada, "1")
        run(bob, "1")
        assert len({row.id for row in Sandbox.list_all()} - before) == 2
    running.stop()
    assert {row.id for row in Sandbox.list_all()} == before


def test_stopping_the_application_ends_a_stream_that_has_no_end(example: ModuleType) -> None:
    before = {row.id for row in Sandbox.list_all()}
    running = Served(example.app)
    with running.client("ada") as ada:
        with ada.stream(
            "POST", "/stream", json={"code": "while True: print('x' * 1000)", "timeout_seconds": 60}
        ) as answer:
            assert "xxx" in next(answer.iter_lines())
            running.stop()
    assert {row.id for row in Sandbox.list_all()} == before


def test_a_stream_whose_sandbox_is_closed_ends_with_an_error(served: Served) -> None:
    endless = "import time\nwhile True:\n    print('here', flush=True)\n    time.sleep(0.05)"
    with served.client("ada") as ada, served.client("ada") as again:
        with ada.stream("POST", "/stream", json={"code": endless, "timeout_seconds": 60}) as answer:
            lines = answer.iter_lines()
            assert "here" in next(lines)
            assert again.delete("/sandbox").status_code == 204
            events = [json.loads(line) for line in lines]
    assert events[-1]["type"] == "error"


async def test_there_are_at_most_so_many_sandboxes_and_one_that_ended_makes_room(example: ModuleType) -> None:
    sandboxes = example.UserSandboxes(at_most=1)
    first, fresh = await sandboxes.of("ada")
    assert fresh
    with pytest.raises(example.LimitReached, match="1 users"):
        await sandboxes.of("bob")
    await first.close()
    second, _ = await sandboxes.of("bob")
    assert second.id != first.id
    await sandboxes.close_all()


async def test_a_sandbox_that_ended_by_its_idle_timeout_is_replaced(example: ModuleType) -> None:
    sandboxes = example.UserSandboxes(idle_seconds=0.2)
    first, _ = await sandboxes.of("ada")
    async with asyncio.timeout(30):
        while first.id in {row.id for row in await AsyncSandbox.list_all()}:
            await asyncio.sleep(0.05)
    second, fresh = await sandboxes.of("ada")
    assert (second.id != first.id, fresh) == (True, True)
    await sandboxes.close_all()


async def test_requests_of_one_user_at_the_same_moment_share_one_sandbox(example: ModuleType) -> None:
    sandboxes = example.UserSandboxes()
    found = await asyncio.gather(*(sandboxes.of("ada") for _ in range(5)))
    assert len({sandbox.id for sandbox, _ in found}) == 1
    await sandboxes.close_all()
