"""One server for tests that leave it as it was."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.running import Server, running_server
from tests.server.talking import Client


@pytest.fixture
def tmp_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a short name: servers have unix sockets in folders of tests, whose paths have 107 bytes at most."""
    return tmp_path_factory.mktemp("t")


@pytest.fixture(scope="package")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture
def client(shared_server: Server) -> Iterator[Client]:
    """A program of this machine, which needs no key. Its sandboxes are gone after the test."""
    talker = Client(shared_server.port)
    before = _ids(talker)
    talker.close()
    yield talker
    talker.close()
    for sandbox_id in _ids(talker) - before:
        talker.remove(sandbox_id)
    talker.close()


def _ids(talker: Client) -> set[str]:
    return {row["id"] for row in talker.ask("GET", "/v1/sandboxes").json["sandboxes"]}


@pytest.fixture
def sandbox_id(client: Client) -> str:
    return client.create()
