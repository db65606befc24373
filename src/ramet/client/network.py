"""What a sandbox may reach, and what it may use without knowing it: values that a user makes, checked when made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from ramet.protocol.network import (
    CONNECTIONS,
    NetworkSpec,
    SecretSpec,
    check_secret_value,
    check_secrets,
    read_rules,
)
from ramet.protocol.network_requests import make_network, read_hosts, rule_texts
from ramet.protocol.refusing import invalid, kind_of


@dataclass(frozen=True)
class Network:
    """What code in a sandbox may connect to, and how much.

    ``rules`` is ``"open"`` (all that is public), or a list of hosts: ``"api.example"``, ``"*.example:443"``,
    ``"10.0.0.0/8:*"``. Without a port a rule means 80 and 443. What ``deny`` lists is refused whatever else is allowed.
    ``addresses`` says where a name is, instead of looking it up; it may be a private address. ``ca_pem`` are
    certificates to trust, beside the system's, for hosts that secrets are sent to.
    """

    rules: str | Iterable[str]
    deny: Iterable[str] = field(default=(), kw_only=True)
    addresses: Mapping[str, str] | None = field(default=None, kw_only=True)
    connections: int = field(default=CONNECTIONS, kw_only=True)  # at once
    bytes_per_second: int | None = field(default=None, kw_only=True)
    total_bytes: int | None = field(default=None, kw_only=True)  # sent and received, in a sandbox's life
    ca_pem: str | None = field(default=None, kw_only=True, repr=False)
    _spec: NetworkSpec = field(init=False, repr=False, compare=False)  # all of it, as the engine is told

    def __post_init__(self) -> None:
        spec = make_network(
            self.rules,
            deny=self.deny,
            addresses=self.addresses,
            connections=self.connections,
            bytes_per_second=self.bytes_per_second,
            total_bytes=self.total_bytes,
            ca_pem=self.ca_pem,
            argument="rules",
        )
        # As they are understood: an iterator can be read once, and a name be written in many ways.
        object.__setattr__(self, "rules", tuple(rule_texts(spec)))
        object.__setattr__(self, "deny", tuple(map(str, spec.deny)))
        object.__setattr__(self, "addresses", dict(spec.addresses))
        object.__setattr__(self, "_spec", spec)

    def __hash__(self) -> int:
        return hash(network_spec(self))


@dataclass(frozen=True, slots=True)
class Secret:
    """A value that requests to ``hosts`` carry, and that code in the sandbox never holds: it has a placeholder for it.

    Nothing that prints a Secret shows its value.
    """

    value: str = field(repr=False)
    hosts: Iterable[str] = ()  # needed; what is missing is told by the check

    def __post_init__(self) -> None:
        if not isinstance(self.value, str):
            raise invalid("value", f"is {kind_of(self.value)}", "a string")
        check_secret_value(self.value, "value", "it")
        object.__setattr__(self, "hosts", tuple(map(str, read_hosts(self.hosts, "hosts"))))


Secrets: TypeAlias = Mapping[str, Secret]
NetworkArgument: TypeAlias = "Literal['open'] | Iterable[str] | Network"


def network_spec(network: object) -> NetworkSpec | None:
    """What an engine is told of the argument ``network``, or InvalidArgument."""
    if network is None:
        return None
    if isinstance(network, Network):
        return network._spec
    return make_network(network)


def secret_specs(
    secrets: object, network: NetworkSpec | None, environment: Iterable[str] = ()
) -> tuple[SecretSpec, ...]:
    """The same for ``secrets``, which the network must let through. No value is in any message."""
    allowed = "a mapping of names of variables to Secret(value, hosts=[...])"
    if secrets is None:
        return ()
    if not isinstance(secrets, Mapping):
        raise invalid("secrets", f"is {kind_of(secrets)}", allowed)
    given = set(environment)
    specs = []
    for name, secret in secrets.items():
        if not isinstance(name, str):
            raise invalid("secrets", f"a name is {kind_of(name)}", allowed)
        if not isinstance(secret, Secret):
            raise invalid("secrets", f"{name!r:.100} is {kind_of(secret)}", allowed)
        if name in given:
            raise invalid("secrets", f"{name!r:.100} is in env too", "a variable in one of the two")
        specs.append(SecretSpec(name, secret.value, read_rules(secret.hosts, "secrets")))
    check_secrets(specs, network)
    return tuple(specs)


def check_rules(rules: Iterable[object], argument: str) -> list[str]:
    """Rules that are given one by one, as they are written best."""
    given = list(rules)
    if any(isinstance(rule, list | tuple | set) for rule in given):
        raise invalid(argument, "a rule is a list of them", f"rules one by one: {argument}(*rules)")
    return [str(rule) for rule in read_rules(given, argument)]


def check_port(port: object) -> int:
    """A port of a server in a sandbox."""
    if type(port) is not int or not 1 <= port <= 65535:
        problem = f"is {port}" if type(port) is int else f"is {kind_of(port)}"
        raise invalid("port", problem, "a whole number from 1 to 65535")
    return port
