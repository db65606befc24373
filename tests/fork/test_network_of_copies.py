"""The network of a fork's children, of sandboxes from snapshots, and of one that goes on as another."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import trustme

from ramet import ForkFailed, InvalidArgument, Network, Sandbox, Secret
from tests.behaviour.waiting import wait_until
from tests.fork.relatives import TOOLS, Fork, run, value
from tests.network import servers
from tests.network.routes import http_serving
from tests.network.servers import Server

_NAME = "data.example"
_SECRET = "s3cret-of-the-owner"

_ASKING = """
import urllib.request

def fetched(url, **headers):
    return urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=30).read()

def proxied():
    names = [name for name in os.environ if 'prox' in name.lower() or 'CERT' in name or name == 'KEY']
    return {name: os.environ[name] for name in names}
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with http_serving() as serving:
        yield serving


def _network(*rules: str) -> Network:
    return Network(list(rules), addresses={_NAME: "127.0.0.1"})


@pytest.fixture
def online(server: Server) -> Iterator[Sandbox]:
    with Sandbox(network=_network(server.rule(_NAME))) as sandbox:
        run(sandbox, TOOLS + _ASKING)
        yield sandbox


@pytest.fixture
def trusted(server: Server) -> Iterator[Sandbox]:
    """With a secret for the server."""
    rule = server.rule(_NAME)
    secrets = {"KEY": Secret(_SECRET, hosts=[rule], headers=["Key"])}
    with Sandbox(network=_network(rule), secrets=secrets, recover="fresh") as sandbox:
        run(sandbox, TOOLS + _ASKING)
        yield sandbox


def _hosts(sandbox: Sandbox) -> list[tuple[str, bool]]:
    return [(attempt.host, attempt.allowed) for attempt in sandbox.network.log()]


def _heard(sandbox: Sandbox, server: Server, key: str = "os.environ['KEY']") -> str | None:
    """What arrives at the server when code sends what it has for the secret."""
    before = len(server.requests)
    run(sandbox, f"fetched({server.url('/echo', _NAME)!r}, Key={key})")
    return server.requests[before].header("Key")


# Children


def test_a_child_reaches_what_its_parent_may_and_each_has_a_log_of_its_own(
    online: Sandbox, server: Server, fork: Fork
) -> None:
    run(online, f"fetched({server.url('/echo', _NAME)!r})")
    children = fork(online, 3)
    for number, child in enumerate(children):
        for _ in range(number):
            run(child, f"fetched({server.url('/echo', _NAME)!r})")
    assert [len(child.network.log()) for child in children] == [0, 1, 2]
    assert _hosts(online) == [(_NAME, True)]


def test_a_child_that_has_run_no_cell_is_asked_for_its_log(online: Sandbox, fork: Fork) -> None:
    (child,) = fork(online)
    assert child.network.log() == []
    assert child.network.rules == online.network.rules


def test_rules_that_a_parent_is_given_later_are_not_its_childrens(online: Sandbox, server: Server, fork: Fork) -> None:
    online.network.allow("early.example")
    (child,) = fork(online)
    online.network.allow("late.example")
    online.network.deny(server.rule(_NAME))
    assert [str(rule) for rule in child.network.rules] == [server.rule(_NAME), "early.example"]
    run(child, f"fetched({server.url('/echo', _NAME)!r})")


def test_raw_connections_of_a_child_are_its_own(online: Sandbox, fork: Fork) -> None:
    with servers.serving(servers.echo) as echoing:
        online.network.allow(echoing.rule(_NAME))
        run(online, f"before = socket.getaddrinfo({_NAME!r}, {echoing.port})[0][4]")
        for child in fork(online, 2):
            code = """
with socket.create_connection(before, 20) as connection:
    connection.sendall(b'mine')
    answer = connection.recv(4)
answer
"""
            assert value(child, code) == b"mine"
            assert _hosts(child) == [(_NAME, True)]


