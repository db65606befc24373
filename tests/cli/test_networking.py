"""`--network` and `--secret`: what they mean, and what is said when they cannot."""

from __future__ import annotations

import argparse
import socket
from collections.abc import Iterator

import pytest

from ramet import InvalidArgument, Network, Secret
from ramet.cli.main import make_parser
from ramet.cli.network_options import add_network_options, chosen_network
from tests.cli.commands import ramet
from tests.network.servers import Server
from tests.server.running import Server as RametServer

VALUE = "s3cr3t-value"


def parsed(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_network_options(parser)
    return parser.parse_args(arguments)


def test_without_the_options_there_is_no_network() -> None:
    assert chosen_network(parsed()) == (None, {})


def test_none_means_nothing_as_it_does_for_servers_and_keys() -> None:
    assert chosen_network(parsed("--network", "none")) == (None, {})
    with pytest.raises(InvalidArgument, match="'none' in network must be given alone"):
        chosen_network(parsed("--network", "none", "--network", "api.example"))


def test_what_is_wrong_with_a_rule_is_said_of_the_option() -> None:
    with pytest.raises(InvalidArgument, match="^the rule .http://api.example. in network is a URL") as caught:
        chosen_network(parsed("--network", "http://api.example"))
    assert caught.value.details["argument"] == "network"


def test_rules_may_be_given_one_by_one() -> None:
    network, _ = chosen_network(parsed("--network", "api.example", "--network", "open", "--network", "10.0.0.5:80"))
    assert network == Network(["open", "api.example", "10.0.0.5:80"])


def test_a_secret_has_its_value_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", VALUE)
    options = ("--network", "*.example", "--secret", "KEY@a.example,b.example:443")
    _, secrets = chosen_network(parsed(*options))
    assert secrets["KEY"].value == VALUE
    assert secrets["KEY"].hosts == ("a.example", "b.example:443")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--network", "api.example", "--secret", "KEY_THAT_IS_NOT_SET@api.example"), "KEY_THAT_IS_NOT_SET"),
        (("--secret", "KEY@api.example"), "--network api.example"),
        (("--network", "api.example", "--secret", "KEY"), "NAME@HOST"),
        (("--network", "api.example", "--secret", "KEY@"), "NAME@HOST"),
        (("--network", "api.example", "--secret", f"KEY={VALUE}@api.example"), "NAME@HOST"),
        (("--network", "api.example", "--secret", "KEY@other.example"), "other.example"),
        (("--network", "https://api.example/"), "URL"),
        (("--network", "*"), "every host"),
    ],
)
def test_what_is_wrong_is_said_without_the_value(
    options: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY", VALUE)
    with pytest.raises(InvalidArgument) as caught:
        chosen_network(parsed(*options))
    assert said in str(caught.value)
    assert VALUE not in str(caught.value)


@pytest.mark.parametrize("command", ["run", "shell", "mcp", "gateway"])
def test_every_command_that_makes_sandboxes_has_the_options(command: str) -> None:
    more = ["--upstream", "http://127.0.0.1:1"] if command == "gateway" else []
    chosen = make_parser().parse_args([command, *more, "--network", "api.example", "--secret", "KEY@api.example"])
    assert (chosen.network, chosen.secret) == (["api.example"], ["KEY@api.example"])


def test_a_sandbox_that_exists_has_its_network_already() -> None:
    done = ramet("run", "--sandbox", "sbx_1", "--network", "open", "-c", "1", url="http://127.0.0.1:1")
    assert done.returncode == 125
    assert "--network is for a new sandbox" in done.stderr


@pytest.mark.parametrize("command", ["run", "mcp", "gateway"])
def test_a_wrong_rule_ends_the_command_before_anything_starts(command: str) -> None:
    more = {"run": ["-c", "1"], "mcp": [], "gateway": ["--upstream", "http://127.0.0.1:1"]}[command]
    done = ramet(command, "--network", "https://api.example/", *more)
    assert done.returncode == (125 if command == "run" else 1)
    assert "--network: the rule 'https://api.example/' is a URL" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture
def address() -> Iterator[str]:
    """Of an HTTP server on this machine, by an address that programs do not take for their own machine's."""

    def answer(connection: socket.socket) -> None:
        while b"\r\n\r\n" not in connection.recv(65536, socket.MSG_PEEK):
            pass
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello")

    server = Server(answer, "http", at=("127.0.0.2", 0))
    yield f"127.0.0.2:{server.port}"
    server.close()


@pytest.mark.deep("load")
def test_a_script_reaches_what_is_listed_and_nothing_else(address: str) -> None:
    code = f"import urllib.request as u; print(u.urlopen('http://{address}/', timeout=30).read())"
    done = ramet("run", "--network", address, "-c", code)
    assert (done.returncode, done.stdout) == (0, "b'hello'\n"), done.stderr
    refused = ramet("run", "--network", "api.example", "-c", code)
    assert refused.returncode == 1
    assert "403" in refused.stderr


def test_a_script_sees_a_placeholder(server: RametServer) -> None:
    options = ("--network", "api.example", "--secret", "KEY@api.example", "-c", "import os; print(os.environ['KEY'])")
    for url in (None, server.url):
        done = ramet("run", *options, url=url, KEY=VALUE)
        assert done.stdout.startswith("ramet_secret_"), done.stderr


def test_a_secret_goes_where_another_option_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", VALUE)
    monkeypatch.setenv("TOKEN", VALUE)
    options = ["--network", "*.example", "--secret", "KEY@a.example", "--secret", "TOKEN@a.example"]
    for place in ("KEY:header=X-Token", "KEY:query=key", "KEY:query=api[key]", "TOKEN:body", "TOKEN:path"):
        options += ["--secret-in", place]
    _, secrets = chosen_network(parsed(*options))
    assert secrets["KEY"] == Secret(VALUE, hosts=["a.example"], headers=["X-Token"], query=["key", "api[key]"])
    assert secrets["TOKEN"] == Secret(VALUE, hosts=["a.example"], path=True, body=True)


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("KEY", "--secret-in must be NAME:PLACE"),
        ("KEY:", "--secret-in must be NAME:PLACE"),
        (f"KEY:{VALUE}", "--secret-in must be NAME:PLACE"),
        (f"KEY:body={VALUE}", "--secret-in must be NAME:PLACE"),
        ("KEY:header", "--secret-in must be NAME:PLACE"),
        ("KEY:query=", "--secret-in must be NAME:PLACE"),
        ("OTHER:body", "names OTHER, but there is no such secret"),
        (f"KEY:header=X-Token: {VALUE}", "headers must hold header names"),
        ("KEY:header=Host", "the proxy writes itself"),
    ],
)
def test_a_place_that_is_none_is_said_without_the_value(place: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", VALUE)
    with pytest.raises(InvalidArgument) as caught:
        chosen_network(parsed("--network", "a.example", "--secret", "KEY@a.example", "--secret-in", place))
    assert said in str(caught.value)
    assert VALUE not in str(caught.value)
