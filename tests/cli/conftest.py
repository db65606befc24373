"""One server for all tests of the command line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ramet import Sandbox
from tests.server.running import Server, running_server


@pytest.fixture
def tmp_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a short name: a folder of state holds a unix socket, whose path has 107 bytes at most."""
    return tmp_path_factory.mktemp("t")


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("server")) as one:
        yield one


@pytest.fixture
def kept(server: Server) -> Iterator[Sandbox]:
    """A sandbox of the server with something in its memory."""
    with Sandbox(url=server.url) as sandbox:
        sandbox.run_code("x = 41")
        yield sandbox
