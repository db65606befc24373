"""What code in a sandbox can reach: what its owner has listed, and nothing else, whatever program asks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ramet import InvalidArgument, Network, Result, Sandbox
from tests.behaviour.faces import AnySandbox, MakeSandbox
from tests.behaviour.waiting import wait_until
from tests.network.routes import http_serving
from tests.network.servers import Server, echo, serving

CELL_SECONDS = 60
HERE = dict.fromkeys(("data.example", "more.example", "other.example"), "127.0.0.1")

# Each prints the body, or raises with what it was told.
CLIENTS = {
    "urllib": "import urllib.request as u; print(u.urlopen('URL', timeout=30).read().decode('latin-1'))",
    "httpx": "import httpx; r = httpx.get('URL', timeout=30); print(r.text); r.raise_for_status()",
    "requests": "import requests; r = requests.get('URL', timeout=30); print(r.text); r.raise_for_status()",
}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with http_serving() as one:
        yield one


@pytest.fixture(scope="module")
def raw_server() -> Iterator[Server]:
    with serving(echo) as one:
        yield one


def fetch(sandbox: AnySandbox, url: str, client: str = "urllib") -> Result:
    return sandbox.run_code(CLIENTS[client].replace("URL", url), timeout=CELL_SECONDS)


def reaches(sandbox: AnySandbox, url: str) -> bool:
    result = fetch(sandbox, url)
    assert result.ok or "403" in result.stderr, result.stderr
    return result.ok


def listing(server: Server, *names: str, **more: Any) -> Network:
    """The server by these names, all of which are this machine."""
    return Network([server.rule(name) for name in names], addresses=HERE, **more)


def rules(sandbox: AnySandbox) -> list[str]:
    return list(sandbox.network.rules)


def denied(sandbox: AnySandbox) -> list[str]:
    return list(sandbox.network.denied)


# Reaching


@pytest.mark.promise("wall-network-rules")
@pytest.mark.parametrize("client", CLIENTS)
def test_a_listed_host_is_reached_and_another_is_refused_with_the_reason(
    make_any_sandbox: MakeSandbox, server: Server, client: str
) -> None:
    sandbox = make_any_sandbox(network=listing(server, "data.example"))
    result = fetch(sandbox, server.url("/chunked/2", "data.example"), client)
    assert (result.stdout.strip(), result.exit_code) == ("chunk 0\nchunk 1", 0)
    result = fetch(sandbox, server.url("/chunked/2", "other.example"), client)
    assert result.exit_code == 1
    assert f"other.example:{server.port}" in result.stdout + result.stderr


def test_without_a_network_there_is_no_proxy_and_no_variable_of_one(any_sandbox: AnySandbox, server: Server) -> None:
    names = any_sandbox.run_code("import os; [n for n in os.environ if 'proxy' in n.lower() or 'ssl' in n.lower()]")
    assert names.value == "[]"
    routes = any_sandbox.run_code("len(open('/proc/net/route').read().splitlines())")
    assert routes.value == "1"  # its heading
    refused = any_sandbox.run_code(
        "import socket\nfor port in (3128, 3129):\n"
        "    try: socket.create_connection(('127.0.0.1', port), 5)\n"
        "    except ConnectionRefusedError: print('refused')"
    )
    assert refused.stdout == "refused\nrefused\n"
    assert not fetch(any_sandbox, server.url("/echo", "data.example")).ok


def test_an_empty_list_allows_nothing_yet(make_any_sandbox: MakeSandbox, server: Server) -> None:
    sandbox = make_any_sandbox(network=Network([], addresses=HERE))
    assert rules(sandbox) == []
    assert not reaches(sandbox, server.url("/echo", "data.example"))
    sandbox.network.allow(server.rule("data.example"))
    assert reaches(sandbox, server.url("/echo", "data.example"))


@pytest.mark.promise("wall-private-addresses")
def test_an_open_network_reaches_no_address_that_is_not_public(make_any_sandbox: MakeSandbox, server: Server) -> None:
    sandbox = make_any_sandbox(network=Network("open", addresses=HERE))
    assert rules(sandbox) == ["open"]
    assert reaches(sandbox, server.url("/echo", "data.example"))  # its owner has said where that is
    for host in ("10.0.0.1", "169.254.169.254", "[::ffff:10.0.0.1]", "192.168.0.1"):
        assert not reaches(sandbox, f"http://{host}/")
    assert [entry.allowed for entry in sandbox.network.log()] == [True, False, False, False, False]


def test_an_address_that_is_not_public_may_be_listed_beside_open(make_any_sandbox: MakeSandbox) -> None:
    sandbox = make_any_sandbox(network=["open", "127.0.0.1:9"])
    assert rules(sandbox) == ["open", "127.0.0.1:9"]


def test_a_program_that_knows_no_proxy_reaches_a_listed_host_by_name(
    make_any_sandbox: MakeSandbox, raw_server: Server
) -> None:
    sandbox = make_any_sandbox(network=listing(raw_server, "data.example"))
    talk = f"""
        import socket
        with socket.create_connection(("data.example", {raw_server.port}), 30) as s:
            s.sendall(b"hello"); s.shutdown(socket.SHUT_WR)
            print(s.makefile().read())
    """
    result = sandbox.run_code(talk, timeout=CELL_SECONDS)
    assert (result.stdout, result.stderr) == ("hello\n", "")
    result = sandbox.run_code(talk.replace("data.example", "other.example"), timeout=CELL_SECONDS)
    assert "gaierror" in result.stderr
    (entry,) = [entry for entry in sandbox.network.log() if entry.kind == "tcp"]
    assert (entry.host, entry.port, entry.allowed) == ("data.example", raw_server.port, True)
    assert (entry.sent_bytes, entry.received_bytes) == (5, 5)


# The log


@pytest.mark.every_face
def test_the_log_has_every_connection_that_was_tried(make_any_sandbox: MakeSandbox, server: Server) -> None:
    sandbox = make_any_sandbox(network=listing(server, "data.example"))
    assert sandbox.network.log() == []
    assert reaches(sandbox, server.url("/bytes/1000", "data.example"))
    assert not reaches(sandbox, server.url("/echo", "other.example"))
    allowed, refused = sandbox.network.log()
    assert (allowed.host, allowed.port, allowed.kind) == ("data.example", server.port, "http")
    assert (allowed.allowed, allowed.rule) == (True, server.rule("data.example"))
    assert allowed.address == "127.0.0.1"
    assert allowed.received_bytes > 1000
    assert allowed.sent_bytes > 0
    assert (refused.host, refused.allowed, refused.rule) == ("other.example", False, None)
    assert refused.reason
    assert (refused.sent_bytes, refused.received_bytes, refused.open) == (0, 0, False)
    assert 0 <= refused.time - allowed.time < CELL_SECONDS
    assert "other.example" in str(refused)


def test_a_sandbox_of_a_server_shows_its_log_to_who_connects(make_any_sandbox: MakeSandbox, server: Server) -> None:
    sandbox = make_any_sandbox(network=listing(server, "data.example"))
    assert reaches(sandbox, server.url("/echo", "data.example"))
    face: Any = getattr(sandbox, "awaited", sandbox)
    engine = face._handle.engine
    other = Sandbox.connect(sandbox.id, url=str(engine.place) if engine.remote else "")
    assert [entry.host for entry in other.network.log()] == ["data.example"]


@pytest.mark.every_face
def test_what_needs_a_network_says_how_to_get_one(any_sandbox: AnySandbox) -> None:
    for attempt in (
        lambda: any_sandbox.network.log(),
        lambda: any_sandbox.network.rules,
        lambda: any_sandbox.network.allow("data.example"),
        lambda: any_sandbox.network.deny("data.example"),
    ):
        with pytest.raises(InvalidArgument, match="network=") as caught:
            attempt()
        assert caught.value.argument == "network"
    assert any_sandbox.run_code("1").value == "1"


# Changes while it runs


@pytest.mark.every_face
def test_rules_change_while_the_sandbox_runs(make_any_sandbox: MakeSandbox, server: Server) -> None:
    sandbox = make_any_sandbox(network=listing(server, "data.example"))
    url, more = server.url("/echo", "data.example"), server.url("/echo", "more.example")
    assert (reaches(sandbox, url), reaches(sandbox, more)) == (True, False)
    sandbox.network.allow(server.rule("MORE.example"))
    assert rules(sandbox) == [server.rule("data.example"), server.rule("more.example")]
    assert (reaches(sandbox, url), reaches(sandbox, more)) == (True, True)
    sandbox.network.deny(server.rule("data.example"))
    assert rules(sandbox) == [server.rule("more.example")]
    assert denied(sandbox) == [server.rule("data.example")]
    assert (reaches(sandbox, url), reaches(sandbox, more)) == (False, True)
    assert sandbox.network.log()[-2].rule == server.rule("data.example")
    sandbox.network.allow(server.rule("data.example"))
    assert (reaches(sandbox, url), denied(sandbox)) == (True, [])


def test_a_connection_to_what_is_denied_now_is_cut(make_any_sandbox: MakeSandbox, raw_server: Server) -> None:
    sandbox = make_any_sandbox(network=listing(raw_server, "data.example"))
    held = f"""
        import socket
        held = socket.create_connection(("data.example", {raw_server.port}), 30)
        held.sendall(b"x"); print(held.recv(1))
    """
    assert sandbox.run_code(held, timeout=CELL_SECONDS).stdout == "b'x'\n"
    sandbox.network.deny("data.example:*")
    ended = "try: print(held.recv(1))\nexcept ConnectionError as error: print(b'')"
    assert sandbox.run_code(ended, timeout=CELL_SECONDS).stdout == "b''\n"
    (entry,) = [entry for entry in sandbox.network.log() if entry.kind == "tcp"]
    assert (entry.allowed, entry.open) == (True, False)
    assert entry.reason


def test_what_is_denied_is_refused_whatever_else_is_allowed(make_any_sandbox: MakeSandbox, server: Server) -> None:
    network = Network([f"*.example:{server.port}"], deny=["data.example:*"], addresses=HERE)
    sandbox = make_any_sandbox(network=network)
    assert not reaches(sandbox, server.url("/echo", "data.example"))
    assert reaches(sandbox, server.url("/echo", "more.example"))


@pytest.mark.parametrize("wrong", [(), ("*",), ("https://data.example",), (5,), ("a.example", "")])
def test_a_change_that_is_wrong_changes_nothing(make_any_sandbox: MakeSandbox, wrong: tuple[Any, ...]) -> None:
    sandbox = make_any_sandbox(network=["data.example"])
    for change in (sandbox.network.allow, sandbox.network.deny):
        with pytest.raises(InvalidArgument) as caught:
            change(*wrong)
        assert caught.value.hint
    assert (rules(sandbox), denied(sandbox)) == (["data.example"], [])


# Limits


def test_a_limit_of_connections_is_told_to_who_wants_one_more(
    make_any_sandbox: MakeSandbox, server: Server, raw_server: Server
) -> None:
    listed = [server.rule("data.example"), raw_server.rule("data.example")]
    sandbox = make_any_sandbox(network=Network(listed, addresses=HERE, connections=2))
    held = f"""
        import socket
        held = [socket.create_connection(("data.example", {raw_server.port}), 30) for _ in range(2)]
        for one in held: one.sendall(b"x"); one.recv(1)
    """
    assert sandbox.run_code(held, timeout=CELL_SECONDS).ok
    refused = fetch(sandbox, server.url("/echo", "data.example"))
    assert "429" in refused.stderr
    assert sandbox.run_code("for one in held: one.close()").ok
    wait_until(lambda: not any(entry.open for entry in sandbox.network.log()), "its connections are closed")
    assert fetch(sandbox, server.url("/echo", "data.example")).ok


def test_a_limit_of_bytes_ends_what_would_go_beyond_it(make_any_sandbox: MakeSandbox, server: Server) -> None:
    sandbox = make_any_sandbox(network=listing(server, "data.example", total_bytes=100_000))
    assert fetch(sandbox, server.url("/bytes/1000", "data.example")).ok
    assert not fetch(sandbox, server.url("/bytes/1000000", "data.example")).ok
    refused = fetch(sandbox, server.url("/bytes/1", "data.example"))
    assert "403" in refused.stderr
    assert sum(entry.received_bytes for entry in sandbox.network.log()) < 1_000_000
    assert sandbox.run_code("1").value == "1"


# Copies


@pytest.mark.every_face
def test_a_copy_begins_with_the_rules_and_has_a_log_of_its_own(make_any_sandbox: MakeSandbox, server: Server) -> None:
    parent = make_any_sandbox(network=listing(server, "data.example"))
    url, more = server.url("/echo", "data.example"), server.url("/echo", "more.example")
    assert reaches(parent, url)
    (child,) = parent.fork(1)
    try:
        assert (rules(child), child.network.log()) == (rules(parent), [])
        child.network.allow(server.rule("more.example"))
        assert (reaches(child, url), reaches(child, more), reaches(parent, more)) == (True, True, False)
        assert (len(child.network.log()), len(parent.network.log())) == (2, 2)
    finally:
        child.close()


def test_a_sandbox_of_a_snapshot_has_the_network_that_is_said_when_it_is_made(server: Server) -> None:
    look = "import os; print('HTTP_PROXY' in os.environ)"
    url = server.url("/echo", "data.example")
    with Sandbox(network=listing(server, "data.example")) as first:
        assert reaches(first, url)
        with first.snapshot() as snapshot:
            with Sandbox(snapshot) as without:
                assert without.run_code(look).stdout == "False\n"
                with pytest.raises(InvalidArgument, match="network="):
                    without.network.log()
            with Sandbox(snapshot, network=listing(server, "more.example")) as second:
                assert second.run_code(look).stdout == "True\n"
                assert not reaches(second, url)
                assert reaches(second, server.url("/echo", "more.example"))
    with Sandbox() as plain, plain.snapshot() as snapshot:
        with Sandbox(snapshot, network=listing(server, "data.example")) as third:
            assert reaches(third, url)
