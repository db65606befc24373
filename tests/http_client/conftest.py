"""Both drivers of the client, and short patience where a test is about patience."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import pytest

from ramet.client.drivers import asynchronous, blocking
from ramet.client.operations.steps import Operation
from ramet.transport.http import call, steps
from ramet.transport.http.remote import remote_engine

Returned = TypeVar("Returned")
Perform = Callable[..., Any]


@pytest.fixture(params=["blocking", "asynchronous"])
def perform(request: pytest.FixtureRequest) -> Perform:
    """Carries out an operation at a URL, with each driver in turn."""

    def in_this_thread(
        url: str, operation: Operation[Returned], source: Any = None, key: str | None = None
    ) -> Returned:
        return blocking.perform(remote_engine(url, key), operation, source)

    def on_a_loop(url: str, operation: Operation[Returned], source: Any = None, key: str | None = None) -> Returned:
        return asyncio.run(asynchronous.perform(remote_engine(url, key), operation, source))

    return in_this_thread if request.param == "blocking" else on_a_loop


@pytest.fixture
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "SILENCE_SECONDS", 0.3)
    monkeypatch.setattr(steps, "CONNECT_SECONDS", 0.3)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call, "_PAUSES_SECONDS", (0.01, 0.02))


@pytest.fixture
def in_thread() -> Iterator[Callable[[Callable[[], object]], object]]:
    """Does something meanwhile; what went wrong there fails the test."""
    with ThreadPoolExecutor(4) as threads:
        started: list[Future[object]] = []
        yield lambda work: started.append(threads.submit(work))
        for future in started:
            future.result(60)
