"""Requests for a network and secrets, as plain values that a person may write by hand. No I/O.

    network   false or null: none; true or "open": everything that is public; an array of rules; or an object with
              rules (as before) or "open": true, and deny, addresses, connections, bytes_per_second, total_bytes, ca_pem
    secrets   an object of names of variables, each with {"value": "...", "hosts": ["..."]}, and the places of a request
              that may carry the value beside the usual headers: "headers": [names], "query": [names], "path": true,
              "body": true

Errors name the argument and what it must be; they never contain the values of secrets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ramet.protocol.argument_errors import kind_of, must, wrong_argument
from ramet.protocol.network.rules import NONE, OPEN, Rule, host_address, host_name
from ramet.protocol.network.secret_places import FIELDS as _PLACES
from ramet.protocol.network.secret_places import make_places
from ramet.protocol.network.specs import NetworkSpec, SecretSpec, check_network, read_rules

_RULES = (
    f"{OPEN!r} or a list of rules: host names, names below one ('*.example') or addresses, each with or without ':PORT'"
)
_NETWORK = f"false, {OPEN!r}, an array of rules or an object with rules"
_SECRET = f'an object {{"value": "...", "hosts": ["..."]}}, optionally with {", ".join(_PLACES)}'
_SECRETS = f"an object of names, each with {_SECRET}"
_COUNTS = ("connections", "bytes_per_second", "total_bytes")
_FIELDS = ("open", "rules", "deny", "addresses", *_COUNTS, "ca_pem")


def read_network(name: str, value: object) -> NetworkSpec | None:
    """Read a network. Errors call it ``name``. Raise InvalidArgument."""
    if value is None or value is False:
        return None
    if isinstance(value, dict):
        return _read_object(name, value)
    if value is True or isinstance(value, str | list):
        return make_network(OPEN if value is True else value, argument=name)
    raise must(name, f"be {_NETWORK}", kind_of(value))


def read_secrets(name: str, value: object) -> tuple[SecretSpec, ...]:
    """Read secrets. ``network.check_secrets`` checks later, when both are known, whether they fit the network."""
    if value is None:
        return ()
    if not isinstance(value, dict):
        raise must(name, f"be {_SECRETS}", kind_of(value))
    return tuple(_read_secret(name, variable, entry) for variable, entry in value.items())


def network_request(network: NetworkSpec) -> dict[str, object]:
    """Return the request that ``read_network`` reads as this network."""
    usual = NetworkSpec()
    header: dict[str, object] = {"rules": rule_texts(network)}
    if network.deny:
        header["deny"] = [str(rule) for rule in network.deny]
    if network.addresses:
        header["addresses"] = dict(network.addresses)
    for count in (*_COUNTS, "ca_pem"):
        if getattr(network, count) != getattr(usual, count):
            header[count] = getattr(network, count)
    return header


def rule_texts(network: NetworkSpec) -> list[str]:
    """Return the allowed rules in canonical form."""
    return [*([OPEN] if network.open else []), *(str(rule) for rule in network.allow)]


def secrets_request(secrets: Iterable[SecretSpec]) -> dict[str, object]:
    """Return the request that ``read_secrets`` reads as these secrets."""
    return {
        secret.name: {"value": secret.value, "hosts": [str(host) for host in secret.hosts], **secret.places.request()}
        for secret in secrets
    }


def make_network(
    rules: object,
    *,
    deny: object = (),
    addresses: object = None,
    connections: object = NetworkSpec().connections,
    bytes_per_second: object = None,
    total_bytes: object = None,
    ca_pem: object = None,
    argument: str = "network",
) -> NetworkSpec:
    """Make a network from a person's input. Errors call the rules ``argument``. Raise InvalidArgument."""
    opened, allowed = _split(rules, argument)
    if ca_pem is not None and not isinstance(ca_pem, str):
        raise must("ca_pem", "be a string of certificates in PEM", kind_of(ca_pem))
    network = NetworkSpec(
        open=opened,
        allow=allowed,
        deny=read_rules(_several(deny, "deny", "a list of rules"), "deny"),
        addresses=_pinned(addresses),
        connections=_count("connections", connections),
        bytes_per_second=None if bytes_per_second is None else _count("bytes_per_second", bytes_per_second),
        total_bytes=None if total_bytes is None else _count("total_bytes", total_bytes),
        ca_pem=ca_pem,
    )
    check_network(network)
    return network


