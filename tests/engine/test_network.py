"""Calls about a sandbox's network, as a server makes them, and the process that they need."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from ramet.errors import InvalidArgument, NotPermitted, SandboxClosed, Unreachable
from ramet.protocol import calls
from ramet.protocol.frames import FROM_ENGINE, FrameDecoder, encode
from ramet.protocol.network.specs import NetworkSpec, SecretSpec, read_rules
from ramet.protocol.values.allowances import Allowance
from ramet.protocol.values.specs import SandboxSpec, ThawSpec
from ramet.transport import embedded
from tests.engine.conftest import Connect
from tests.engine.frames_client import Line, create, run, spec, until
from tests.network.routes import http_serving
from tests.network.servers import Server
from tests.processes import command_line, descendants, descriptor_count

_NAME = "data.example"
_SECRET = "s3cret-of-the-owner"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with http_serving() as serving:
        yield serving


def _online(server: Server, owner: str = "", secret: str | None = None, **more: Any) -> SandboxSpec:
    rules = read_rules([server.rule(_NAME)])
    network = NetworkSpec(allow=rules, addresses=((_NAME, "127.0.0.1"),))
    secrets = () if secret is None else (SecretSpec("KEY", secret, rules),)
    return replace(spec(owner, **more), network=network, secrets=secrets)


def _ask(line: Line, kind: int, header: dict[str, object], allowance: Allowance) -> dict[str, Any]:
    line.send_frame(kind, {**header, "allowance": allowance.header()})
    return dict(line.frames()[-1].header)


def _create(line: Line, wanted: SandboxSpec, allowance: Allowance | None = None) -> str:
    more = {} if allowance is None else {"allowance": allowance.header()}
    line.send_frame(calls.CREATE, {**wanted.header(), **more})
    return str(line.frames()[-1].header["id"])


def _fetch(line: Line, sandbox: str, server: Server) -> int:
    """The exit code of a cell that asks the server something."""
    code = f"import urllib.request; urllib.request.urlopen({server.url('/echo', _NAME)!r}, timeout=30).read()"
    return int(run(line, sandbox, code)["exit_code"])


def _proxies() -> list[int]:
    found = descendants(embedded.default_engine().pid)
    return [pid for pid in found if b"ramet.network.proxy" in command_line(pid)]


# Rules and log


def test_what_was_tried_is_told_as_soon_as_its_cell_has_ended(line: Line, server: Server) -> None:
    sandbox = _create(line, _online(server))
    assert _fetch(line, sandbox, server) == 0
    answer = line.ask(calls.NETWORK, sandbox=sandbox)
    (attempt,) = answer["attempts"]
    assert (attempt["host"], attempt["port"], attempt["allowed"]) == (_NAME, server.port, True)
    assert attempt["rule"] == server.rule(_NAME)
    assert attempt["received_bytes"] > attempt["sent_bytes"] > 0
    assert (answer["dropped"], answer["raw_tcp"], answer["closed"]) == (0, None, None)
    assert answer["network"]["allow"] == [server.rule(_NAME)]


def test_rules_change_while_the_sandbox_runs(line: Line, server: Server) -> None:
    sandbox = _create(line, replace(_online(server), network=NetworkSpec(addresses=((_NAME, "127.0.0.1"),))))
    assert _fetch(line, sandbox, server) == 1
    answer = line.ask(calls.NETWORK_CHANGE, sandbox=sandbox, allow=[server.rule(_NAME)], deny=[])
    assert answer["network"]["allow"] == [server.rule(_NAME)]
    assert _fetch(line, sandbox, server) == 0
    line.ask(calls.NETWORK_CHANGE, sandbox=sandbox, allow=[], deny=[server.rule(_NAME)])
    assert _fetch(line, sandbox, server) == 1
    allowed = [attempt["allowed"] for attempt in line.ask(calls.NETWORK, sandbox=sandbox)["attempts"]]
    assert allowed == [False, True, False]


@pytest.mark.parametrize("rule", ["http://data.example/", "*", "", "data.example:0", "data.example:99999", "a b"])
def test_a_rule_that_is_none_is_refused_and_changes_nothing(line: Line, server: Server, rule: str) -> None:
    sandbox = _create(line, _online(server))
    with pytest.raises(InvalidArgument):
        line.ask(calls.NETWORK_CHANGE, sandbox=sandbox, allow=["fine.example", rule], deny=[])
    assert line.ask(calls.NETWORK, sandbox=sandbox)["network"]["allow"] == [server.rule(_NAME)]


@pytest.mark.parametrize("kind", [calls.NETWORK, calls.NETWORK_CHANGE])
def test_a_sandbox_that_was_made_without_a_network_has_nothing_to_tell(line: Line, kind: int) -> None:
    with pytest.raises(InvalidArgument, match="was made without a network") as refused:
        line.ask(kind, sandbox=create(line), allow=[], deny=[])
    assert refused.value.argument == "network"


@pytest.mark.parametrize("kind", sorted(calls.NETWORK_CALLS))
def test_the_network_of_somebody_else_does_not_exist(line: Line, server: Server, kind: int) -> None:
    sandbox = _create(line, _online(server, owner="me"))
    with pytest.raises(SandboxClosed):
        line.ask(kind, sandbox=sandbox, owner="you", allow=[], deny=[], port=8000)


# What an owner may have


def _may(*rules: str, opened: bool = False) -> Allowance:
    return Allowance(network=NetworkSpec(open=opened, allow=read_rules(rules)))


def test_more_than_an_owner_may_have_is_refused_wherever_it_is_asked_for(line: Line, server: Server) -> None:
    wanted = replace(_online(server, persistent=True), network=NetworkSpec(allow=read_rules(["data.example"])))
    enough, little = _may("*.example", "data.example"), _may("other.example")
    with pytest.raises(NotPermitted, match="the rule 'data.example'") as refused:
        _create(line, wanted, little)
    assert str(refused.value.hint).startswith("allowed: other.example; an operator can allow more")
    sandbox = _create(line, wanted, enough)
    with pytest.raises(NotPermitted):
        line.ask(
            calls.NETWORK_CHANGE, sandbox=sandbox, allow=["more.org.example:22"], deny=[], allowance=enough.header()
        )
    line.ask(calls.NETWORK_CHANGE, sandbox=sandbox, allow=["a.example"], deny=[], allowance=enough.header())
    with pytest.raises(NotPermitted):
        line.ask(calls.FORK, sandbox=sandbox, count=1, reseed=False, allowance=little.header())
    snapshot = line.ask(calls.SNAPSHOT, sandbox=sandbox)["id"]
    thaw = ThawSpec(snapshot, None, network=wanted.network).header()
    with pytest.raises(NotPermitted):
        _ask(line, calls.THAW, thaw, little)
    line.ask(calls.CLOSE, sandbox=sandbox)
    resumed = {"space": sandbox, "lifetime": None, "persistent": False, "network": thaw["network"], "secrets": {}}
    with pytest.raises(NotPermitted):
        _ask(line, calls.RESUME, resumed, little)
    again = _ask(line, calls.RESUME, resumed, enough)["id"]
    assert line.ask(calls.NETWORK, sandbox=again)["network"]["allow"] == ["data.example"]


def test_an_open_network_is_refused_to_one_who_may_have_rules_only(line: Line) -> None:
    wanted = replace(spec(), network=NetworkSpec(open=True))
    with pytest.raises(NotPermitted, match="an open network"):
        _create(line, wanted, _may("data.example"))
    _create(line, wanted, _may(opened=True))


def test_one_who_may_have_no_network_can_have_a_sandbox_without(line: Line) -> None:
    _create(line, spec(), _may())
    with pytest.raises(NotPermitted, match="no host at all"):
        _create(line, replace(spec(), network=NetworkSpec(allow=read_rules(["data.example"]))), _may())


# Secrets


def test_a_secret_is_in_no_answer_and_in_no_message(line: Line, server: Server) -> None:
    sandbox = _create(line, _online(server, secret=_SECRET))
    result = run(line, sandbox, "import os; print(os.environ['KEY'])")
    assert result["exit_code"] == 0
    told = [
        line.ask(calls.NETWORK, sandbox=sandbox),
        line.ask(calls.INFO, sandbox=sandbox),
        line.ask(calls.SANDBOXES),
        line.ask(calls.STATS),
    ]
    line.send(calls.REPLAY, sandbox=sandbox)
    assert _SECRET not in repr(told) + repr(line.frames())
    with pytest.raises(InvalidArgument) as refused:
        _create(line, replace(_online(server), secrets=(SecretSpec("KEY", _SECRET, read_rules(["no.example"])),)))
    assert _SECRET not in f"{refused.value} {refused.value.details}"


def test_a_space_keeps_no_secret(line: Line, server: Server) -> None:
    sandbox = _create(line, _online(server, secret=_SECRET, persistent=True))
    assert run(line, sandbox, "x = 1")["exit_code"] == 0
    line.ask(calls.CLOSE, sandbox=sandbox)
    again = line.ask(calls.RESUME, space=sandbox, lifetime=None, persistent=False)["id"]
    code = """
