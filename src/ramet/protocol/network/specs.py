"""A sandbox's network on the wire: its rules and limits, its secrets, and the connections it tried. No I/O.

``rules`` defines rules on names and addresses. ``repr`` hides secrets, and no message contains their values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, field, replace
from typing import Literal, Self, get_args

from ramet.errors import ProtocolError
from ramet.protocol import fields
from ramet.protocol.argument_errors import Words, must, wrong_argument
from ramet.protocol.lazy_dataclasses import dataclass
from ramet.protocol.network.rules import Rule, host_address, host_name, parse_rule
from ramet.protocol.network.secret_places import SecretPlaces, check_places

RULES_AT_MOST = 500
SECRETS_AT_MOST = 100
# The base64 form of a shorter value would be found everywhere, and the stars that replace it in an answer would reveal
# guesses.
SECRET_CHARACTERS_AT_LEAST = 6
SECRET_CHARACTERS_AT_MOST = 16_384
CA_BYTES_AT_MOST = 100_000
CONNECTIONS = 256
CONNECTIONS_AT_MOST = 10_000
BYTES_AT_MOST = 2**62

# Variables that the network itself sets in a sandbox that has one.
RESERVED_NAMES = frozenset(
    ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "NODE_USE_ENV_PROXY", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE",
     "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "PIP_CERT", "NODE_EXTRA_CA_CERTS", "PATH", "HOME")
)  # fmt: skip

# Ports on the loopback of a sandbox with a network. They are the same in every pod, so that a fork's memory stays
# right.
PROXY_PORT = 3128
TRANSPARENT_PORT = 3129
NAMES_PORT = 53
OWN_PORTS = (PROXY_PORT, TRANSPARENT_PORT, NAMES_PORT)

Kind = Literal["http", "connect", "socks", "tcp", "dns"]


@dataclass(frozen=True, slots=True)
class NetworkSpec:
    """What a sandbox may reach. A denied rule takes precedence over all that is allowed."""

    open: bool = False  # everything that is public
    allow: tuple[Rule, ...] = ()
    deny: tuple[Rule, ...] = ()
    addresses: tuple[tuple[str, str], ...] = ()  # names that are not looked up, each with its address
    connections: int = CONNECTIONS  # at the same time
    bytes_per_second: int | None = None
    total_bytes: int | None = None  # sent and received during the sandbox's life
    ca_pem: str | None = None  # more trusted certificates, for connections on which the proxy itself uses TLS

    def allowing(self, rules: Iterable[Rule]) -> NetworkSpec:
        """Return a copy that allows these rules, and no longer denies them."""
        new = tuple(dict.fromkeys(rules))
        kept = tuple(rule for rule in self.allow if rule not in new)
        return replace(self, allow=(*kept, *new), deny=tuple(rule for rule in self.deny if rule not in new))

    def denying(self, rules: Iterable[Rule]) -> NetworkSpec:
        new = tuple(dict.fromkeys(rules))
        kept = tuple(rule for rule in self.deny if rule not in new)
        return replace(self, deny=(*kept, *new), allow=tuple(rule for rule in self.allow if rule not in new))

    def header(self) -> dict[str, object]:
        return {
            "open": self.open,
            "allow": [str(rule) for rule in self.allow],
            "deny": [str(rule) for rule in self.deny],
            "addresses": dict(self.addresses),
            "connections": self.connections,
            "bytes_per_second": self.bytes_per_second,
            "total_bytes": self.total_bytes,
            "ca_pem": self.ca_pem,
        }

    @classmethod
    def read(cls, header: Mapping[str, object]) -> NetworkSpec:
        return cls(
            open=fields.flag(header, "open"),
            allow=read_rules(fields.texts(header, "allow")),
            deny=read_rules(fields.texts(header, "deny")),
            addresses=tuple(fields.text_mapping(header, "addresses").items()),
            connections=fields.whole(header, "connections"),
            bytes_per_second=fields.optional_whole(header, "bytes_per_second"),
            total_bytes=fields.optional_whole(header, "total_bytes"),
            ca_pem=fields.optional_text(header, "ca_pem"),
        )


@dataclass(frozen=True, slots=True)
class SecretSpec:
    """A value that requests to some hosts carry, and that the sandbox never holds."""

    name: str  # the environment variable that holds the placeholder
    value: str
    hosts: tuple[Rule, ...]
    places: SecretPlaces = field(default_factory=SecretPlaces)  # parts of a request that may carry the value

    def __repr__(self) -> str:
        return f"<SecretSpec {self.name} for {', '.join(map(str, self.hosts))}>"

    def header(self) -> dict[str, object]:
        hosts = [str(host) for host in self.hosts]
        return {"name": self.name, "value": self.value, "hosts": hosts, **self.places.header()}

    @classmethod
    def read(cls, header: Mapping[str, object]) -> SecretSpec:
        return cls(
            name=fields.text(header, "name"),
            value=fields.text(header, "value"),
            hosts=read_rules(fields.texts(header, "hosts"), "secrets"),
            places=SecretPlaces.read(header),
        )


@dataclass(frozen=True, slots=True)
class Attempt:
    """A connection that code in a sandbox tried to make."""

    time: float  # seconds since 1970
    kind: Kind
    host: str  # as the code asked for it
    port: int
    allowed: bool
    rule: str | None  # the rule that decided, if any
    reason: str | None = None  # why it was refused or how it ended, if there is more to say
    address: str | None = None  # the address that was connected to
    sent_bytes: int = 0
    received_bytes: int = 0
    open: bool = False

    def header(self) -> dict[str, object]:
        return asdict(self)

    @classmethod
    def read(cls, header: Mapping[str, object]) -> Self:
        kind = fields.text(header, "kind")
        if kind not in get_args(Kind):
            raise ProtocolError(f"unknown kind of connection: {kind!r:.40}")
        return cls(
            time=fields.number(header, "time"),
            kind=kind,  # type: ignore[arg-type]
            host=fields.text(header, "host"),
            port=fields.whole(header, "port"),
            allowed=fields.flag(header, "allowed"),
            rule=fields.optional_text(header, "rule"),
            reason=fields.optional_text(header, "reason"),
            address=fields.optional_text(header, "address"),
            sent_bytes=fields.natural(header, "sent_bytes"),
            received_bytes=fields.natural(header, "received_bytes"),
            open=fields.flag(header, "open"),
        )


def read_rules(texts: Iterable[object], argument: str = "network") -> tuple[Rule, ...]:
    return tuple(dict.fromkeys(parse_rule(text, argument) for text in texts))


def check_network(network: NetworkSpec) -> None:
    """Raise InvalidArgument for a network that no sandbox can have."""
    count = len(network.allow) + len(network.deny)
    if count > RULES_AT_MOST:
        raise must("network", f"have at most {RULES_AT_MOST} rules", Words(f"{count}"))
    if len(network.addresses) > RULES_AT_MOST:
        raise must("addresses", f"have at most {RULES_AT_MOST} names", Words(f"{len(network.addresses)}"))
    for name, address in network.addresses:
        if host_name(name) != name:
            raise must("addresses", "be a host name in lower case", name, subject="each key of addresses")
        if str(host_address(address)) != address:  # the canonical form, without brackets, is what the proxy reads
            raise must(
                "addresses", "be an IPv4 or IPv6 address", address, subject=f"the value of {name!r:.100} in addresses"
            )
    _check_count("connections", network.connections, CONNECTIONS_AT_MOST)
    if network.bytes_per_second is not None:
        _check_count("bytes_per_second", network.bytes_per_second, BYTES_AT_MOST)
    if network.total_bytes is not None:
        _check_count("total_bytes", network.total_bytes, BYTES_AT_MOST)
    if network.ca_pem is not None:
        _check_certificates(network.ca_pem)


def _check_certificates(pem: str) -> None:
    """Check every certificate. A broken one would break all programs that get the whole file."""
    if len(pem) > CA_BYTES_AT_MOST or not pem.isascii() or "-----BEGIN CERTIFICATE-----" not in pem:
        raise wrong_argument("ca_pem", f"ca_pem must hold certificates in PEM, at most {CA_BYTES_AT_MOST} bytes")
    import ssl  # a slow import that few need

    try:
        # Each certificate alone: OpenSSL accepts a text whose first one is right.
        for part in pem.split("-----BEGIN CERTIFICATE-----")[1:]:
            body = part.partition("-----END CERTIFICATE-----")[0]
            one = f"-----BEGIN CERTIFICATE-----{body}-----END CERTIFICATE-----\n"
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=one)
    except (ssl.SSLError, ValueError) as error:
        raise wrong_argument("ca_pem", f"ca_pem holds a certificate that cannot be read: {error}") from None


def check_secrets(secrets: Iterable[SecretSpec], network: NetworkSpec | None) -> None:
    """Raise InvalidArgument for secrets that could never be used, or not safely. Messages never contain values."""
    given = tuple(secrets)
    if len(given) > SECRETS_AT_MOST:
        raise must("secrets", f"have at most {SECRETS_AT_MOST} entries", Words(f"{len(given)}"))
    for secret in given:
        check_secret_name(secret.name)
        check_secret_value(secret.value, "secrets", f"the value of {secret.name} in secrets")
        check_places(secret.places, "secrets", secret.name)
        if not secret.hosts:
            raise wrong_argument(
                "secrets", f"{secret.name} in secrets must name the hosts that may receive its value, got none"
            )
        if network is None:
            raise wrong_argument(
                "secrets",
                f"{secret.name} in secrets needs a sandbox with a network",
                hint='give the sandbox a network: network=[...], or over HTTP "egress": [...]',
            )
        for host in secret.hosts:
            _check_host(secret, host, network)


def check_secret_name(name: str) -> None:
    if not name.isidentifier() or not name.isascii() or len(name) > 200:
        raise must(
            "secrets",
            "be a variable's name of letters, digits and '_', at most 200",
            name,
            subject="each name in secrets",
        )
    if name.upper() in RESERVED_NAMES:
        raise wrong_argument(
            "secrets", f"{name} in secrets must have another name: this variable already has a meaning"
        )


def check_secret_value(value: str, argument: str, what: str) -> None:
    """Raise InvalidArgument for an unusable value. The message does not show it."""
    least, most = SECRET_CHARACTERS_AT_LEAST, SECRET_CHARACTERS_AT_MOST
    if len(value) < least:
        raise must(
            argument,
            f"have at least {least} characters",
            Words("fewer"),
            subject=what,
            hint="use a longer value; one that is masked in answers could be guessed if it is shorter",
        )
    if len(value) > most or not value.isprintable():
        raise must(
            argument,
            f"have at most {most} characters, all printable",
            Words("more" if len(value) > most else "others"),
            subject=what,
        )


def _check_host(secret: SecretSpec, host: Rule, network: NetworkSpec) -> None:
    if host.block is not None:
        raise must(
            "secrets",
            "be host names, because TLS is checked by name",
            Words(f"the address {host}"),
            subject=f"the hosts of {secret.name} in secrets",
        )
    if not network.open and not any(rule.covers(host) for rule in network.allow):
        raise wrong_argument(
            "secrets",
            f"{secret.name} in secrets is for {host}, which the sandbox may not reach",
            hint=f"add {str(host)!r} to the rules of its network",
        )


def _check_count(argument: str, value: int, at_most: int) -> None:
    if not 1 <= value <= at_most:
        raise must(argument, f"be from 1 to {at_most}", value)


def beyond(network: NetworkSpec, most: NetworkSpec) -> str | None:
    """Describe what part of a network exceeds the most that a key may have. Return None if nothing does."""
    if network.open and not most.open:
        return "an open network"
    for rule in network.allow:
        # "open" never covers a rule about addresses: listed addresses are not checked for being public, so a block such
        # as 0.0.0.0/0 would open the way to everything private.
        if not any(known.covers(rule) for known in most.allow) and not (most.open and rule.block is None):
            return f"the rule {str(rule)!r}"
    for name, address in network.addresses:
        if (name, address) not in most.addresses and not _may_pin(name, address, network, most):
            return f"the address {address} for {name!r}"
    return None


def _may_pin(name: str, address: str, network: NetworkSpec, most: NetworkSpec) -> bool:
    """Whether rules of ``most`` list the address itself, with every port on which the name may be reached.

    It is not enough that the address looks public: a pinned address is not checked for leading to something private.
    """
    ports = [rule.ports for rule in network.allow if rule.means_name(name)]
    if network.open:
        ports.append(((1, 65535),))
    pinned = parse_rule(address)
    wanted = [replace(pinned, ports=some) for some in ports] or [pinned]
    return all(any(known.covers(rule) for known in most.allow) for rule in wanted)
