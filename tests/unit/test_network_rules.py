"""Rules of a network: what may be written, what it means, and what is more than somebody may have."""

from __future__ import annotations

import ipaddress

import pytest

from ramet.errors import InvalidArgument
from ramet.protocol.network.rules import host_address, host_name, parse_rule
from ramet.protocol.network.specs import (
    NetworkSpec,
    SecretSpec,
    beyond,
    check_network,
    check_secrets,
    read_rules,
)


@pytest.mark.parametrize(
    ("written", "best"),
    [
        ("api.example", "api.example"),
        ("  API.Example. ", "api.example"),
        ("*.example:443", "*.example:443"),
        ("bücher.example", "xn--bcher-kva.example"),
        ("host:1-65535", "host:*"),
        ("host:8000-9000", "host:8000-9000"),
        ("1.2.3.4", "1.2.3.4"),
        ("1.2.3.4:22", "1.2.3.4:22"),
        ("10.0.0.0/8:*", "10.0.0.0/8:*"),
        ("::1", "[::1]"),
        ("[::1]:80", "[::1]:80"),
        ("fe80::/10", "[fe80::/10]"),
        ("_service.example", "_service.example"),
    ],
)
def test_a_rule_is_given_back_as_it_is_written_best(written: str, best: str) -> None:
    rule = parse_rule(written)
    assert str(rule) == best
    assert parse_rule(best) == rule


