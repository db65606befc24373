"""Secrets: requests to their hosts carry them, and the sandbox never holds them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import trustme

from ramet import Network, Sandbox, Secret
from tests.behaviour.faces import AnySandbox, MakeSandbox
from tests.network.routes import http_serving
from tests.network.servers import Server

VALUE = "s3cr3t & of=the/weather"
HERE = dict.fromkeys(("api.example", "other.example"), "127.0.0.1")
CELL_SECONDS = 60

SEND = """
import json, os, urllib.parse, urllib.request
def send(url, key, **more):
    asked = urllib.request.Request(url, headers={"X-Key": key, **more.pop("headers", {})}, **more)
    print(urllib.request.urlopen(asked, timeout=30).read().decode())
"""


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def plain_server() -> Iterator[Server]:
    with http_serving() as one:
        yield one


@pytest.fixture(scope="module")
def secure_server(authority: trustme.CA) -> Iterator[Server]:
    with http_serving(authority) as one:
        yield one


@pytest.fixture(params=["http", "https"])
def server(request: pytest.FixtureRequest) -> Server:
    name = "plain_server" if request.param == "http" else "secure_server"
    found: Server = request.getfixturevalue(name)
    return found


def options(server: Server, authority: trustme.CA, **places: Any) -> dict[str, Any]:
    network = Network(
        [server.rule("api.example"), server.rule("other.example")],
        addresses=HERE,
        ca_pem=authority.cert_pem.bytes().decode(),
    )
    secret = Secret(VALUE, hosts=[server.rule("api.example")], headers=["X-Key"], **places)
    return {"network": network, "secrets": {"KEY": secret}}


def printed(sandbox: AnySandbox, code: str) -> str:
    result = sandbox.run_code(code, timeout=CELL_SECONDS)
    assert result.ok, result.stderr
    return result.stdout


def echoed(sandbox: AnySandbox, call: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(printed(sandbox, call))
    return answer


@pytest.mark.every_face
def test_the_host_gets_the_value_in_header_query_and_body_and_the_sandbox_sees_stars(
    make_any_sandbox: MakeSandbox, server: Server, authority: trustme.CA
) -> None:
    sandbox = make_any_sandbox(**options(server, authority, query=["key"], body=True))
    printed(sandbox, SEND)
    url = server.url("/echo", "api.example")
    stars = "*" * len(VALUE)
    answer = echoed(sandbox, f"send({url!r} + '?key=' + os.environ['KEY'], os.environ['KEY'])")
    assert server.requests[-1].header("X-Key") == VALUE
    assert server.requests[-1].target == "/echo?key=s3cr3t%20%26%20of%3Dthe%2Fweather"
    assert dict(answer["headers"])["X-Key"] == stars
    assert "s3cr3t" not in json.dumps(answer)
    echoed(
        sandbox,
        f"send({url!r}, 'none', data=json.dumps({{'key': os.environ['KEY']}}).encode(), "
        "headers={'Content-Type': 'application/json'})",
    )
    assert json.loads(server.requests[-1].body) == {"key": VALUE}
    echoed(sandbox, f"send({url!r}, 'none', data=urllib.parse.urlencode({{'key': os.environ['KEY']}}).encode())")
    assert server.requests[-1].body == b"key=s3cr3t%20%26%20of%3Dthe%2Fweather"


@pytest.mark.every_face
def test_only_the_usual_headers_and_named_ones_carry_the_value_if_nothing_else_is_said(
    make_any_sandbox: MakeSandbox, plain_server: Server, authority: trustme.CA
) -> None:
    """Or code could store it at the host, and read it from another name of the same host."""
    sandbox = make_any_sandbox(**options(plain_server, authority))
    printed(sandbox, SEND)
    placeholder = printed(sandbox, "print(os.environ['KEY'])").strip()
    url = plain_server.url(f"/files/{placeholder}?key={placeholder}", "api.example")
    more = {"Authorization": f"Bearer {placeholder}", "Api-Key": placeholder, "X-Note": placeholder}
    headers = {**more, "Content-Type": "application/json"}
    data = json.dumps({"content": placeholder}).encode()
    sandbox.run_code(f"send({url!r}, os.environ['KEY'], data={data!r}, headers={headers})", timeout=CELL_SECONDS)
    heard = plain_server.requests[-1]
    assert heard.header("Authorization") == f"Bearer {VALUE}"
    assert [heard.header(name) for name in ("Api-Key", "X-Key", "X-Note")] == [VALUE, VALUE, placeholder]
    assert heard.target == f"/files/{placeholder}?key={placeholder}"
    assert json.loads(heard.body) == {"content": placeholder}


def test_another_host_gets_the_placeholder(make_any_sandbox: MakeSandbox, plain_server: Server) -> None:
    network = Network([plain_server.rule(name) for name in HERE], addresses=HERE)
    secrets = {"KEY": Secret(VALUE, hosts=[plain_server.rule("api.example")], headers=["X-Key"])}
    sandbox = make_any_sandbox(network=network, secrets=secrets)
    printed(sandbox, SEND)
    url = plain_server.url("/echo", "other.example")
    placeholder = printed(sandbox, "print(os.environ['KEY'])").strip()
    assert dict(echoed(sandbox, f"send({url!r}, os.environ['KEY'])")["headers"])["X-Key"] == placeholder


@pytest.mark.promise("wall-secrets")
def test_the_sandbox_holds_a_placeholder_in_its_environment_and_nothing_else(
    make_any_sandbox: MakeSandbox, secure_server: Server, authority: trustme.CA
) -> None:
    sandbox = make_any_sandbox(**options(secure_server, authority))
    placeholder = printed(sandbox, "import os; print(os.environ['KEY'])").strip()
    assert placeholder.startswith("ramet_secret_")
    assert sandbox.run_code("echo $KEY", language="bash").stdout.strip() == placeholder
    printed(sandbox, SEND)
    printed(sandbox, f"send({secure_server.url('/echo', 'api.example')!r}, os.environ['KEY'])")
    # In two parts that are never put together, or the look itself would be what it finds.
    found = printed(
        sandbox,
        f"""
        first, second = {VALUE[:10]!r}.encode(), {VALUE[10:]!r}.encode()
        found = 0
        for line in open("/proc/self/maps"):
            span, access = line.split()[:2]
            start, end = (int(part, 16) for part in span.split("-"))
            with open("/proc/self/mem", "rb") as memory:
                try:
                    memory.seek(start)
                    data = memory.read(end - start)
                except (OSError, ValueError):
                    continue  # of the kernel, or not to be read
            at = data.find(first)
            while at >= 0:
                found += data.startswith(second, at + len(first))
                at = data.find(first, at + 1)
        print(found)
        """,
    )
    assert found == "0\n"
    assert VALUE not in "".join(str(event) for event in sandbox.replay())
    assert VALUE not in "".join(map(str, sandbox.network.log()))


@pytest.mark.every_face
def test_a_copy_can_use_secrets_only_if_that_was_chosen(
    make_any_sandbox: MakeSandbox, plain_server: Server, authority: trustme.CA
) -> None:
    parent = make_any_sandbox(**options(plain_server, authority))
    printed(parent, SEND)
    printed(parent, "mine = os.environ['KEY']")
    url = plain_server.url("/echo", "api.example")

    def told(sandbox: AnySandbox, key: str) -> str | None:
        printed(sandbox, f"send({url!r}, {key})")
        return plain_server.requests[-1].header("X-Key")

    placeholder = printed(parent, "print(mine)").strip()
    for inherit in (False, True):
        (child,) = parent.fork(1, inherit_secrets=inherit)
        try:
            own = printed(child, "print(os.environ.get('KEY'))").strip()
            assert own != placeholder
            if inherit:
                assert told(child, "os.environ['KEY']") == VALUE
            else:
                assert told(child, "mine") == placeholder
                assert told(child, "os.environ.get('KEY', 'gone')") != VALUE
        finally:
            child.close()
    assert told(parent, "mine") == VALUE


def test_a_sandbox_of_a_snapshot_has_the_secrets_that_are_said_when_it_is_made(
    plain_server: Server, authority: trustme.CA
) -> None:
    given = options(plain_server, authority)
    url = plain_server.url("/echo", "api.example")
    with Sandbox(**given) as first, first.snapshot() as snapshot:
        with Sandbox(snapshot) as without:
            assert printed(without, "import os; print('KEY' in os.environ)") == "False\n"
        with Sandbox(snapshot, **given) as second:
            printed(second, SEND)
            printed(second, f"send({url!r}, os.environ['KEY'])")
            assert plain_server.requests[-1].header("X-Key") == VALUE
