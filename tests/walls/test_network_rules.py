"""What code in a sandbox with a network can do to it, and where it gets: only where a rule leads."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from ramet import Network, Sandbox
from tests.network import servers
from tests.network.servers import Server
from tests.walls.attempts import armed, attempt, value

_NAME = "data.example"
_OTHER = "other.example"

# In the sandbox: what it gets from a server that repeats what it hears.
_ASKING = """
import contextlib

def echoed(host, port, text=b'hello'):
    with socket.create_connection((host, port), 20) as connection:
        connection.sendall(text)
        with contextlib.suppress(OSError):  # it may be reset by now: reading tells
            connection.shutdown(socket.SHUT_WR)
        return b''.join(iter(lambda: connection.recv(1000), b''))

def netlink(family, message):
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, family) as kernel:
        kernel.bind((0, 0))
        kernel.sendto(message, (0, 0))
        answer = kernel.recv(65536)
    kind, = struct.unpack_from('=H', answer, 4)
    code, = struct.unpack_from('=i', answer, 16)
    return errno.errorcode.get(-code, code) if kind == 2 else kind

def asked(kind, flags, body):
    return struct.pack('=IHHII', 16 + len(body), kind, flags | 5, 1, 0) + body

def name_answer(name):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as names:
        names.settimeout(20)
        question = b''.join(bytes([len(part)]) + part.encode() for part in name.split('.')) + b'\\0\\0\\x01\\0\\x01'
        names.sendto(b'\\x12\\x34\\1\\0\\0\\1\\0\\0\\0\\0\\0\\0' + question, ('127.0.0.1', 53))
        answer = names.recv(512)
    return answer[3] & 15, int.from_bytes(answer[6:8], 'big')
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with servers.serving(servers.echo) as echoing:
        yield echoing


@pytest.fixture(scope="module")
def online(server: Server) -> Iterator[Sandbox]:
    network = Network([server.rule(_NAME)], addresses={_NAME: "127.0.0.1", _OTHER: "127.0.0.1"})
    with Sandbox(network=network) as sandbox:
        armed(sandbox)
        assert sandbox.run_code(_ASKING).ok
        yield sandbox


def test_a_program_that_knows_no_proxy_reaches_an_allowed_name(online: Sandbox, server: Server) -> None:
    assert value(online, f"echoed({_NAME!r}, {server.port})") == b"hello"


def test_a_program_of_another_language_does_too(online: Sandbox, server: Server) -> None:
    script = f"exec 3<>/dev/tcp/{_NAME}/{server.port}; printf 'hi\\n' >&3; head -c 3 <&3"
    result = online.run_code(script, language="bash", timeout=30)
    assert (result.stdout, result.exit_code) == ("hi\n", 0)


def test_a_name_that_no_rule_allows_is_not_known(online: Sandbox, server: Server) -> None:
    code = f"""
try:
    socket.getaddrinfo({_OTHER!r}, {server.port})
except socket.gaierror as error:
    answer = error.errno
answer == socket.EAI_NONAME
"""
    assert value(online, code) is True


@pytest.mark.parametrize(("name", "answer"), [(_NAME, (0, 1)), (_OTHER, (3, 0)), (f"secret.{_NAME}", (3, 0))])
def test_names_are_answered_only_where_a_rule_allows_them(online: Sandbox, name: str, answer: tuple[int, int]) -> None:
    """So that a name cannot carry anything out."""
    assert value(online, f"name_answer({name!r})") == answer


def test_an_allowed_name_is_refused_on_another_port(online: Sandbox) -> None:
    with servers.serving(servers.echo) as other:
        code = f"refusal(echoed, {_NAME!r}, {other.port})"
        assert value(online, code) in ("ECONNRESET", b"")
        assert other.connections == 0


@pytest.mark.parametrize("address", ["127.0.0.1", "127.1.2.3", "localhost"])
def test_the_loopback_of_the_host_is_out_of_reach(online: Sandbox, server: Server, address: str) -> None:
    """It is the sandbox's own, whatever rules say of names that lead there."""
    assert value(online, f"refusal(socket.create_connection, ({address!r}, {server.port}), 20)") == "ECONNREFUSED"