import os
assert x == 1
assert not [name for name in os.environ if name == 'KEY' or 'prox' in name.lower()]
"""
    assert run(line, again, code)["exit_code"] == 0
    with pytest.raises(InvalidArgument, match="without a network"):
        line.ask(calls.NETWORK, sandbox=again)


def test_the_owners_own_variables_are_left_alone(line: Line, server: Server) -> None:
    own = replace(_online(server), environment=(("HTTP_PROXY", "http://own.example:1"),))
    sandbox = _create(line, own)
    code = """
import os
assert os.environ['HTTP_PROXY'] == 'http://own.example:1'
assert os.environ['http_proxy'] == 'http://127.0.0.1:3128'
"""
    assert run(line, sandbox, code)["exit_code"] == 0


# The process


@pytest.mark.deep("load")
def test_without_a_network_there_is_no_proxy_and_it_ends_after_the_last_that_needs_it(
    connect: Connect, server: Server
) -> None:
    line = connect()
    create(line)
    until(lambda: _proxies() == [])
    sandbox = _create(line, _online(server))
    (proxy,) = _proxies()
    another = _create(line, _online(server))
    assert _proxies() == [proxy]
    line.ask(calls.CLOSE, sandbox=sandbox)
    assert _fetch(line, another, server) == 0
    assert _proxies() == [proxy]
    line.ask(calls.CLOSE, sandbox=another)
    until(lambda: _proxies() == [])


@pytest.mark.promise("survive-proxy")
def test_a_proxy_that_was_killed_is_started_again_and_the_sandbox_goes_on(line: Line, server: Server) -> None:
    sandbox = _create(line, _online(server, secret=_SECRET))
    assert run(line, sandbox, "x = 1")["exit_code"] == 0
    assert _fetch(line, sandbox, server) == 0
    for _ in range(3):
        line.ask(calls.NETWORK, sandbox=sandbox)  # what it has seen last is told before it is gone
        (killed,) = _proxies()
        os.kill(killed, signal.SIGKILL)
        until(lambda: _proxies() not in ([], [killed]))  # noqa: B023 - called in this turn of the loop
        assert _fetch(line, sandbox, server) == 0
    assert run(line, sandbox, "assert x == 1")["exit_code"] == 0
    # The proxy may not yet have seen that the last one was closed.
    until(lambda: [one["open"] for one in line.ask(calls.NETWORK, sandbox=sandbox)["attempts"]] == [False] * 4)


def test_a_connection_that_was_open_when_the_proxy_died_ends_cleanly(line: Line, server: Server) -> None:
    sandbox = _create(line, _online(server))
    opening = f"""
