"""The same programs send a secret that their sandbox does not hold, over HTTP and HTTPS, and are shown stars for it."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from ramet import Network, Sandbox, Secret
from tests.network.clients import CLIENTS, Client
from tests.network.servers import Server

VALUE = "s3cr3t-of-the-weather"
# It reads tables, not JSON, and sends headers like urllib, which it uses.
_CLIENTS = [client for client in CLIENTS if client.name != "pandas.read_csv"]


@pytest.fixture(scope="module")
def trusted(http_server: Server, https_server: Server, authority_pem: str) -> Iterator[Sandbox]:
    network = Network(
        [server.rule(name) for server in (http_server, https_server) for name in ("data.example", "third.example")],
        addresses={"data.example": "127.0.0.1", "third.example": "127.0.0.1"},
        ca_pem=authority_pem,
    )
    hosts = [http_server.rule("data.example"), https_server.rule("data.example")]
    with Sandbox(network=network, secrets={"KEY": Secret(VALUE, hosts=hosts, headers=["X-Key"])}) as sandbox:
        yield sandbox


@pytest.mark.parametrize("client", _CLIENTS, ids=lambda client: client.name)
def test_a_client_sends_a_secret_that_it_does_not_know(trusted: Sandbox, client: Client, server: Server) -> None:
    result = client.fetch(trusted, server.url("/echo", "data.example"))
    assert result.exit_code == 0, result.stdout + result.stderr
    assert server.requests[-1].header("X-Key") == VALUE
    echoed = dict(json.loads(result.stdout)["headers"])
    assert echoed["X-Key"] == "*" * len(VALUE)
    assert trusted.run_code("import os; os.environ['KEY'].startswith('ramet_secret_')").value == "True"


@pytest.mark.parametrize("client", _CLIENTS, ids=lambda client: client.name)
def test_another_host_is_sent_the_placeholder(trusted: Sandbox, client: Client, http_server: Server) -> None:
    result = client.fetch(trusted, http_server.url("/echo", "third.example"))
    assert result.exit_code == 0, result.stdout + result.stderr
    assert str(http_server.requests[-1].header("X-Key")).startswith("ramet_secret_")
