"""The network and the secrets that somebody asks for, written by hand or by the SDK."""

from __future__ import annotations

from typing import Any

import pytest
import trustme

from ramet.errors import InvalidArgument
from ramet.protocol.network.requests import network_request, read_network, read_secrets
from ramet.protocol.network.rules import parse_rule
from ramet.protocol.network.specs import NetworkSpec, SecretSpec, read_rules
from ramet.protocol.requests.sandboxes import SandboxOptions
from ramet.transport.resolving import resolve

VALUE = "s3cr3t-value"
PEM = trustme.CA().cert_pem.bytes().decode()


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (None, None),
        (False, None),
        (True, NetworkSpec(open=True)),
        ("open", NetworkSpec(open=True)),
        ([], NetworkSpec()),
        (["API.example"], NetworkSpec(allow=read_rules(["api.example"]))),
        (["open", "10.0.0.5:80"], NetworkSpec(open=True, allow=read_rules(["10.0.0.5:80"]))),
        ({"open": True}, NetworkSpec(open=True)),
        ({"rules": "open"}, NetworkSpec(open=True)),
        ({"open": True, "rules": "open"}, NetworkSpec(open=True)),
        ({"open": True, "rules": ["a.example:1"]}, NetworkSpec(open=True, allow=read_rules(["a.example:1"]))),
        ({"open": False, "rules": []}, NetworkSpec()),
        ({"rules": [], "deny": None, "connections": None, "total_bytes": None}, NetworkSpec()),
        (
            {"rules": ["a.example"], "deny": ["b.example"], "addresses": {"A.example": "10.0.0.1"}, "connections": 3},
            NetworkSpec(
                allow=read_rules(["a.example"]),
                deny=read_rules(["b.example"]),
                addresses=(("a.example", "10.0.0.1"),),
                connections=3,
            ),
        ),
        (
            {"rules": [], "bytes_per_second": 1, "total_bytes": 2, "ca_pem": PEM},
            NetworkSpec(bytes_per_second=1, total_bytes=2, ca_pem=PEM),
        ),
    ],
)
def test_a_network_may_be_written_in_several_ways(written: object, meant: NetworkSpec | None) -> None:
    assert read_network("network", written) == meant
    if meant is not None:
        assert read_network("network", network_request(meant)) == meant


@pytest.mark.parametrize(
    ("argument", "written"),
    [
        ("egress", 5),
        ("egress", 0),
        ("egress", "api.example"),
        ("egress", [5]),
        ("egress", [None]),
        ("egress", ["*"]),
        ("egress", ["https://api.example/"]),
        ("egress", {}),
        ("egress", {"deny": ["a.example"]}),
        ("egress", {"rules": 5}),
        ("egress", {"rules": "api.example"}),
        ("egress", {"rules": {"api.example": 1}}),
        ("egress", {"open": True, "rules": 5}),
        ("egress", {"open": "yes", "rules": []}),
        ("egress", {"rule": ["a.example"]}),
        ("deny", {"open": True, "deny": "a.example"}),
        ("deny", {"open": True, "deny": [""]}),
        ("addresses", {"open": True, "addresses": ["10.0.0.1"]}),
        ("addresses", {"open": True, "addresses": {"a.example": "b.example"}}),
        ("addresses", {"open": True, "addresses": {"a.example": 5}}),
        ("addresses", {"open": True, "addresses": {"a b": "10.0.0.1"}}),
        ("connections", {"open": True, "connections": 0}),
        ("connections", {"open": True, "connections": True}),
        ("connections", {"open": True, "connections": 1.5}),
        ("bytes_per_second", {"open": True, "bytes_per_second": -1}),
        ("bytes_per_second", {"open": True, "bytes_per_second": "1"}),
        ("total_bytes", {"open": True, "total_bytes": 0}),
        ("total_bytes", {"open": True, "total_bytes": 2**70}),
        ("ca_pem", {"open": True, "ca_pem": 5}),
        ("ca_pem", {"open": True, "ca_pem": "/etc/ssl/ca.pem"}),
        ("ca_pem", {"open": True, "ca_pem": "-----BEGIN CERTIFICATE-----\nabc\n-----END CERTIFICATE-----\n"}),
        ("ca_pem", {"open": True, "ca_pem": "-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n"}),
        ("ca_pem", {"open": True, "ca_pem": "-----BEGIN CERTIFICATE-----\nMIIB"}),
        ("ca_pem", {"open": True, "ca_pem": PEM + PEM.replace("M", "N")}),
    ],
)
def test_what_is_no_network_is_refused_by_the_name_of_its_argument(argument: str, written: object) -> None:
    with pytest.raises(InvalidArgument) as caught:
        read_network("egress", written)
    assert caught.value.argument == argument
    assert argument in caught.value.message
    assert " must " in caught.value.message or caught.value.hint or "cannot be read" in caught.value.message