import socket
c = socket.create_connection(('127.0.0.1', 3128), 30)
c.sendall(b'GET {server.url("/slow", _NAME)} HTTP/1.1\\r\\nHost: {server.rule(_NAME)}\\r\\n\\r\\n')
c.recv(10)
"""
    assert run(line, sandbox, opening)["exit_code"] == 0
    assert line.ask(calls.NETWORK, sandbox=sandbox)["attempts"][0]["open"]
    (killed,) = _proxies()
    os.kill(killed, signal.SIGKILL)
    ending = """
try:
    while c.recv(4096):
        pass
except ConnectionError:
    pass
"""
    assert run(line, sandbox, ending)["exit_code"] == 0
    server.released.set()
    until(lambda: not line.ask(calls.NETWORK, sandbox=sandbox)["attempts"][0]["open"])
    assert _fetch(line, sandbox, server) == 0


def test_bytes_count_on_towards_the_limit_after_the_proxy_died(line: Line, server: Server) -> None:
    wanted = _online(server)
    assert wanted.network is not None
    sandbox = _create(line, replace(wanted, network=replace(wanted.network, total_bytes=100_000)))
    code = f"import urllib.request; urllib.request.urlopen({server.url('/bytes/60000', _NAME)!r}, timeout=30).read()"
    assert run(line, sandbox, code)["exit_code"] == 0
    line.ask(calls.NETWORK, sandbox=sandbox)
    (killed,) = _proxies()
    os.kill(killed, signal.SIGKILL)
    until(lambda: _proxies() not in ([], [killed]))
    assert run(line, sandbox, code)["exit_code"] == 1


# Ports of the sandbox

_SERVING = """
import socket, threading
def serve(listener):
    while True:
        connection, _ = listener.accept()
        connection.sendall(b'%s' + connection.recv(10))
        connection.close()
