"""Options for the network of the sandboxes that a command makes."""

from __future__ import annotations

import argparse
import os
from typing import NamedTuple

from ramet.client.network import Network, Secret, network_spec, secret_specs
from ramet.errors import InvalidArgument
from ramet.protocol.argument_errors import wrong_argument
from ramet.protocol.network.rules import NONE, OPEN

_NAMED = {"argument": "secret"}


class ChosenNetwork(NamedTuple):
    """The arguments ``network`` and ``secrets`` of ``Sandbox``."""

    network: Network | None
    secrets: dict[str, Secret]


class _Places(NamedTuple):
    """Arguments of ``Secret``."""

    headers: list[str]
    query: list[str]
    path: bool
    body: bool


def add_network_options(parser: argparse.ArgumentParser, whose: str = "a new sandbox") -> None:
    parser.add_argument(
        "--network",
        action="append",
        default=[],
        metavar="RULE",
        help=f"host that {whose} may reach (api.example, '*.example:443'), an address, `open` for every public host, "
        "or `none`; may be repeated (default: none)",
    )
    # The value is not part of the option, because every user of the machine can read command lines.
    parser.add_argument(
        "--secret",
        action="append",
        default=[],
        metavar="NAME@HOST[,HOST]",
        help="put the value of the environment variable NAME into requests to these hosts; the code itself only sees "
        "a placeholder; may be repeated",
    )
    parser.add_argument(
        "--secret-in",
        action="append",
        default=[],
        metavar="NAME:PLACE",
        help="where else than in the headers Authorization, X-Api-Key and Api-Key requests may carry the secret NAME: "
        "header=X-Token, query=PARAMETER, path or body; for the last three, the hosts must neither store nor repeat "
        "what they receive; may be repeated",
    )


def chosen_network(chosen: argparse.Namespace) -> ChosenNetwork:
    """Return the chosen network and secrets, checked together before anything is started."""
    places = _places(chosen.secret_in)
    secrets = dict(_secret(text, places) for text in chosen.secret)
    for name in places:
        if name not in secrets:
            raise _wrong_place(
                f"--secret-in names {name:.100}, but there is no such secret", f"add --secret {name:.100}@HOST"
            )
    rules = [rule for rule in chosen.network if rule != NONE]
    if rules and len(rules) < len(chosen.network):
        raise wrong_argument(
            "network", f"{NONE!r} in network must be given alone", hint=f"give {NONE!r} alone, or {OPEN!r} and rules"
        )
    if secrets and not rules:
        hosts = " ".join(f"--network {host}" for secret in secrets.values() for host in secret.hosts)
        raise InvalidArgument(
            "--secret needs a network, because nothing can be sent without one",
            hint=f"add {hosts}",
            details=_NAMED,
        )
    network = _network(rules)
    secret_specs(secrets, network_spec(network))
    return ChosenNetwork(network, secrets)


def _network(rules: list[str]) -> Network | None:
    if not rules:
        return None
    network_spec(rules)  # raises an error that names the option
    return Network(rules)


def _places(texts: list[str]) -> dict[str, _Places]:
    """Return the places by the name of the secret."""
    found: dict[str, _Places] = {}
    for text in texts:
        name, colon, place = text.partition(":")
        kind, equals, named = place.partition("=")
        places = found.setdefault(name, _Places([], [], False, False))
        if kind == "header" and named:
            places.headers.append(named)
        elif kind == "query" and named:
            places.query.append(named)
        elif kind in ("path", "body") and not equals:
            found[name] = places._replace(path=True) if kind == "path" else places._replace(body=True)
        else:
            # Not quoted: the user may have written the value itself.
            raise _wrong_place(
                "--secret-in must be NAME:PLACE",
                "write NAME:header=X-Token, NAME:query=PARAMETER, NAME:path or NAME:body",
            )
    return found


def _wrong_place(problem: str, hint: str) -> InvalidArgument:
    return InvalidArgument(problem, hint=hint, details={"argument": "secret-in"})


def _secret(text: str, places: dict[str, _Places]) -> tuple[str, Secret]:
    name, at, hosts = text.partition("@")
    if not name or not at or not hosts or "=" in name:
        # Not quoted: the user may have written the value itself.
        raise InvalidArgument(
            "--secret must be NAME@HOST",
            hint="run export NAME=VALUE, then use --secret NAME@api.example",
            details=_NAMED,
        )
    value = os.environ.get(name, "")
    if not value:
        raise InvalidArgument(
            f"the environment variable {name:.100} of --secret is not set, or is empty",
            hint=f"export {name:.100}=VALUE",
            details=_NAMED,
        )
    try:
        where = places.get(name, _Places([], [], False, False))
        return name, Secret(value, hosts=hosts.split(","), **where._asdict())
    except InvalidArgument as error:
        raise InvalidArgument(f"--secret {name:.100}: {error.message}", hint=error.hint, details=_NAMED) from None
