"""Network and Secret: what a sandbox may reach, and values that it may use without holding them. Checked when made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from ramet.protocol.argument_errors import kind_of, must, wrong_argument
from ramet.protocol.network.requests import make_network, read_hosts, rule_texts
from ramet.protocol.network.secret_places import SecretPlaces, make_places
from ramet.protocol.network.specs import (
    CONNECTIONS,
    NetworkSpec,
    SecretSpec,
    check_secret_value,
    check_secrets,
    read_rules,
)


@dataclass(frozen=True)
class Network:
    """The hosts that code in a sandbox may connect to, and limits on its connections.

    ``rules`` is ``"open"`` (every public host), or a list of hosts: ``"api.example"``, ``"*.example:443"``,
    ``"10.0.0.0/8:*"``. Without a port a rule means 80 and 443. Hosts in ``deny`` are refused whatever else is allowed.
    ``addresses`` maps names to addresses, also private ones, instead of DNS. ``connections`` limits open connections,
    ``total_bytes`` the bytes sent and received in the life of a sandbox. ``ca_pem`` holds certificates to trust, in
    addition to the system's, for hosts that secrets are sent to.

    Raises InvalidArgument for a rule or a number that is not allowed.
    """

    rules: str | Iterable[str]
    deny: Iterable[str] = field(default=(), kw_only=True)
    addresses: Mapping[str, str] | None = field(default=None, kw_only=True)
    connections: int = field(default=CONNECTIONS, kw_only=True)  # at once
    bytes_per_second: int | None = field(default=None, kw_only=True)
    total_bytes: int | None = field(default=None, kw_only=True)  # sent and received, in a sandbox's life
    ca_pem: str | None = field(default=None, kw_only=True, repr=False)
    _spec: NetworkSpec = field(init=False, repr=False, compare=False)  # the arguments as the engine receives them

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
        # In their canonical form: an iterator can be read only once, and a name can be written in many ways.
        object.__setattr__(self, "rules", tuple(rule_texts(spec)))
        object.__setattr__(self, "deny", tuple(map(str, spec.deny)))
        object.__setattr__(self, "addresses", dict(spec.addresses))
        object.__setattr__(self, "_spec", spec)

    def __hash__(self) -> int:
        return hash(network_spec(self))


@dataclass(frozen=True, slots=True)
class Secret:
    """A value that requests to ``hosts`` carry, and that code in the sandbox never holds: it has a placeholder for it.

    The value takes the placeholder's place in the headers ``Authorization``, ``X-Api-Key`` and ``Api-Key``, in those
    that ``headers`` names, and nowhere else. ``query`` names parameters of the URL that carry it too; ``path`` and
    ``body`` allow it anywhere in there. With these three, the hosts must neither store what they receive nor send
    it back in another form: code in the sandbox chooses what it asks them to do with it.

    The repr of a Secret does not show its value. Raises InvalidArgument for an argument that is not allowed.
    """

    value: str = field(repr=False)
    hosts: Iterable[str] = ()  # required: the check refuses an empty one with a better message than TypeError
    headers: Iterable[str] = field(default=(), kw_only=True)
    query: Iterable[str] = field(default=(), kw_only=True)
    path: bool = field(default=False, kw_only=True)
    body: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        if not isinstance(self.value, str):
            raise must("value", "be a string", kind_of(self.value))
        check_secret_value(self.value, "value", "value")
        object.__setattr__(self, "hosts", tuple(map(str, read_hosts(self.hosts, "hosts"))))
        places = make_places({name: getattr(self, name) for name in ("headers", "query", "path", "body")})
        object.__setattr__(self, "headers", places.headers)
        object.__setattr__(self, "query", places.query)


Secrets: TypeAlias = Mapping[str, Secret]
NetworkArgument: TypeAlias = "Literal['open'] | Iterable[str] | Network"


def network_spec(network: object) -> NetworkSpec | None:
    """Return what the engine receives for the argument ``network``. Raises InvalidArgument."""
    if network is None:
        return None
    if isinstance(network, Network):
        return network._spec
    return make_network(network)


def secret_specs(
    secrets: object, network: NetworkSpec | None, environment: Iterable[str] = ()
) -> tuple[SecretSpec, ...]:
    """Return what the engine receives for the argument ``secrets``, whose hosts the network must allow.

    Raises InvalidArgument; no message contains a value.
    """
    if secrets is None:
        return ()
    if not isinstance(secrets, Mapping):
        raise must("secrets", "map names of variables to Secret(value, hosts=[...])", kind_of(secrets))
    given = set(environment)
    specs = []
    for name, secret in secrets.items():
        if not isinstance(name, str):
            raise must("secrets", "be a string", kind_of(name), subject="each name in secrets")
        if not isinstance(secret, Secret):
            raise must(
                "secrets", "be a Secret(value, hosts=[...])", kind_of(secret), subject=f"{name!r:.100} in secrets"
            )
        if name in given:
            raise wrong_argument("secrets", f"the variable {name!r:.100} must be in env or in secrets, not in both")
        places = SecretPlaces(tuple(secret.headers), tuple(secret.query), secret.path, secret.body)
        specs.append(SecretSpec(name, secret.value, read_rules(secret.hosts, "secrets"), places))
    check_secrets(specs, network)
    return tuple(specs)


def check_rules(rules: Iterable[object], argument: str) -> list[str]:
    """Return rules that were given one by one, in their canonical form. Raises InvalidArgument."""
    given = list(rules)
    if any(isinstance(rule, list | tuple | set) for rule in given):
        raise wrong_argument(
            argument, f"{argument} takes rules one by one, got a list of them", hint=f"write {argument}(*rules)"
        )
    return [str(rule) for rule in read_rules(given, argument)]


def check_port(port: object) -> int:
    """Return the port. Raises InvalidArgument."""
    if type(port) is not int or not 1 <= port <= 65535:
        raise must("port", "be a whole number from 1 to 65535", port)
    return port