listener = socket.create_server(('127.0.0.1', 8000))
threading.Thread(target=serve, args=(listener,), daemon=True).start()
"""


def _asked(port: int) -> bytes:
    with socket.create_connection(("127.0.0.1", port), 30) as connection:
        connection.sendall(b"!")
        return connection.recv(100)


def test_an_exposed_port_is_reached_from_the_host_also_without_a_network(line: Line) -> None:
    sandbox = create(line)
    run(line, sandbox, _SERVING % "hello")
    port = line.ask(calls.EXPOSE, sandbox=sandbox, port=8000)["port"]
    assert line.ask(calls.EXPOSE, sandbox=sandbox, port=8000)["port"] == port
    for _ in range(30):  # more than the proxy is given sockets for at once
        assert _asked(port) == b"hello!"
    line.ask(calls.UNEXPOSE, sandbox=sandbox, port=8000)
    line.ask(calls.UNEXPOSE, sandbox=sandbox, port=8000)
    until(lambda: _refuses(port))


def _refuses(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 30).close()
    except ConnectionRefusedError:
        return True
    return False


def test_an_exposed_port_is_closed_with_its_sandbox_and_a_child_has_none(line: Line) -> None:
    sandbox = create(line)
    run(line, sandbox, _SERVING % "parent")
    port = line.ask(calls.EXPOSE, sandbox=sandbox, port=8000)["port"]
    child = line.ask(calls.FORK, sandbox=sandbox, count=1, reseed=False)["children"][0]["id"]
    assert _asked(port) == b"parent!"
    own = line.ask(calls.EXPOSE, sandbox=child, port=8000)["port"]
    assert own != port
    line.ask(calls.CLOSE, sandbox=sandbox)
    until(lambda: _refuses(port))
    assert not _refuses(own)


def test_a_port_stays_exposed_at_the_same_place_when_another_body_goes_on(line: Line) -> None:
    sandbox = create(line)
    run(line, sandbox, _SERVING % "first")
    port = line.ask(calls.EXPOSE, sandbox=sandbox, port=8000)["port"]
    child = line.ask(calls.FORK, sandbox=sandbox, count=1, reseed=False)["children"][0]["id"]
    run(line, child, "listener.close(); listener = socket.create_server(('127.0.0.1', 8001))")
    snapshot = line.ask(calls.SNAPSHOT, sandbox=sandbox)["id"]
    line.ask(calls.RESTORE, sandbox=sandbox, snapshot=snapshot)
    until(lambda: _answers(port, b"first!"))
    assert [line.ask(calls.EXPOSE, sandbox=sandbox, port=8000)["port"], _asked(port)] == [port, b"first!"]


def _answers(port: int, expected: bytes) -> bool:
    try:
        return _asked(port) == expected
    except OSError:
        return False  # its sandbox is being exchanged


def test_a_port_stays_exposed_when_the_proxy_was_killed(line: Line) -> None:
    sandbox = create(line)
    run(line, sandbox, _SERVING % "hello")
    port = line.ask(calls.EXPOSE, sandbox=sandbox, port=8000)["port"]
    (killed,) = _proxies()
    os.kill(killed, signal.SIGKILL)
    assert _answers(port, b"hello!") or _answers(port, b"hello!"), "the host's own listener waits for the next proxy"


@pytest.mark.parametrize("kind", [calls.EXPOSE, calls.UNEXPOSE, calls.DIAL])
@pytest.mark.parametrize("port", [0, -1, 65536, 3128, 3129, 53])
def test_what_is_no_port_of_the_guests_is_refused(line: Line, server: Server, kind: int, port: int) -> None:
    with pytest.raises(InvalidArgument) as refused:
        line.ask(kind, sandbox=_create(line, _online(server)), port=port)
    assert refused.value.argument == "port"


def test_a_dial_brings_a_connection_with_the_first_byte_of_its_answer(line: Line) -> None:
    sandbox = create(line)
    run(line, sandbox, _SERVING % "hello")
    with embedded.default_engine().connect(blocking=True) as plain:
        plain.settimeout(30)
        plain.sendall(encode(calls.DIAL, {"sandbox": sandbox, "port": 8000}))
        data, descriptors, _, _ = socket.recv_fds(plain, 65536, 4)
        (frame,) = FrameDecoder(FROM_ENGINE).feed(data)
        assert frame.kind == calls.ANSWER
        (descriptor,) = descriptors
    with socket.socket(fileno=descriptor) as dialled:
        dialled.settimeout(30)
        dialled.sendall(b"!")
        assert dialled.recv(100) == b"hello!"


def test_a_dial_to_a_port_where_nothing_listens_says_so(line: Line) -> None:
    with pytest.raises(Unreachable, match="nothing listens on port 8000"):
        line.ask(calls.DIAL, sandbox=create(line), port=8000)


def test_a_sandbox_that_is_closed_while_its_network_is_made_leaves_nothing(connect: Connect, server: Server) -> None:
    line = connect()
    first = _create(line, _online(server))
    assert run(line, first, "1")["exit_code"] == 0
    (proxy,) = _proxies()
    before = descriptor_count(proxy)
    for _ in range(10):
        sandbox = _create(line, _online(server))
        line.ask(calls.CLOSE, sandbox=sandbox)
    with pytest.raises(SandboxClosed):
        line.ask(calls.NETWORK, sandbox=sandbox)
    until(lambda: descriptor_count(proxy) <= before)
    line.ask(calls.CLOSE, sandbox=first)
