"""What a user makes for a network, and the operations of one, played without any I/O."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from ramet import Connection, InvalidArgument, Network, ProtocolError, Secret
from ramet.client.network import network_spec, secret_specs
from ramet.client.operations import forks
from ramet.client.operations import network as network_operations
from ramet.integrations.reach import reach
from ramet.protocol import calls
from ramet.protocol.frames import TO_ENGINE, FrameDecoder, encode
from ramet.protocol.network.requests import read_secrets, secrets_request
from ramet.protocol.network.secret_places import SecretPlaces
from ramet.protocol.network.specs import NetworkSpec, SecretSpec, check_secrets, read_rules
from ramet.protocol.requests.operations import ForkOptions
from tests.unit.played import play

VALUE = "s3cr3t-value"


def header_of(sent: bytes) -> dict[str, Any]:
    return dict(next(FrameDecoder(TO_ENGINE).feed(sent)).header)


# Secrets


def test_nothing_that_prints_a_secret_shows_its_value() -> None:
    secret = Secret(VALUE, hosts=["API.example"])
    assert secret.hosts == ("api.example",)
    shown = f"{secret} {secret!r} {secret!s:>10} {[secret]} {secret_specs({'KEY': secret}, NetworkSpec(open=True))}"
    assert VALUE not in shown
    assert "api.example" in shown


def test_a_secret_stays_as_it_is_and_can_cross_a_process_border() -> None:
    secret = Secret(VALUE, hosts=["api.example"])
    with pytest.raises(AttributeError):
        secret.value = "other"  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(secret)) == secret


@pytest.mark.parametrize(
    ("argument", "value", "hosts"),
    [
        ("hosts", VALUE, []),
        ("hosts", VALUE, "api.example"),
        ("hosts", VALUE, None),
        ("hosts", VALUE, ["https://api.example/"]),
        ("value", "", ["api.example"]),
        ("value", 5, ["api.example"]),
        ("value", f"{VALUE}\n", ["api.example"]),
        ("value", VALUE * 2000, ["api.example"]),
    ],
)
def test_a_secret_that_could_not_be_used_is_refused_when_it_is_made(argument: str, value: Any, hosts: Any) -> None:
    with pytest.raises(InvalidArgument) as caught:
        Secret(value, hosts=hosts)
    assert caught.value.argument == argument
    assert VALUE not in str(caught.value)


def test_secrets_are_a_mapping_of_secrets() -> None:
    network = NetworkSpec(open=True)
    for wrong in ([VALUE], {"KEY": VALUE}, {5: Secret(VALUE, hosts=["a.example"])}):
        with pytest.raises(InvalidArgument) as caught:
            secret_specs(wrong, network)
        assert caught.value.argument == "secrets"
        assert VALUE not in str(caught.value)
    with pytest.raises(InvalidArgument, match="must be in env or in secrets, not in both"):
        secret_specs({"KEY": Secret(VALUE, hosts=["a.example"])}, network, {"KEY": "1"})


# Networks


def test_a_network_keeps_what_it_understood() -> None:
    network = Network((rule for rule in ("API.example", "open")), deny=["B.example"], addresses={"API.example": "::1"})
    assert (network.rules, network.deny) == (("open", "api.example"), ("b.example",))
    assert network.addresses == {"api.example": "::1"}
    assert network == Network(["open", "api.example"], deny=["b.example"], addresses={"api.example": "::1"})
    assert pickle.loads(pickle.dumps(network)) == network
    assert len({network, Network(network.rules, deny=network.deny, addresses=network.addresses)}) == 1


def test_an_argument_may_be_rules_or_a_network() -> None:
    assert network_spec(None) is None
    assert network_spec("open") == network_spec(["open"]) == network_spec(Network("open")) == NetworkSpec(open=True)
    assert network_spec([]) == NetworkSpec()
    assert network_spec(("a.example",)) == network_spec(Network(["a.example"]))


@pytest.mark.parametrize("wrong", [True, False, 5, "api.example", {"a.example": 443}, b"open", ["a.example", 5], ["*"]])
def test_what_is_no_network_is_refused(wrong: object) -> None:
    with pytest.raises(InvalidArgument) as caught:
        network_spec(wrong)
    assert caught.value.argument == "network"
    assert " must " in caught.value.message or caught.value.hint


def test_a_single_rule_that_is_no_list_is_told_how_to_be_one() -> None:
    with pytest.raises(InvalidArgument, match=r"\['api.example'\]"):
        network_spec("api.example")


# Operations

ATTEMPT: dict[str, Any] = {
    "time": 1.5,
    "kind": "connect",
    "host": "api.example",
    "port": 443,
    "allowed": True,
    "rule": "api.example",
    "reason": None,
    "address": "192.0.2.1",
    "sent_bytes": 10,
    "received_bytes": 20,
    "open": False,
}


def test_the_log_gives_connections_and_lines_for_people() -> None:
    network = {**NetworkSpec(open=True).header(), "deny": ["b.example"]}
    del network["ca_pem"]
    refused = {**ATTEMPT, "host": "::1", "allowed": False, "rule": None, "reason": "not public", "address": None}
    answer = encode(calls.ANSWER, {"network": network, "attempts": [ATTEMPT, refused], "dropped": 0, "raw_tcp": None})
    state, _, sent = play(network_operations.network_state("sbx_1"), answer)
    assert isinstance(state, network_operations.NetworkState)
    assert header_of(sent) == {"sandbox": "sbx_1"}
    assert (state.rules, state.denied) == (("open",), ("b.example",))
    first, second = state.log
    assert type(first) is Connection
    assert repr(first).startswith("Connection(time=1.5, kind='connect', host='api.example', port=443, allowed=True")
    assert str(first) == ("00:00:01 connect api.example:443 allowed by api.example, 10 bytes sent, 20 received")
    assert str(second) == "00:00:01 connect [::1]:443 refused: not public"


def test_an_answer_that_is_no_log_is_a_protocol_error() -> None:
    network = NetworkSpec().header()
    for attempts in ([5], [{**ATTEMPT, "kind": "pigeon"}], [{**ATTEMPT, "port": "443"}]):
        with pytest.raises(ProtocolError):
            play(
                network_operations.network_state("sbx_1"),
                encode(calls.ANSWER, {"network": network, "attempts": attempts}),
            )


def test_rules_are_checked_before_anything_is_sent() -> None:
    _, _, sent = play(network_operations.change_rules("sbx_1", allow=("DATA.example",)), encode(calls.ANSWER, {}))
    assert header_of(sent) == {"sandbox": "sbx_1", "allow": ["data.example"], "deny": []}
    for wrong in ({}, {"allow": ("*",)}, {"deny": (5,)}, {"allow": ("open",)}):
        with pytest.raises(InvalidArgument):
            network_operations.change_rules("sbx_1", **wrong)


@pytest.mark.parametrize("port", [0, -1, 70000, 65536, True, "8000", 80.0, None])
def test_a_port_that_is_none_is_refused(port: Any) -> None:
    with pytest.raises(InvalidArgument) as caught:
        network_operations.expose("sbx_1", port, "")
    assert caught.value.argument == "port"


@pytest.mark.parametrize(
    ("answer", "url"),
    [
        ({"port": 4242}, "http://127.0.0.1:4242"),
        ({"port": 8000, "url": "/v1/exposed/abc/", "token": "abc"}, "https://host/below/v1/exposed/abc"),
        ({"port": 8000, "url": "https://other/abc"}, "https://other/abc"),
    ],
)
def test_an_exposed_port_has_a_url_of_this_machine_or_of_its_server(answer: dict[str, object], url: str) -> None:
    operation = network_operations.expose("sbx_1", 8000, "https://host/below")
    given, _, sent = play(operation, encode(calls.ANSWER, answer))
    assert given == url
    assert header_of(sent) == {"sandbox": "sbx_1", "port": 8000}


def test_secrets_are_inherited_only_by_who_says_so() -> None:
    for chosen in (True, False):
        operation = forks.fork("sbx_1", ForkOptions(n=2, inherit_secrets=chosen))
        sent = next(operation)
        operation.close()
        assert isinstance(sent, bytes)
        assert header_of(sent)["inherit_secrets"] is chosen
    with pytest.raises(InvalidArgument):
        forks.fork("sbx_1", ForkOptions(inherit_secrets=1))  # type: ignore[arg-type]


# What models are told


def test_a_model_is_told_what_its_sandbox_can_reach() -> None:
    assert reach(None) == reach(Network([])) == "There is no internet access."
    assert "a.example, b.example:1. Everything else" in reach(Network(["a.example", "b.example:1"]))
    assert reach(Network("open")) == "There is internet access; private addresses cannot be reached."
    assert "cannot be reached, except for 10.0.0.5:5432." in reach(Network(["open", "10.0.0.5:5432"]))
    many = Network([f"h{number}.example" for number in range(100)])
    assert "and 60 more" in reach(many)
    usual = Secret(VALUE, hosts=["h1.example"])
    other = Secret(VALUE, hosts=["h1.example"], headers=["X-Token"], query=["key"], body=True)
    told = reach(many, {"KEY": usual, "OTHER": other})
    assert "placeholders: KEY, OTHER (also in: header X-Token, query parameter key, body)." in told
    assert "in the header Authorization, X-Api-Key or Api-Key" in told


def test_a_secret_without_hosts_says_what_is_missing() -> None:
    with pytest.raises(InvalidArgument, match="hosts must name the hosts that may receive the value, got none"):
        Secret(VALUE)


def test_a_secret_that_is_too_short_to_be_masked_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="value must have at least 6 characters, got fewer"):
        Secret("five5", hosts=["api.example"])


@pytest.mark.parametrize("written", ["none", ""])
def test_a_word_for_nothing_gets_a_hint_about_nothing(written: str) -> None:
    with pytest.raises(InvalidArgument, match="leave it out for no network"):
        network_spec(written)


def test_what_the_log_does_not_have_is_counted() -> None:
    answer = {"network": NetworkSpec().header(), "attempts": [], "dropped": 3}
    state, _, _ = play(network_operations.network_state("sbx_1"), encode(calls.ANSWER, answer))
    assert isinstance(state, network_operations.NetworkState)
    assert (state.log, state.dropped) == ([], 3)


@pytest.mark.parametrize(
    ("argument", "places"),
    [
        ("headers", {"headers": "X-Token"}),
        ("headers", {"headers": 5}),
        ("headers", {"headers": [5]}),
        ("headers", {"headers": [["X-Token"]]}),
        ("headers", {"headers": [""]}),
        ("headers", {"headers": ["X Token"]}),
        ("headers", {"headers": [f"X-Token: {VALUE}"]}),
        ("headers", {"headers": ["X-Token\r\nHost"]}),
        ("headers", {"headers": ["content-LENGTH"]}),
        ("headers", {"headers": ["Proxy-Authorization"]}),
        ("headers", {"headers": ["X" * 101]}),
        ("headers", {"headers": [f"X-{number}" for number in range(21)]}),
        ("query", {"query": True}),
        ("query", {"query": {"key": VALUE}}),
        ("query", {"query": [f"{VALUE}\n"]}),
        ("query", {"query": ["k" * 101]}),
        ("path", {"path": "yes"}),
        ("body", {"body": 1}),
        ("body", {"body": ["key"]}),
    ],
)
def test_a_place_that_a_request_does_not_have_is_refused_without_the_value(argument: str, places: Any) -> None:
    with pytest.raises(InvalidArgument) as caught:
        Secret(VALUE, hosts=["api.example"], **places)
    assert caught.value.argument == argument
    assert caught.value.message.startswith(f"{argument} must ")
    assert VALUE not in str(caught.value)
    with pytest.raises(InvalidArgument) as caught:
        read_secrets("secrets", {"KEY": {"value": VALUE, "hosts": ["api.example"], **places}})
    assert caught.value.argument == "secrets"
    assert f"{argument} of 'KEY'" in str(caught.value)
    assert VALUE not in str(caught.value)


def test_places_cross_to_the_engine_as_they_were_given() -> None:
    secret = Secret(VALUE, hosts=["a.example"], headers=iter(["X-Token"]), query=("key", "key"), path=True, body=True)
    assert (secret.headers, secret.query) == (("X-Token",), ("key",))
    (spec,) = secret_specs({"KEY": secret}, NetworkSpec(open=True))
    assert spec.places == SecretPlaces(("X-Token",), ("key",), path=True, body=True)
    assert SecretSpec.read(spec.header()) == spec
    assert read_secrets("secrets", secrets_request([spec])) == (spec,)
    (usual,) = secret_specs({"KEY": Secret(VALUE, hosts=["a.example"])}, NetworkSpec(open=True))
    assert secrets_request([usual]) == {"KEY": {"value": VALUE, "hosts": ["a.example"]}}


def test_places_that_came_over_a_wire_are_checked_again() -> None:
    places = SecretPlaces(headers=("X-Token: a",))
    with pytest.raises(
        InvalidArgument, match="headers of KEY must hold header names such as 'X-Token', got something else as name 1"
    ):
        check_secrets([SecretSpec("KEY", VALUE, read_rules(["a.example"]), places)], NetworkSpec(open=True))
