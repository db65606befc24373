"""Programs that fetch things work in a sandbox as they are, for hosts that a rule lists, and say why for others."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ramet import Network, Sandbox
from tests.network.clients import AUTHORITY_FILE, CELL_SECONDS, CLIENTS, TRUST, Client
from tests.network.servers import BANNER, Server


@pytest.fixture(scope="module")
def connected(
    http_server: Server, https_server: Server, echo_server: Server, banner_server: Server, authority_pem: str
) -> Iterator[Sandbox]:
    """May reach data.example on the ports of the servers; other.example is there, and in no rule."""
    servers = (http_server, https_server, echo_server, banner_server)
    network = Network(
        [server.rule("data.example") for server in servers],
        addresses={"data.example": "127.0.0.1", "other.example": "127.0.0.1"},
    )
    with Sandbox(network=network, env=TRUST) as sandbox:
        sandbox.files.write(AUTHORITY_FILE, authority_pem.encode())
        yield sandbox


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_a_client_fetches_from_a_host_in_the_rules(connected: Sandbox, client: Client, server: Server) -> None:
    before = len(server.requests)
    result = client.fetch(connected, server.url("/table.csv", "data.example"))
    assert result.exit_code == 0, result.stdout + result.stderr
    assert "Rome,17" in result.stdout
    arrived = server.requests[before:]
    assert [one.target for one in arrived] == ["/table.csv"]
    assert arrived[0].header("Host") == f"data.example:{server.port}"
    # What is between the two is not the server's business.
    assert not [
        name for name, _ in arrived[0].headers if name.lower().startswith(("proxy-", "via", "forwarded", "x-f"))
    ]
    last = connected.network.log()[-1]
    assert (last.host, last.port, last.allowed) == ("data.example", server.port, True)
    assert (last.rule, last.address) == (server.rule("data.example"), "127.0.0.1")


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_a_client_is_told_why_a_host_in_no_rule_is_refused(connected: Sandbox, client: Client, server: Server) -> None:
    before = server.connections
    result = client.fetch(connected, server.url("/table.csv", "other.example"))
    assert result.exit_code != 0
    said = client.says_of_tunnels if server.scheme == "https" else client.says
    assert said.format(port=server.port) in result.stdout + result.stderr
    assert server.connections == before
    last = connected.network.log()[-1]
    assert (last.host, last.allowed, last.rule) == ("other.example", False, None)
    assert "no rule" in str(last.reason)


def test_a_redirect_to_a_host_in_no_rule_is_refused(connected: Sandbox, http_server: Server) -> None:
    away = http_server.url("/echo", "other.example")
    result = connected.run_code(
        f"curl -sS -L --fail-with-body '{http_server.url('/redirect?to=' + away, 'data.example')}'",
        language="bash",
        timeout=CELL_SECONDS,
    )
    assert result.exit_code != 0
    assert "in no rule" in result.stdout
    assert http_server.requests[-1].target.startswith("/redirect")


def test_a_raw_connection_by_name_reaches_a_listed_port(connected: Sandbox, echo_server: Server) -> None:
    result = connected.run_code(
        f"""
        import socket
        with socket.create_connection(("data.example", {echo_server.port}), timeout=30) as connection:
            connection.sendall(b"ping")
            print(connection.recv(100))
        """,
        timeout=CELL_SECONDS,
    )
    assert result.stdout == "b'ping'\n", result.stderr
    last = connected.network.log()[-1]
    assert (last.kind, last.host, last.port, last.allowed) == ("tcp", "data.example", echo_server.port, True)


def test_a_server_that_speaks_first_is_heard(connected: Sandbox, banner_server: Server) -> None:
    result = connected.run_code(
        f"exec 3<>/dev/tcp/data.example/{banner_server.port}; head -1 <&3; echo pong >&3; head -1 <&3",
        language="bash",
        timeout=CELL_SECONDS,
    )
    assert result.exit_code == 0, result.stderr
    assert result.stdout.encode() == BANNER + b"pong\n"


def test_a_raw_connection_to_a_name_in_no_rule_finds_no_such_name(connected: Sandbox, echo_server: Server) -> None:
    result = connected.run_code(
        f"import socket; socket.create_connection(('unlisted.example', {echo_server.port}), timeout=30)",
        timeout=CELL_SECONDS,
    )
    assert "gaierror" in result.stderr
    last = connected.network.log()[-1]
    assert (last.kind, last.host, last.allowed) == ("dns", "unlisted.example", False)


def test_a_raw_connection_to_another_port_of_a_listed_name_is_reset(connected: Sandbox, echo_server: Server) -> None:
    port = echo_server.port + 1 if echo_server.port < 65535 else echo_server.port - 1
    result = connected.run_code(
        f"""
        import socket
        with socket.create_connection(("data.example", {port}), timeout=30) as connection:
            connection.recv(1)
        """,
        timeout=CELL_SECONDS,
    )
    assert "ConnectionResetError" in result.stderr or "ConnectionRefusedError" in result.stderr
    last = connected.network.log()[-1]
    assert (last.host, last.port, last.allowed) == ("data.example", port, False)


def test_a_raw_connection_to_an_address_in_no_rule_is_reset(connected: Sandbox) -> None:
    result = connected.run_code(
        """
        import socket
        with socket.create_connection(("93.184.216.34", 80), timeout=30) as connection:
            connection.recv(1)
        """,
        timeout=CELL_SECONDS,
    )
    assert "ConnectionResetError" in result.stderr or "ConnectionRefusedError" in result.stderr
    last = connected.network.log()[-1]
    assert (last.kind, last.host, last.port, last.allowed) == ("tcp", "93.184.216.34", 80, False)


@pytest.mark.parametrize("how", ["--proxy socks5h://127.0.0.1:3128", "--proxy socks5://127.0.0.1:3128", "--proxy ''"])
def test_curl_reaches_a_listed_host_by_every_way_in(connected: Sandbox, server: Server, how: str) -> None:
    result = connected.run_code(
        f"curl -sS --fail-with-body {how} '{server.url('/table.csv', 'data.example')}'",
        language="bash",
        timeout=CELL_SECONDS,
    )
    assert result.exit_code == 0, result.stderr
    assert "Rome,17" in result.stdout


def test_a_server_of_the_sandbox_itself_is_reached_without_the_proxy(connected: Sandbox) -> None:
    before = len(connected.network.log())
    result = connected.run_code(
        """
        import http.server, threading, urllib.request
        here = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
        threading.Thread(target=here.serve_forever, daemon=True).start()
        for name in ("127.0.0.1", "localhost"):
            print(urllib.request.urlopen(f"http://{name}:{here.server_port}/", timeout=30).status)
        here.shutdown()
        here.server_close()
        """,
        timeout=CELL_SECONDS,
    )
    assert result.stdout == "200\n200\n", result.stderr
    assert len(connected.network.log()) == before
