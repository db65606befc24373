"""One HTTP server for all tests of MCP that do not need one of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from tests.mcp.clients import TRANSPORTS, Talk, http_server, talking

Connect = Callable[[], AbstractAsyncContextManager[Talk]]


@pytest.fixture(scope="session")
def server_url() -> Iterator[str]:
    with http_server() as server:
        yield server.url


@pytest.fixture(params=TRANSPORTS)
def connect(request: pytest.FixtureRequest, tmp_path: Path) -> Connect:
    """Connects a client, over each transport in turn. A block and no fixture: a client ends in the task it began in."""
    url = request.getfixturevalue("server_url") if request.param.startswith("http") else None
    return lambda: talking(request.param, url, tmp_path / "server.log")
