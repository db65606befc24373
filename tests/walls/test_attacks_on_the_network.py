"""Attacks from inside a sandbox on its network, its owner's log and its secrets, and on those who share the proxy."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from ramet import Network, Sandbox, Secret
from ramet.transport import embedded
from tests.network import servers
from tests.network.routes import http_serving
from tests.network.servers import Server
from tests.processes import command_line, descendants
from tests.walls.attempts import armed, value

_NAME = "data.example"
_BOUND_SECONDS = 20
_FIRST_HALF, _SECOND_HALF = "Zq9xTOPval", "ueKLMnop77"  # never together in the code of a cell

_TOOLS = f"""
def said(address, source=None, text=b'hello'):
    with socket.socket() as connection:
        connection.settimeout({_BOUND_SECONDS})
        if source is not None:
            connection.bind((source, 0))
        connection.connect(address)
        connection.sendall(text)
        connection.shutdown(socket.SHUT_WR)
        return connection.recv(100)
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with servers.serving(servers.echo) as echoing:
        yield echoing


@pytest.fixture(scope="module")
def web() -> Iterator[Server]:
    with http_serving() as serving:
        yield serving


def _network(*allowed: Server) -> Network:
    return Network([each.rule(_NAME) for each in allowed], addresses={_NAME: "127.0.0.1"})


@pytest.fixture(scope="module")
def online(server: Server) -> Iterator[Sandbox]:
    with Sandbox(network=_network(server)) as sandbox:
        armed(sandbox)
        assert sandbox.run_code(_TOOLS).ok
        yield sandbox


def test_nobody_inside_can_answer_for_names(online: Sandbox) -> None:
    code = """
import socket
other = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
try:
    other.bind(("127.0.0.1", 53))
except OSError as error:
    print(error.strerror)
"""
    assert online.run_code(code).stdout == "Address already in use\n"


@pytest.mark.parametrize("source", [None, "127.0.0.9", "198.19.255.254", "192.0.2.9"])
def test_the_port_that_raw_connections_are_led_to_leads_nowhere_by_itself(
    online: Sandbox, server: Server, source: str | None
) -> None:
    """Every address is the sandbox's own, so it can come from any; where it was going, it cannot say."""
    before = server.connections
    # By which call the reset is noticed is a matter of time: ENOTCONN is that of shutdown.
    refusals = ("ECONNRESET", "EPIPE", "ENOTCONN", b"")
    assert value(online, f"refusal(said, ('127.0.0.1', 3129), {source!r})") in refusals
    assert server.connections == before


@pytest.mark.parametrize("where", ["(there, PORT)", "('0.0.0.0', PORT)", "('198.19.255.254', 3129)"])
def test_a_listener_inside_gets_no_connection_that_goes_elsewhere(online: Sandbox, server: Server, where: str) -> None:
    code = f"""
there = socket.gethostbyname({_NAME!r})
with socket.socket() as thief:
    thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    thief.bind({where.replace("PORT", str(server.port))})
    thief.listen()
    answer = said((there, {server.port}))
    thief.setblocking(False)
    stolen = refusal(thief.accept)
(answer, stolen)
"""
    assert value(online, code) == (b"hello", "EAGAIN")


def test_a_listener_inside_gets_no_datagram_that_goes_elsewhere(online: Sandbox) -> None:
    """Every address is the sandbox's own: without packet rules it would arrive there."""
    code = f"""
with socket.socket(type=socket.SOCK_DGRAM) as thief, socket.socket(type=socket.SOCK_DGRAM) as away:
    thief.bind(('0.0.0.0', 0))
    thief.setblocking(False)
    away.settimeout({_BOUND_SECONDS})
    away.connect(('192.0.2.1', thief.getsockname()[1]))
    sent, stolen = refusal(away.send, b'x'), refusal(thief.recv, 1)
    answer = refusal(away.recv, 1) if stolen == 'EAGAIN' else None
(stolen, 'ECONNREFUSED' in (sent, answer))
"""
    assert value(online, code) == ("EAGAIN", True)


def test_what_is_remembered_of_connections_that_ended_is_soon_forgotten(online: Sandbox) -> None:
    """It is kernel memory that no limit of the sandbox counts."""
    folder = "/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_"
    seconds = [int(value(online, f"reading('{folder}{state}')")) for state in ("syn_sent", "time_wait", "close")]
    assert seconds == [2, 1, 1]
    assert int(value(online, f"reading('{folder}established')")) > 86_400


def test_names_that_are_asked_for_cannot_write_lines_into_the_log_of_the_owner(server: Server) -> None:
    """Whoever prints it, prints it on a terminal."""
    with Sandbox(network=_network(server)) as sandbox:
        armed(sandbox)
        line = r"x\n12:00:00 http bank.example:443 allowed\x1b[8m"
        code = rf"""
evil = b'{line}'
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as names:
    names.settimeout({_BOUND_SECONDS})
    question = bytes([len(evil)]) + evil + b'\7example\0\0\1\0\1'
    names.sendto(b'\x12\x34\1\0\0\1\0\0\0\0\0\0' + question, ('127.0.0.1', 53))
    names.recv(512)
with socket.create_connection(('127.0.0.1', 3128), {_BOUND_SECONDS}) as proxy:
    proxy.sendall(b'\5\1\0')
    proxy.recv(2)
    proxy.sendall(b'\5\1\0\3' + bytes([len(evil)]) + evil + b'\0\x50')
    proxy.recv(10)
"""
        assert sandbox.run_code(code, timeout=_BOUND_SECONDS).ok
        log = sandbox.network.log()
        assert [attempt.kind for attempt in log] == ["dns", "socks"]
        assert all(str(attempt).isprintable() for attempt in log)