@pytest.mark.parametrize(
    "written",
    [
        *("", " ", "*", "*:*", "open", "https://api.example", "//api.example", "api.example/path", "a b", "*x.y"),
        *("a..b", ".a", "-a.example", "a-.example", ":80", "a:0", "a:65536", "a:", "a:b", "a:9-8", "a:1:2", "x.*"),
        *("127.1", "0x7f.0.0.1", "1.2.3.256", "2130706433", "fe80::1%eth0", "[::1", "[::1]x", "a\r\nb", "a\0b"),
        *("a" * 64, ".".join(["a" * 60] * 5)),
    ],
)  # fmt: skip
def test_what_is_no_rule_is_refused_with_what_is(written: str) -> None:
    with pytest.raises(InvalidArgument, match="rule") as caught:
        parse_rule(written)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("written", "instead"),
    [
        ("open:443", "'open' alone"),
        ("Open", "'open' alone"),
        ("none", "leave the list empty"),
        ("::1:80", "'[::1]:80'"),
        ("fe80::1:8000-8010", "'[fe80::1]:8000-8010'"),
        ("::1:*", "'[::1]:*'"),
        ("10.1.2.3/8", "'10.0.0.0/8' for the whole block, or '10.1.2.3' for the address"),
        ("[2001:db8::1/32]:443", "'[2001:db8::/32]' for the whole block, or '[2001:db8::1]' for the address"),
    ],
)
def test_a_rule_that_may_mean_two_things_is_refused_with_both(written: str, instead: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_rule(written)
    assert instead in str(caught.value.hint)


def test_an_address_of_six_without_brackets_is_taken_where_it_is_clear() -> None:
    assert str(parse_rule("2001:db8::a")) == "[2001:db8::a]"
    assert str(parse_rule("::1")) == "[::1]"


def test_what_a_rule_is_instead_is_told_in_words() -> None:
    with pytest.raises(InvalidArgument, match="each rule in network must be a string, got an int"):
        parse_rule(5)


@pytest.mark.parametrize("written", [5, None, b"api.example", ["api.example"]])
def test_a_rule_is_text(written: object) -> None:
    with pytest.raises(InvalidArgument, match="each rule in network must be a string, got "):
        parse_rule(written)


def test_a_rule_without_a_port_is_about_the_web() -> None:
    rule = parse_rule("api.example")
    assert [port for port in (22, 80, 443, 8080) if rule.has_port(port)] == [80, 443]


def test_a_pattern_means_all_names_below_and_not_the_one_above() -> None:
    rule = parse_rule("*.example")
    assert rule.means_name("a.example")
    assert rule.means_name("a.b.example")
    assert not rule.means_name("example")
    assert not rule.means_name("badexample")
    assert not parse_rule("example").means_name("a.example")


def test_a_block_means_its_addresses_and_no_names() -> None:
    rule = parse_rule("10.0.0.0/8")
    assert rule.means_address(ipaddress.ip_address("10.9.9.9"))
    assert not rule.means_address(ipaddress.ip_address("11.0.0.1"))
    assert not rule.means_address(ipaddress.ip_address("::a00:1"))
    assert not rule.means_name("10.0.0.1")


@pytest.mark.parametrize(
    ("one", "other", "covered"),
    [
        ("a.example", "a.example", True),
        ("a.example", "b.example", False),
        ("a.example", "a.example:443", True),
        ("a.example:443", "a.example", False),
        ("a.example:*", "a.example:5-6", True),
        ("*.example", "a.example", True),
        ("*.example", "*.a.example", True),
        ("*.example", "*.example", True),
        ("*.example", "example", False),
        ("a.example", "*.a.example", False),
        ("10.0.0.0/8", "10.1.0.0/16", True),
        ("10.1.0.0/16", "10.0.0.0/8", False),
        ("10.0.0.0/8", "[::1]", False),
        ("*.example", "10.0.0.1", False),
    ],
)
def test_one_rule_covers_another_if_it_allows_all_that_the_other_does(one: str, other: str, covered: bool) -> None:
    assert parse_rule(one).covers(parse_rule(other)) is covered


@pytest.mark.parametrize(
    "text", ["1.2.3", "127.1", "0x1", "a.0x1f", "1", "a_b.c.99", "exa mple", "", ".", "-", "é" * 300]
)
def test_what_a_resolver_could_take_for_an_address_is_no_name(text: str) -> None:
    assert host_name(text) is None


@pytest.mark.parametrize("text", ["127.1", "0177.0.0.1", "0x7f.1", "1.2.3.4.5", "fe80::1%lo", "", "[127.0.0.1"])
def test_odd_forms_of_addresses_are_none(text: str) -> None:
    assert host_address(text) is None


def test_what_is_allowed_later_is_denied_no_more_and_the_other_way_round() -> None:
    network = NetworkSpec(allow=read_rules(["a.example"]), deny=read_rules(["b.example"]))
    network = network.allowing(read_rules(["b.example"]))
    assert (network.allow, network.deny) == (read_rules(["a.example", "b.example"]), ())
    network = network.denying(read_rules(["a.example"]))
    assert (network.allow, network.deny) == (read_rules(["b.example"]), read_rules(["a.example"]))


def test_a_network_and_a_secret_travel_whole() -> None:
    network = NetworkSpec(
        open=False,
        allow=read_rules(["a.example", "[::1]:80"]),
        deny=read_rules(["b.example"]),
        addresses=(("a.example", "127.0.0.1"),),
        connections=3,
        bytes_per_second=4,
        total_bytes=5,
        ca_pem="-----BEGIN CERTIFICATE-----",
    )
    assert NetworkSpec.read(network.header()) == network
    secret = SecretSpec("KEY", "hush-hush", read_rules(["a.example"]))
    assert SecretSpec.read(secret.header()) == secret
    assert "hush-hush" not in repr(secret)


@pytest.mark.parametrize(
    ("network", "words"),
    [
        (NetworkSpec(allow=read_rules(f"h{n}.example" for n in range(501))), "at most 500 rules, got 501"),
        (NetworkSpec(addresses=(("A.example", "127.0.0.1"),)), "lower case"),
        (NetworkSpec(addresses=(("a.example", "home"),)), "must be an IPv4 or IPv6 address, got 'home'"),
        (NetworkSpec(addresses=(("a.example", "[::1]"),)), "must be an IPv4 or IPv6 address"),
        (NetworkSpec(addresses=(("a.example", "0:0::1"),)), "must be an IPv4 or IPv6 address"),
        (NetworkSpec(connections=0), "connections must be from 1 to .*, got 0"),
        (NetworkSpec(bytes_per_second=0), "bytes_per_second must be from 1 to .*, got 0"),
        (NetworkSpec(total_bytes=-1), "total_bytes must be from 1 to .*, got -1"),
        (NetworkSpec(ca_pem="hello"), "ca_pem must hold certificates"),
    ],
)
def test_a_network_that_cannot_be_is_refused(network: NetworkSpec, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        check_network(network)


@pytest.mark.parametrize(
    ("name", "value", "hosts", "words"),
    [
        ("KEY", "hush-hush", [], "KEY in secrets must name the hosts that may receive its value, got none"),
        ("KEY", "hush-hush", ["b.example"], "may not reach"),
        ("KEY", "hush-hush", ["10.0.0.1"], "address"),
        ("MY-KEY", "hush-hush", ["a.example"], "must be a variable's name .* got 'MY-KEY'"),
        ("https_proxy", "hush-hush", ["a.example"], "already has a meaning"),
        ("KEY", "", ["a.example"], "value of KEY in secrets must have at least 6 characters, got fewer"),
        ("KEY", "five5", ["a.example"], "at least 6 characters, got fewer"),
        ("KEY", "hush\r\nX: y", ["a.example"], "all printable, got others"),
        ("KEY", "hush-hush" * 10_000, ["a.example"], "at most 16384 characters, all printable, got more"),
    ],
)
def test_a_secret_that_cannot_be_used_is_refused_without_its_value(
    name: str, value: str, hosts: list[str], words: str
) -> None:
    network = NetworkSpec(allow=read_rules(["a.example", "10.0.0.1"]))
    with pytest.raises(InvalidArgument, match=words) as caught:
        check_secrets([SecretSpec(name, value, read_rules(hosts))], network)
    assert "hush-hush" not in str(caught.value)


def test_a_secret_needs_a_network() -> None:
    with pytest.raises(InvalidArgument, match="KEY in secrets needs a sandbox with a network"):
        check_secrets([SecretSpec("KEY", "hush-hush", read_rules(["a.example"]))], None)


@pytest.mark.parametrize(
    ("asked", "most", "words"),
    [
        (NetworkSpec(open=True), NetworkSpec(allow=read_rules(["a.example"])), "an open network"),
        (NetworkSpec(allow=read_rules(["a.example"])), NetworkSpec(), "the rule 'a.example'"),
        (NetworkSpec(allow=read_rules(["10.0.0.1"])), NetworkSpec(open=True), "the rule '10.0.0.1'"),
        (NetworkSpec(allow=read_rules(["0.0.0.0/0:*"])), NetworkSpec(open=True), "the rule '0.0.0.0/0:*'"),
        (NetworkSpec(allow=read_rules(["[::/0]"])), NetworkSpec(open=True), "the rule '[::/0]'"),
        (NetworkSpec(allow=read_rules(["168.63.129.16"])), NetworkSpec(open=True), "the rule '168.63.129.16'"),
        (NetworkSpec(allow=read_rules(["[64:ff9b::a00:1]"])), NetworkSpec(open=True), "the rule '[64:ff9b::a00:1]'"),
        (NetworkSpec(addresses=(("a.example", "10.0.0.1"),)), NetworkSpec(open=True), "the address 10."),
        (
            NetworkSpec(allow=read_rules(["a.example:22"]), addresses=(("a.example", "10.0.0.1"),)),
            NetworkSpec(open=True, allow=read_rules(["10.0.0.0/8"])),
            "the address 10.",
        ),
        (
            NetworkSpec(allow=read_rules(["a.example"]), addresses=(("a.example", "10.0.0.1"),)),
            NetworkSpec(open=True, allow=read_rules(["10.0.0.0/8"])),
            None,
        ),
        (
            NetworkSpec(open=True, addresses=(("a.example", "10.0.0.1"),)),
            NetworkSpec(open=True, allow=read_rules(["10.0.0.0/8"])),
            "the address 10.",
        ),
        (NetworkSpec(allow=read_rules(["a.example:22"])), NetworkSpec(open=True), None),
        (NetworkSpec(allow=read_rules(["a.b.example"])), NetworkSpec(allow=read_rules(["*.b.example"])), None),
        (NetworkSpec(open=True), NetworkSpec(open=True), None),
    ],
)
def test_what_is_more_than_somebody_may_have_is_named(asked: NetworkSpec, most: NetworkSpec, words: str | None) -> None:
    found = beyond(asked, most)
    assert found is None if words is None else words in (found or "")


@pytest.mark.parametrize("text", ["open.", "OPEN.", "\uff4f\uff50\uff45\uff4e", "open.:443", "none.", "NONE."])
def test_a_host_whose_name_is_a_word_of_ours_is_no_rule_however_it_is_spelled(text: str) -> None:
    """Written as rules travel, it would be that word where it arrives: a list of one host would become every host."""
    with pytest.raises(InvalidArgument):
        parse_rule(text)
