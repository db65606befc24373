"""The published client of the protocol that our server speaks, as its users have it: installed, and not looked into."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import podflare
import pytest

from tests.server.running import Server, running_server


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("published")) as started:
        yield started


@pytest.fixture
def make(server: Server) -> Iterator[Callable[..., Any]]:
    """Makes sandboxes with the published client; closes them after the test."""
    made: list[Any] = []

    def create(**options: Any) -> Any:
        made.append(podflare.Sandbox(host=server.url, **options))
        return made[-1]

    yield create
    for sandbox in made:
        sandbox.close()


@pytest.fixture
def published(make: Callable[..., Any]) -> Any:
    return make()
