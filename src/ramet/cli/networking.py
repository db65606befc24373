"""Options about the network of the sandboxes that a command makes."""

from __future__ import annotations

import argparse
import os
from typing import NamedTuple

from ramet.client.network import Network, Secret, network_spec, secret_specs
from ramet.errors import InvalidArgument
from ramet.protocol.refusing import invalid
from ramet.protocol.rules import NONE, OPEN

_NAMED = {"argument": "secret"}


class ChosenNetwork(NamedTuple):
    """As ``Sandbox`` takes it."""

    network: Network | None
    secrets: dict[str, Secret]


def add_network_options(parser: argparse.ArgumentParser, whose: str = "a new sandbox") -> None:
    parser.add_argument(
        "--network",
        action="append",
        default=[],
        metavar="RULE",
        help=f"what {whose} may reach: a host (api.example, '*.example:443'), an address, or `open` for all that is "
        "public, or `none`; may be given again (default: nothing)",
    )
    # The value is not in the option: everybody on the machine can read a command line.
    parser.add_argument(
        "--secret",
        action="append",
        default=[],
        metavar="NAME@HOST[,HOST]",
        help="requests to these hosts carry the value that this command has in its variable NAME; the code itself sees "
        "a placeholder; may be given again",
    )


def chosen_network(chosen: argparse.Namespace) -> ChosenNetwork:
    """Checked as a whole, before anything is started."""
    secrets = dict(_secret(text) for text in chosen.secret)
    rules = [rule for rule in chosen.network if rule != NONE]
    if rules and len(rules) < len(chosen.network):
        raise invalid("network", f"{NONE!r} is given beside others", f"{NONE!r} alone, or {OPEN!r} and rules")
    if secrets and not rules:
        hosts = " ".join(f"--network {host}" for secret in secrets.values() for host in secret.hosts)
        raise InvalidArgument(
            "secret: without a network nothing can be sent",
            hint=f"say what may be reached: {hosts}",
            details=_NAMED,
        )
    network = _network(rules)
    secret_specs(secrets, network_spec(network))
    return ChosenNetwork(network, secrets)


def _network(rules: list[str]) -> Network | None:
    if not rules:
        return None
    network_spec(rules)  # says what the option is called where something is wrong with it
    return Network(rules)


def check_for_new(chosen: argparse.Namespace) -> None:
    """A sandbox that exists has its network already."""
    if chosen.network or chosen.secret:
        raise InvalidArgument(
            "network, secret: are for a new sandbox",
            hint="leave out the sandbox's id, or the options",
            details={"argument": "network"},
        )


def _secret(text: str) -> tuple[str, Secret]:
    name, at, hosts = text.partition("@")
    if not name or not at or not hosts or "=" in name:
        # Not quoted: somebody may have written the value itself.
        raise InvalidArgument(
            "secret: is not NAME@HOST", hint="export NAME=VALUE; then --secret NAME@api.example", details=_NAMED
        )
    value = os.environ.get(name, "")
    if not value:
        raise InvalidArgument(
            f"secret: there is no variable {name:.100} in the environment of this command, or it is empty",
            hint=f"export {name:.100}=VALUE",
            details=_NAMED,
        )
    try:
        return name, Secret(value, hosts=hosts.split(","))
    except InvalidArgument as error:
        raise InvalidArgument(f"secret {name:.100}: {error.message}", hint=error.hint, details=_NAMED) from None