def read_hosts(hosts: object, argument: str, secret: str = "") -> tuple[Rule, ...]:
    """Read the hosts of a secret, whose name may be given for messages."""
    allowed = "a list of the hosts that may receive the value: ['api.example']"
    given = _several(hosts, argument, allowed)
    if not given:
        raise wrong_argument(
            argument,
            f"{secret or argument} must name the hosts that may receive the value, got none",
            hint="write a list: ['api.example']",
        )
    return read_rules(given, argument)


def _read_object(name: str, value: Mapping[str, object]) -> NetworkSpec:
    for field in value:
        if field not in _FIELDS:
            raise wrong_argument(
                name, f"{name} has the unknown field {field!r:.100}", hint=f"fields: {', '.join(_FIELDS)}"
            )
    opened = value.get("open", False)
    if not isinstance(opened, bool):
        raise must(name, "be true or false", opened, subject=f"open in {name}")
    if not opened and value.get("rules") is None:
        raise wrong_argument(name, f"{name} must have rules or open", hint='write {"rules": [...]} or {"open": true}')
    rules = value.get("rules")
    if rules is None:
        rules = []
    if opened:
        rules = [OPEN, *_several([] if rules == OPEN else rules, name, _RULES)]
    more = {field: value[field] for field in _FIELDS[2:] if value.get(field) is not None}
    return make_network(rules, argument=name, **more)


def _read_secret(name: str, variable: object, entry: object) -> SecretSpec:
    if not isinstance(entry, dict):
        raise must(name, f"be {_SECRET}", kind_of(entry), subject=f"{variable!r:.100} in {name}")
    unknown = [field for field in entry if field not in ("value", "hosts", *_PLACES)]
    if unknown:  # not quoted: a user may have written the secret's value there
        raise wrong_argument(
            name, f"{variable!r:.100} in {name} has unknown fields", hint=f"fields: value, hosts, {', '.join(_PLACES)}"
        )
    value = entry.get("value")
    if not isinstance(value, str):
        raise must(name, "be a string", kind_of(value), subject=f"the value of {variable!r:.100} in {name}")
    hosts = read_hosts(entry.get("hosts", []), name, f"{variable!r:.100}")
    places = make_places(
        {field: entry[field] for field in _PLACES if entry.get(field) is not None}, name, f"{variable!r:.100}"
    )
    return SecretSpec(str(variable), value, hosts, places)


def _split(rules: object, argument: str) -> tuple[bool, tuple[Rule, ...]]:
    """Return whether everything public is allowed, and the other rules."""
    if isinstance(rules, str):
        if rules != OPEN:
            nothing = rules.strip().lower() in ("", NONE)
            hint = (
                "give an empty list to allow no host yet, or leave it out for no network"
                if nothing
                else f"write a list: [{rules!r:.100}]"
            )
            raise must(argument, f"be {OPEN!r} or a list of rules", rules, hint=hint)
        return True, ()
    given = _several(rules, argument, _RULES)
    listed = [rule for rule in given if rule != OPEN]
    return len(listed) < len(given), read_rules(listed, argument)


def _several(values: object, argument: str, allowed: str) -> list[object]:
    # A string or a mapping is iterable, but its letters or keys are hardly what was meant.
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise must(argument, f"be {allowed}", kind_of(values))
    return list(values)


def _pinned(addresses: object) -> tuple[tuple[str, str], ...]:
    if addresses is None:
        return ()
    if not isinstance(addresses, Mapping):
        raise must("addresses", "map host names to addresses, such as {'data.example': '10.0.0.5'}", kind_of(addresses))
    pinned = []
    for name, address in addresses.items():
        known = host_name(name) if isinstance(name, str) else None
        found = host_address(str(address))
        if known is None:
            raise must("addresses", "be a host name", name, subject="each key of addresses")
        if found is None:
            raise must(
                "addresses", "be an IPv4 or IPv6 address", address, subject=f"the value of {name!r:.100} in addresses"
            )
        pinned.append((known, str(found)))
    return tuple(pinned)


def _count(argument: str, value: object) -> int:
    # bool is an int in Python, but True is hardly meant as a number.
    if type(value) is not int:
        raise must(argument, "be a whole number above 0", value)
    return value