@pytest.mark.parametrize("address", ["192.0.2.1", "10.0.0.1", "169.254.169.254", "198.18.0.1", "198.19.255.254"])
def test_an_address_that_no_rule_lists_is_refused(online: Sandbox, server: Server, address: str) -> None:
    before = server.connections
    assert value(online, f"refusal(echoed, {address!r}, {server.port})") in ("ECONNRESET", "ECONNREFUSED", b"")
    assert server.connections == before


def test_datagrams_to_elsewhere_are_refused(online: Sandbox) -> None:
    code = """
away = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
away.settimeout(20)
away.connect(('192.0.2.1', 53))
(refusal(away.send, b'x'), refusal(away.recv, 1))
"""
    assert "ECONNREFUSED" in value(online, code)


def test_an_echo_request_to_elsewhere_is_refused(online: Sandbox) -> None:
    code = """
def ping():
    try:
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP)
    except OSError as error:
        return errno.errorcode[error.errno]
    sock.settimeout(5)
    sock.connect(('192.0.2.1', 0))
    return [refusal(sock.send, b'\\x08\\0\\0\\0\\0\\1\\0\\1'), refusal(sock.recv, 100)]
ping()
"""
    answer = value(online, code)
    assert answer == "EACCES" or not set(answer).isdisjoint({"EPERM", "ECONNREFUSED", "EHOSTUNREACH"})


def test_version_6_leads_nowhere(online: Sandbox) -> None:
    assert value(online, "refusal(socket.socket(socket.AF_INET6).connect, ('2001:db8::1', 80))") == "ENETUNREACH"


def test_raw_sockets_are_not_made(online: Sandbox) -> None:
    assert value(online, "refusal(socket.socket, socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_TCP)") == "EPERM"
    assert value(online, "refusal(socket.socket, 17, socket.SOCK_RAW)") == "EAFNOSUPPORT"


# The network itself


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("add a route", "asked(24, 0x600, struct.pack('=BBBBBBBBI', 2, 32, 0, 0, 255, 4, 254, 2, 0))"),
        ("take the route away", "asked(25, 0, struct.pack('=BBBBBBBBI', 2, 0, 0, 0, 255, 4, 254, 2, 0))"),
        ("give loopback an address", "asked(20, 0x600, struct.pack('=BBBBI', 2, 8, 0, 254, 1))"),
        ("take loopback down", "asked(16, 0, struct.pack('=BxHiII', 0, 772, 1, 0, 1))"),
        ("make an interface", "asked(16, 0x600, struct.pack('=BxHiII', 0, 0, 0, 0, 0))"),
    ],
)
def test_routes_and_addresses_cannot_be_changed(online: Sandbox, what: str, message: str) -> None:
    assert value(online, f"refusal(netlink, 0, {message})") == "EPERM", what


def test_packet_rules_can_neither_be_changed_nor_taken_away(online: Sandbox) -> None:
    batch = (
        "asked(16, 0, b'\\0\\0\\0\\x0a') + asked(0xa02, 0, b'\\2\\0\\0\\0' + b'\\x0a\\0\\1\\0ramet\\0\\0\\0')"
        " + asked(17, 0, b'\\0\\0\\0\\x0a')"
    )
    assert value(online, f"refusal(netlink, 12, {batch})") in ("EPERM", "EAFNOSUPPORT", "EPROTONOSUPPORT")


def test_no_namespace_gives_the_power_to_change_it(online: Sandbox) -> None:
    for flags in (0x10000000, 0x40000000, 0x50000000):  # user, network, both
        assert attempt(online, "unshare", str(flags)) in ("EPERM", "ENOSYS")


@pytest.mark.parametrize("port", [3128, 3129])
@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
def test_the_ports_of_the_proxy_cannot_be_taken(online: Sandbox, port: int, address: str) -> None:
    code = f"""
def take(option):
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, option, 1)
        taken.bind(({address!r}, {port}))
        taken.listen()
[refusal(take, option) for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT)]
"""
    assert value(online, code) == ["EADDRINUSE", "EADDRINUSE"]