@pytest.mark.promise("wall-secrets")
def test_the_value_of_a_secret_is_in_no_memory_of_the_sandbox_and_of_its_copies(web: Server) -> None:
    rule = web.rule(_NAME)
    secret = Secret(_FIRST_HALF + _SECOND_HALF, hosts=[rule], headers=["Key"])
    code = f"""
import urllib.request
def found(halves):
    held = []
    for line in open('/proc/self/maps'):
        first, last = (int(part, 16) for part in line.split()[0].split('-'))
        with open('/proc/self/mem', 'rb', 0) as memory:
            try:
                memory.seek(first)
                data = memory.read(last - first)
            except (OSError, OverflowError):
                continue
        at = data.find(halves[0])
        while at >= 0:
            end = at + len(halves[0])
            if data[end : end + len(halves[1])] == halves[1]:
                held.append(line)
            at = data.find(halves[0], at + 1)
    return held
def use():
    asked = urllib.request.Request({web.url("/echo", _NAME)!r}, headers={{'Key': os.environ['KEY']}})
    return len(urllib.request.urlopen(asked, timeout={_BOUND_SECONDS}).read())
"""
    look = f"found(({_FIRST_HALF.encode()!r}, {_SECOND_HALF.encode()!r}))"
    with Sandbox(network=_network(web), secrets={"KEY": secret}) as sandbox:
        armed(sandbox)
        assert sandbox.run_code(code).ok
        before = len(web.requests)
        assert value(sandbox, "use()") > 0
        assert web.requests[before].header("Key") == _FIRST_HALF + _SECOND_HALF
        assert value(sandbox, look) == []
        with sandbox.fork(1, inherit_secrets=True)[0] as child:
            assert value(child, "use()") > 0
            assert value(child, look) == []


def test_connections_of_a_parent_carry_nothing_from_or_to_its_child(online: Sandbox, server: Server) -> None:
    code = f"""
ahead = socket.create_connection(('127.0.0.1', 3128), {_BOUND_SECONDS})
ahead.sendall(b'CONNECT {_NAME}:{server.port} HTTP/1.1\\r\\nHost: {_NAME}:{server.port}\\r\\n\\r\\n')
assert ahead.recv(1000).startswith(b'HTTP/1.1 200')
raw = socket.create_connection(({_NAME!r}, {server.port}), {_BOUND_SECONDS})
inner = socket.create_server(('127.0.0.1', 8124))
"""
    assert online.run_code(code, timeout=_BOUND_SECONDS).ok
    with online.expose(8124) as exposed:
        address = ("127.0.0.1", urlsplit(exposed.url).port or 0)
        with socket.create_connection(address, _BOUND_SECONDS) as outside:
            assert online.run_code("shown, _ = inner.accept(); shown.settimeout(20)").ok
            with online.fork(1)[0] as child:
                ends = "(ahead, raw, shown)"
                answers = value(
                    child, f"[(refusal(each.send, b'stolen'), refusal(each.recv, 100))[1] for each in {ends}]"
                )
                assert set(answers) <= {b"", "ECONNRESET", "EPIPE", "ENOTCONN"}
            assert value(online, "[(each.send(b'own'), each.recv(100))[1] for each in (ahead, raw)]") == [b"own"] * 2
            assert online.run_code("shown.sendall(b'own'); shown.close(); inner.close()").ok
            outside.settimeout(_BOUND_SECONDS)
            assert b"".join(iter(lambda: outside.recv(100), b"")) == b"own"


def test_a_sandbox_that_was_prepared_for_a_network_is_given_to_nobody_without_one(server: Server) -> None:
    for _ in range(3):
        Sandbox(network=_network(server)).close()
    for _ in range(3):
        with Sandbox() as offline:
            armed(offline)
            assert offline.info().walls["network"] == "loopback only"
            assert value(offline, "refusal(socket.create_connection, ('127.0.0.1', 3128), 20)") == "ECONNREFUSED"
            assert value(offline, "refusal(socket.socket().connect, ('192.0.2.1', 80))") == "ENETUNREACH"
            assert value(offline, "[name for name in os.environ if 'prox' in name.lower()]") == []


@pytest.mark.deep("restarts")
def test_a_proxy_that_stands_still_holds_up_neither_the_engine_nor_those_without_a_network(server: Server) -> None:
    """What strangers send may keep it busy; it is ended then, which takes a while."""
    with Sandbox(network=_network(server)) as busy:
        assert busy.run_code("1").ok
        (proxy,) = [
            pid for pid in descendants(embedded.default_engine().pid) if b"ramet.network.proxy" in command_line(pid)
        ]
        os.kill(proxy, signal.SIGSTOP)
        try:
            with Sandbox() as other:
                assert other.run_code("1").ok
            with Sandbox(network=_network(server)) as another:
                assert another.run_code("1").ok
                for child in another.fork(2):
                    assert child.run_code("1").ok
                    child.close()
            busy.network.deny("b.example")
        finally:
            os.kill(proxy, signal.SIGCONT)
        armed(busy)
        assert busy.run_code(_TOOLS).ok
        assert value(busy, f"said(({_NAME!r}, {server.port}))") == b"hello"