def test_secrets_are_read_with_their_hosts() -> None:
    read = read_secrets("secrets", {"KEY": {"value": VALUE, "hosts": ["api.example", "*.example:443"]}})
    assert read == (SecretSpec("KEY", VALUE, (parse_rule("api.example"), parse_rule("*.example:443"))),)
    assert read_secrets("secrets", None) == ()


@pytest.mark.parametrize(
    "written",
    [
        [VALUE],
        VALUE,
        {"KEY": VALUE},
        {"KEY": [VALUE]},
        {"KEY": {"value": VALUE}},
        {"KEY": {"value": VALUE, "hosts": []}},
        {"KEY": {"value": VALUE, "hosts": "api.example"}},
        {"KEY": {"value": VALUE, "hosts": ["https://api.example"]}},
        {"KEY": {"value": [VALUE], "hosts": ["api.example"]}},
        {"KEY": {"hosts": ["api.example"]}},
        {"KEY": {"value": VALUE, "hosts": ["api.example"], "more": 1}},
        # What only the whole shows.
        {"KEY": {"value": VALUE, "hosts": ["elsewhere.example"]}},
        {"KEY": {"value": VALUE, "hosts": ["10.0.0.1"]}},
        {"KEY": {"value": f"{VALUE}\r\n", "hosts": ["api.example"]}},
        {"not a name": {"value": VALUE, "hosts": ["api.example"]}},
    ],
)
def test_no_error_about_a_secret_shows_its_value(written: object) -> None:
    with pytest.raises(InvalidArgument) as caught:
        resolve(SandboxOptions.read({"network": ["api.example"], "secrets": written}))
    error = caught.value
    assert error.argument == "secrets"
    assert VALUE not in f"{error} {error!r} {error.details}"


def test_a_secret_needs_a_network() -> None:
    secrets = {"KEY": {"value": VALUE, "hosts": ["api.example"]}}
    with pytest.raises(InvalidArgument, match="KEY in secrets needs a sandbox with a network"):
        resolve(SandboxOptions.read({"secrets": secrets}))


def test_a_request_survives_its_header_and_hides_what_it_carries() -> None:
    header: dict[str, Any] = {
        "template": "default",
        "network": {"rules": ["api.example"], "total_bytes": 1000},
        "secrets": {"KEY": {"value": VALUE, "hosts": ["api.example"]}},
    }
    request = SandboxOptions.read(header)
    assert SandboxOptions.read(request.header()) == request
    assert VALUE not in repr(request)
    spec = resolve(request)
    assert spec.network == request.network
    assert spec.secrets == request.secrets
    assert VALUE not in repr(spec)


def test_a_request_without_a_network_says_nothing_of_one() -> None:
    assert SandboxOptions().header() == {}


def test_a_secret_that_is_no_object_is_told_what_it_is_and_what_is_expected() -> None:
    with pytest.raises(InvalidArgument, match="'KEY' in secrets must be an object .* got a str") as caught:
        read_secrets("secrets", {"KEY": VALUE})
    assert '{"value": "...", "hosts": ["..."]}' in str(caught.value)
    assert VALUE not in str(caught.value)
