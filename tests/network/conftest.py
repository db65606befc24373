"""A proxy and servers for sandboxes to reach, one of each kind for a test module; an authority for certificates."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import trustme

from tests.network import servers
from tests.network.proxies import ProxyDriver, proxy_running
from tests.network.routes import http_serving
from tests.network.servers import Server


@pytest.fixture(scope="session")
def authority() -> trustme.CA:
    """Who signs the certificates of the HTTPS servers; nobody trusts it who was not told to."""
    return trustme.CA()


@pytest.fixture(scope="session")
def authority_pem(authority: trustme.CA) -> str:
    return authority.cert_pem.bytes().decode()


@pytest.fixture(scope="module")
def proxy() -> Iterator[ProxyDriver]:
    with proxy_running() as driver:
        yield driver


@pytest.fixture(scope="module")
def http_server() -> Iterator[Server]:
    with http_serving() as server:
        yield server


@pytest.fixture(scope="module")
def https_server(authority: trustme.CA) -> Iterator[Server]:
    with http_serving(authority) as server:
        yield server


@pytest.fixture(params=["http", "https"])
def server(request: pytest.FixtureRequest) -> Server:
    """Each of the two."""
    found: Server = request.getfixturevalue(f"{request.param}_server")
    return found


@pytest.fixture(scope="module")
def echo_server() -> Iterator[Server]:
    """Raw TCP: what comes goes back."""
    with servers.serving(servers.echo) as server:
        yield server


@pytest.fixture(scope="module")
def banner_server() -> Iterator[Server]:
    """Raw TCP: speaks first."""
    with servers.serving(servers.banner_first) as server:
        yield server