@pytest.mark.parametrize("way", ["proxy", "redirected"])
def test_a_connection_of_the_parent_is_closed_in_its_child_and_goes_on_in_the_parent(
    online: Sandbox, fork: Fork, way: str
) -> None:
    """What had arrived before may still be read; nothing that arrives later is."""
    with servers.serving(servers.echo) as echoing:
        online.network.allow(echoing.rule(_NAME))
        request = f"CONNECT {_NAME}:{echoing.port} HTTP/1.1\\r\\nHost: {_NAME}:{echoing.port}\\r\\n\\r\\n"
        if way == "proxy":
            opening = f"""
connection = socket.create_connection(('127.0.0.1', 3128), 20)
connection.sendall(b'{request}')
while not connection.recv(4096).endswith(b'\\r\\n\\r\\n'):
    pass
"""
        else:
            opening = f"connection = socket.create_connection(({_NAME!r}, {echoing.port}), 20)"
        run(online, opening)
        assert value(online, "connection.sendall(b'one'); connection.recv(3)") == b"one"
        children = fork(online, 2)
        assert value(online, "connection.sendall(b'two'); connection.recv(3)") == b"two"
        for child in children:
            got = value(child, "refusal(connection.recv, 100)")
            assert got in (b"", "ENOTCONN", "ECONNRESET", "EPIPE", "EINVAL", "ECONNABORTED"), got
        assert value(online, "connection.sendall(b'3rd'); connection.recv(3)") == b"3rd"
        run(online, "connection.close()")


def test_the_ports_of_the_proxy_are_there_in_a_child_whose_parent_had_many_connections(
    online: Sandbox, server: Server, fork: Fork
) -> None:
    run(online, "held = [socket.create_connection(('127.0.0.1', 3128), 20) for _ in range(40)]")
    for child in fork(online, 2):
        assert value(child, f"fetched({server.url('/bytes/3', _NAME)!r})") is not None
        for grandchild in fork(child):
            assert value(grandchild, f"fetched({server.url('/bytes/3', _NAME)!r})") is not None


@pytest.mark.parametrize("port", [3128, 3129])
def test_a_snapshot_whose_code_holds_a_port_of_the_network_is_not_thawed_with_one(server: Server, port: int) -> None:
    """Code in the parent listens there before it has a network."""
    with Sandbox() as offline:
        run(offline, TOOLS + _ASKING + f"taken = socket.create_server(('127.0.0.1', {port}))")
        snapshot = offline.snapshot()
    with pytest.raises(ForkFailed, match=f"has a socket open on loopback port {port}, ") as refused:
        Sandbox(snapshot, network=_network(server.rule(_NAME)))
    assert "close that socket first" in str(refused.value.hint)
    with Sandbox(network=_network(server.rule(_NAME))) as unharmed:
        run(unharmed, TOOLS + _ASKING + "mine = 1")
        with pytest.raises(ForkFailed, match=f"port {port}, "):
            unharmed.restore(snapshot)
        run(unharmed, f"fetched({server.url('/echo', _NAME)!r}), mine")
    with Sandbox(snapshot) as offline:
        assert value(offline, "taken.getsockname()[1]") == port
    snapshot.close()


# Secrets


def test_a_child_has_no_secrets_unless_they_are_inherited(trusted: Sandbox, server: Server, fork: Fork) -> None:
    held = value(trusted, "os.environ['KEY']")
    assert held.startswith("ramet_secret_")
    assert _heard(trusted, server) == _SECRET
    (child,) = fork(trusted)
    assert value(child, "os.environ.get('KEY'), '/run/ramet' in os.environ.get('SSL_CERT_FILE', '')") == (None, False)
    assert _heard(child, server, repr(held)) == held
    assert _SECRET.encode() not in server.heard().replace(_SECRET.encode(), b"", 1)


def test_children_that_inherit_secrets_have_placeholders_of_their_own(
    trusted: Sandbox, server: Server, fork: Fork
) -> None:
    held = value(trusted, "held = os.environ['KEY']; held")
    one, two = fork(trusted, 2, inherit_secrets=True)
    placeholders = [value(each, "os.environ['KEY']") for each in (trusted, one, two)]
    assert placeholders[0] == held
    assert len(set(placeholders)) == 3
    for child in (one, two):
        assert _heard(child, server) == _SECRET
        assert _heard(child, server, "held") == _SECRET, "what its memory had goes on"
    assert _heard(one, server, repr(placeholders[2])) == placeholders[2], "one means nothing in another"
    assert _heard(trusted, server, repr(placeholders[1])) == placeholders[1]