def test_the_port_for_names_cannot_be_taken(online: Sandbox) -> None:
    code = "refusal(socket.socket(socket.AF_INET, socket.SOCK_DGRAM).bind, ('127.0.0.1', 53))"
    assert value(online, code) == "EADDRINUSE"


def test_another_sandbox_with_a_network_cannot_be_reached(online: Sandbox, server: Server) -> None:
    with Sandbox(network=Network([server.rule(_NAME)], addresses={_NAME: "127.0.0.1"})) as other:
        armed(other)
        port = value(other, "listening = socket.create_server(('0.0.0.0', 0)); listening.getsockname()[1]")
        for address in ("127.0.0.1", "198.19.255.254", "10.0.0.1"):
            assert value(online, f"refusal(echoed, {address!r}, {port})") in ("ECONNREFUSED", "ECONNRESET", b"")
        assert value(other, "listening.settimeout(0); refusal(listening.accept)") == "EAGAIN"


def test_the_own_loopback_stays_the_own(online: Sandbox) -> None:
    code = """
server = socket.create_server(('127.0.0.1', 0))
client = socket.create_connection(server.getsockname(), 20)
there, _ = server.accept()
there.sendall(b'mine')
answer = client.recv(10)
[each.close() for each in (server, client, there)]
datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
datagrams.bind(('127.0.0.1', 0))
datagrams.settimeout(20)
datagrams.sendto(b'too', datagrams.getsockname())
(answer, datagrams.recv(10))
"""
    assert value(online, code) == (b"mine", b"too")


def test_what_the_host_has_exposed_cannot_be_reached_from_inside(online: Sandbox) -> None:
    """The listening socket of an exposed port is on the host's loopback, and so out of every sandbox's reach."""
    assert online.run_code("inner = socket.create_server(('127.0.0.1', 8123))").ok
    exposed = online.expose(8123)
    try:
        on_host = urlsplit(exposed.url).port
        assert value(online, f"refusal(socket.create_connection, ('127.0.0.1', {on_host}), 20)") == "ECONNREFUSED"
    finally:
        exposed.close()
        online.run_code("inner.close()")


# Off is off


def test_without_a_network_there_is_no_route_no_listener_and_no_variable() -> None:
    with Sandbox() as offline:
        armed(offline)
        assert value(offline, "refusal(socket.socket().connect, ('192.0.2.1', 80))") == "ENETUNREACH"
        for port in (3128, 3129, 53):
            assert value(offline, f"refusal(socket.socket().connect, ('127.0.0.1', {port}))") == "ECONNREFUSED"
        names = value(offline, "sorted(os.environ)")
        assert not [name for name in names if "prox" in name.lower() or "CERT" in name or name.startswith("UV_LINK")]
        assert offline.info().walls["network"] == "loopback only"
        assert value(offline, "reading('/proc/net/route').count(b'\\n')") == 1


def test_the_walls_tell_of_the_network(online: Sandbox) -> None:
    assert online.info().walls["network"] == "through the proxy: 1 rule; raw TCP redirected"


def test_a_descriptor_of_the_proxy_is_in_no_sandbox(online: Sandbox) -> None:
    code = """
def listening():
    for name in os.listdir('/proc/self/fd'):
        try:
            kept = socket.socket(fileno=os.dup(int(name)))
        except OSError:
            continue
        with kept:
            if kept.family == socket.AF_INET and kept.getsockname()[1] in (3128, 3129, 53):
                yield name
list(listening())
"""
    assert value(online, code) == []


def test_a_connection_to_the_host_by_an_address_of_its_own_is_refused(online: Sandbox, server: Server) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            asking.connect(("192.0.2.1", 9))
            own = asking.getsockname()[0]
        except OSError:
            pytest.skip("the host has no address but its loopback")
    assert value(online, f"refusal(echoed, {own!r}, {server.port})") in ("ECONNRESET", b"")
