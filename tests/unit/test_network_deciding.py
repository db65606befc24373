"""Which connections are allowed: names and addresses against the rules of a sandbox."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.network.connecting.addresses import why_not_public
from ramet.network.connecting.decisions import Decider
from ramet.protocol.network.rules import Rule
from ramet.protocol.network.specs import NetworkSpec, read_rules

# The first of a range, and how many follow it.
_SOME_PORTS = st.lists(st.tuples(st.integers(1, 30), st.integers(0, 15)), max_size=4)


def decider(*allow: str, deny: Sequence[str] = (), **more: object) -> Decider:
    return Decider(NetworkSpec(allow=read_rules(allow), deny=read_rules(deny), **more))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "127.255.0.1", "0.0.0.0", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254"),
        *("100.64.0.1", "100.100.100.200", "168.63.129.16", "224.0.0.1", "255.255.255.255", "240.0.0.1"),
        *("198.18.0.1", "192.0.2.1", "192.0.0.8", "192.88.99.1", "203.0.113.1", "::", "::1", "fe80::1"),
        *("fc00::1", "fd00:ec2::254", "fec0::1", "ff02::1", "::ffff:8.8.8.8", "::ffff:127.0.0.1"),
        *("::ffff:0:127.0.0.1", "::127.0.0.1", "64:ff9b::7f00:1", "64:ff9b:1::a00:1", "2002:7f00:1::"),
        *("2001::1", "2001:db8::1", "100::1", "3fff::1", "5f00::1"),
    ],
)  # fmt: skip
def test_an_address_that_is_not_public_is_told_apart(address: str) -> None:
    assert why_not_public(ipaddress.ip_address(address)) is not None


@pytest.mark.parametrize("address", ["8.8.8.8", "1.1.1.1", "93.184.216.34", "2606:4700:4700::1111", "2a00:1450::1"])
def test_a_public_address_is_public(address: str) -> None:
    assert why_not_public(ipaddress.ip_address(address)) is None


def test_an_address_of_the_host_itself_is_not_public() -> None:
    address = ipaddress.ip_address("8.8.8.8")
    assert why_not_public(address, {address}) == "an address of the host itself"


def test_a_name_is_allowed_by_the_rule_that_means_it() -> None:
    rules = decider("a.example", "*.b.example:8443")
    assert rules.name_verdict("a.example", 443).rule == "a.example"
    assert rules.name_verdict("x.b.example", 8443).rule == "*.b.example:8443"
    for name, port in (("a.example", 22), ("x.b.example", 443), ("b.example", 8443), ("other.example", 443)):
        verdict = rules.name_verdict(name, port)
        assert not verdict.allowed
        assert verdict.reason == f"{name}:{port} is in no rule of this sandbox"


def test_what_is_denied_is_not_allowed_whatever_else_is() -> None:
    rules = decider("*.example", deny=("bad.example",), open=True)
    assert rules.name_verdict("good.example", 443).allowed
    verdict = rules.name_verdict("bad.example", 443)
    assert (verdict.allowed, verdict.rule) == (False, "bad.example")
    assert rules.name_verdict("bad.example", 8080).allowed, "the rule is about 80 and 443"


def test_a_name_that_leads_to_a_private_address_leads_nowhere() -> None:
    rules = decider("a.example")
    verdict = rules.address_verdict(ipaddress.ip_address("127.0.0.1"), 443, "a.example")
    assert not verdict.allowed
    assert (
        verdict.reason
        == "a.example resolves to 127.0.0.1, which is a loopback address, and no rule allows that address"
    )
    assert rules.address_verdict(ipaddress.ip_address("8.8.8.8"), 443, "a.example").allowed


def test_an_address_that_is_listed_is_reached_by_name_and_by_itself() -> None:
    rules = decider("a.example", "10.0.0.0/8")
    for name in ("a.example", None):
        assert rules.address_verdict(ipaddress.ip_address("10.1.1.1"), 443, name).rule == "10.0.0.0/8"
        assert not rules.address_verdict(ipaddress.ip_address("10.1.1.1"), 22, name).allowed


def test_an_address_in_the_clothes_of_another_is_what_it_is() -> None:
    rules = decider("10.0.0.1")
    assert rules.address_verdict(ipaddress.ip_address("::ffff:10.0.0.1"), 443).allowed
    assert not rules.address_verdict(ipaddress.ip_address("::ffff:10.0.0.2"), 443).allowed
    assert not decider(open=True).address_verdict(ipaddress.ip_address("::ffff:10.0.0.2"), 443).allowed


def test_an_address_that_the_owner_gave_a_name_is_allowed_for_that_name() -> None:
    rules = decider("a.example", "b.example", addresses=(("a.example", "127.0.0.1"),))
    assert rules.pinned("a.example") == ipaddress.ip_address("127.0.0.1")
    assert rules.address_verdict(ipaddress.ip_address("127.0.0.1"), 443, "a.example").allowed
    assert not rules.address_verdict(ipaddress.ip_address("127.0.0.1"), 443, "b.example").allowed
    assert not rules.address_verdict(ipaddress.ip_address("127.0.0.1"), 443).allowed


def test_a_denied_address_is_denied_by_any_name() -> None:
    rules = decider("a.example", deny=("8.8.0.0/16:*",), open=True)
    assert not rules.address_verdict(ipaddress.ip_address("8.8.8.8"), 443, "a.example").allowed
    assert not rules.address_verdict(ipaddress.ip_address("8.8.8.8"), 443).allowed


def test_only_names_that_could_be_connected_to_are_looked_up() -> None:
    rules = decider("a.example", "*.b.example:8443", deny=("x.b.example:*", "c.example"))
    assert rules.may_be_looked_up("a.example")
    assert rules.may_be_looked_up("y.b.example")
    assert not rules.may_be_looked_up("x.b.example")
    assert not rules.may_be_looked_up("secret-data.evil.example")
    everything = decider(deny=("c.example:*", "d.example"), open=True)
    assert not everything.may_be_looked_up("c.example")
    assert everything.may_be_looked_up("d.example")
    assert not decider("e.example", deny=("*.example", "e.example")).may_be_looked_up("e.example")


def test_a_name_of_which_only_ports_in_the_middle_are_left_is_looked_up() -> None:
    ends = ("a.example:1-50", "a.example:150-200")
    assert decider("a.example:1-200", deny=ends).may_be_looked_up("a.example")
    assert not decider("a.example:1-200", deny=(*ends, "a.example:51-149")).may_be_looked_up("a.example")
    assert not decider(deny=("a.example:1-50", "a.example:51-65535"), open=True).may_be_looked_up("a.example")


@given(_SOME_PORTS, _SOME_PORTS)
def test_a_name_may_be_looked_up_if_there_is_a_port_to_connect_to(
    allow: list[tuple[int, int]], deny: list[tuple[int, int]]
) -> None:
    rules = decider(
        *(f"a.example:{first}-{first + more}" for first, more in allow),
        deny=[f"*.example:{first}-{first + more}" for first, more in deny],
    )
    assert rules.may_be_looked_up("a.example") is any(
        rules.name_verdict("a.example", port).allowed for port in range(1, 50)
    )


def test_how_often_rules_are_looked_at_for_a_name_does_not_grow_with_their_square(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Code in a sandbox asks DNS as often as it likes, and one process answers for all of them."""
    looks = 0
    means_name = Rule.means_name

    def counted(rule: Rule, name: str) -> bool:
        nonlocal looks
        looks += 1
        return means_name(rule, name)

    monkeypatch.setattr(Rule, "means_name", counted)
    ports = range(1, 501, 2)
    rules = decider(*(f"a.example:{port}" for port in ports), deny=[f"a.example:{port}-{port + 1}" for port in ports])
    assert not rules.may_be_looked_up("a.example")
    assert looks <= 2 * 500


def test_the_rule_about_a_name_is_the_one_by_which_it_may_be_looked_up() -> None:
    rules = NetworkSpec(allow=read_rules(["*.example"]), deny=read_rules(["a.example:22", "b.example:*"]))
    decider = Decider(rules)
    assert decider.rule_about("a.example") == "*.example"
    assert decider.rule_about("b.example") == "b.example:*"
    assert decider.rule_about("a.test") is None
    assert Decider(NetworkSpec(open=True)).rule_about("a.test") == "open"