def test_a_secret_is_in_nothing_that_code_in_a_sandbox_can_read(trusted: Sandbox, server: Server, fork: Fork) -> None:
    assert _heard(trusted, server) == _SECRET
    (child,) = fork(trusted, inherit_secrets=True)
    code = f"""
import re
# Never as a whole in what is looked through: its beginning, and the rest with one bit of each byte turned.
beginning, turned = {_SECRET[:8].encode()!r}, {bytes(byte ^ 1 for byte in _SECRET[8:].encode())!r}

def is_there(data):
    for match in re.finditer(re.escape(beginning), data):
        if bytes(byte ^ 1 for byte in data[match.end() : match.end() + len(turned)]) == turned:
            return True
    return False

def look_through_memory():
    seen = 0
    with open('/proc/self/maps') as maps, open('/proc/self/mem', 'rb', 0) as memory:
        for line in list(maps):
            start, end = (int(number, 16) for number in line.split()[0].split('-'))
            if 'r' in line.split()[1] and '[v' not in line:
                try:
                    memory.seek(start)
                    data = memory.read(end - start)
                except OSError:
                    continue
                seen += len(data)
                if is_there(data):
                    return line
    return seen > 1 << 20
look_through_memory()
"""
    for sandbox in (trusted, child):
        assert value(sandbox, code) is True
    wrong = f"mine = {_SECRET!r}"
    assert value(child, f"{wrong}; look_through_memory() is not True") is True, "what is there is found"


def test_whom_the_owner_trusts_is_trusted_in_a_sandbox_and_its_children_without_any_secret() -> None:
    authority = trustme.CA()
    with http_serving(authority) as secure:
        rule, url = secure.rule(_NAME), secure.url("/bytes/3", _NAME)
        network = Network([rule], addresses={_NAME: "127.0.0.1"}, ca_pem=authority.cert_pem.bytes().decode())
        with Sandbox(network=network) as plain, Sandbox(network=_network(rule)) as untold:
            failed = untold.run_code(f"{TOOLS}{_ASKING}\nfetched({url!r})")
            assert "CERTIFICATE_VERIFY_FAILED" in failed.stderr
            run(plain, TOOLS + _ASKING)
            run(plain, f"fetched({url!r})")
            (child,) = plain.fork(1)
            with child:
                run(child, f"fetched({url!r})")
        secret = {"KEY": Secret(_SECRET, hosts=[rule], headers=["Key"])}
        with Sandbox(network=network, secrets=secret) as holder:
            run(holder, TOOLS + _ASKING)
            run(holder, f"fetched({url!r})")
            (child,) = holder.fork(1)
            with child:
                run(child, f"fetched({url!r})")
                shown = "open(os.environ['SSL_CERT_FILE']).read()"
                theirs, own = value(holder, f"len({shown})"), value(child, f"len({shown})")
                assert own < theirs, "the engine's own authority is of no use to it"


def test_code_that_leaves_no_room_for_certificates_harms_only_itself(trusted: Sandbox, fork: Fork) -> None:
    run(trusted, "os.remove('/run/ramet/certificates.pem'); os.mkdir('/run/ramet/certificates.pem')")
    (child,) = fork(trusted, inherit_secrets=True)
    assert value(child, "1 + 1") == 2
    assert "could not be written" in str(child.info().walls["network"])


# Snapshots


def test_a_sandbox_of_a_snapshot_has_the_network_that_is_asked_for(trusted: Sandbox, server: Server) -> None:
    snapshot = trusted.snapshot()
    with Sandbox(snapshot) as offline:
        assert value(offline, "proxied()") == {}
        assert value(offline, "refusal(socket.socket().connect, ('192.0.2.1', 80))") == "ENETUNREACH"
        with pytest.raises(InvalidArgument, match="without a network"):
            offline.network.log()
    with Sandbox(snapshot, network=_network(server.rule(_NAME))) as online:
        assert "HTTP_PROXY" in value(online, "proxied()")
        assert "KEY" not in value(online, "proxied()")
        run(online, f"fetched({server.url('/echo', _NAME)!r})")
    snapshot.close()


def test_a_variable_that_code_has_changed_is_left_to_it(online: Sandbox) -> None:
    run(online, "os.environ['HTTP_PROXY'] = 'http://own.example:1'")
    snapshot = online.snapshot()
    with Sandbox(snapshot) as offline:
        assert value(offline, "proxied()") == {"HTTP_PROXY": "http://own.example:1"}
    snapshot.close()


def test_a_secret_that_is_given_again_goes_on_under_its_old_placeholder(trusted: Sandbox, server: Server) -> None:
    run(trusted, "held = os.environ['KEY']")
    snapshot = trusted.snapshot()
    rule = server.rule(_NAME)
    with Sandbox(
        snapshot, network=_network(rule), secrets={"KEY": Secret(_SECRET, hosts=[rule], headers=["Key"])}
    ) as again:
        assert _heard(again, server) == _SECRET
        assert _heard(again, server, "held") == _SECRET
    with Sandbox(
        snapshot, network=_network(rule), secrets={"KEY": Secret("another one", hosts=[rule], headers=["Key"])}
    ) as other:
        assert _heard(other, server) == "another one"
        assert str(_heard(other, server, "held")).startswith("ramet_secret_")
    snapshot.close()


def test_a_sandbox_that_is_restored_keeps_its_rules_secrets_and_log(trusted: Sandbox, server: Server) -> None:
    run(trusted, "kept = 1")
    snapshot = trusted.snapshot()
    assert _heard(trusted, server) == _SECRET
    trusted.network.allow("later.example")
    run(trusted, "kept = 2")
    trusted.restore(snapshot)
    snapshot.close()
    assert value(trusted, "kept") == 1
    assert "later.example" in [str(rule) for rule in trusted.network.rules]
    assert _heard(trusted, server) == _SECRET
    assert _hosts(trusted) == [(_NAME, True)] * 2


def test_a_merge_keeps_the_rules_secrets_and_log_of_the_one_that_goes_on(
    trusted: Sandbox, server: Server, fork: Fork
) -> None:
    assert _heard(trusted, server) == _SECRET
    (child,) = fork(trusted)
    child.network.allow("of-the-child.example")
    run(child, f"result = 42; fetched({server.url('/echo', _NAME)!r})")
    trusted.merge_into(child)
    assert value(trusted, "result") == 42
    assert [str(rule) for rule in trusted.network.rules] == [server.rule(_NAME)]
    assert _heard(trusted, server) == _SECRET
    assert _hosts(trusted) == [(_NAME, True)] * 2


@pytest.mark.parametrize("later", [True, False])
def test_a_merge_into_one_without_a_network_leaves_it_without(online: Sandbox, server: Server, later: bool) -> None:
    with Sandbox() as offline:
        if later:
            run(online, "result = 42")
        offline.merge_into(online)
        assert value(offline, "proxied()") == {}
        # The proxy, another process, closes its sockets in the pod a moment after the merge.
        refused = "str(refusal(socket.create_connection, ('127.0.0.1', 3128), 20))"
        wait_until(lambda: value(offline, refused) == "ECONNREFUSED", "nothing listens there any more")


def test_a_merge_gives_the_network_of_the_one_that_goes_on_to_what_had_none(online: Sandbox, server: Server) -> None:
    with Sandbox() as offline:
        run(offline, TOOLS + _ASKING + "result = 42")
        online.merge_into(offline)
        assert value(online, "result") == 42
        run(online, f"fetched({server.url('/echo', _NAME)!r})")
        assert _hosts(online) == [(_NAME, True)]


@pytest.mark.parametrize("port", [3128, 3129])
def test_what_holds_a_port_of_the_network_is_not_merged_into_one(online: Sandbox, server: Server, port: int) -> None:
    with Sandbox() as offline:
        run(offline, f"import socket; taken = socket.create_server(('127.0.0.1', {port}))")
        with pytest.raises(ForkFailed, match=f"not merged: its code has a socket open on loopback port {port}, "):
            online.merge_into(offline)
        assert value(offline, "taken.getsockname()[1]") == port
        run(online, f"fetched({server.url('/echo', _NAME)!r})")
        run(offline, "taken.close()")
        online.merge_into(offline)
        assert value(online, "taken.fileno()") == -1


def test_a_repl_that_is_started_again_has_the_network_of_before(trusted: Sandbox, server: Server) -> None:
    assert trusted.run_code("import os; os._exit(3)").state == "lost"
    assert trusted.run_code(TOOLS + _ASKING).restarted
    assert _heard(trusted, server) == _SECRET
