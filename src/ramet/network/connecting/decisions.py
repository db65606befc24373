"""Decides about a connection before it is made: first about its name, then about each of its addresses.

There are two steps because the name is resolved in between. The connection then uses an address that
``address_verdict`` has allowed, and no other: resolving the name a second time could give another one (DNS rebinding).
"""

from __future__ import annotations

import ipaddress
from bisect import bisect_right
from collections.abc import Collection, Mapping

from ramet.network.connecting.addresses import plain, why_not_public
from ramet.protocol.lazy_dataclasses import dataclass
from ramet.protocol.network.rules import Address, Rule
from ramet.protocol.network.specs import NetworkSpec


@dataclass(frozen=True, slots=True)
class Verdict:
    """A decision and its reason."""

    allowed: bool
    rule: str | None  # the rule that decided
    reason: str | None = None  # why it was refused
    hint: str | None = None  # a hint for the sandbox's owner, if a rule for the host itself would not help


class Decider:
    """The current rules of one sandbox. ``of_host``: addresses of the machine that the proxy runs on."""

    def __init__(self, network: NetworkSpec, of_host: Collection[Address] = ()) -> None:
        self._network = network
        self._of_host = of_host
        self._pinned: Mapping[str, Address] = {
            name: ipaddress.ip_address(address) for name, address in network.addresses
        }

    def pinned(self, name: str) -> Address | None:
        """The address that the owner has fixed for a name; such a name is not resolved."""
        return self._pinned.get(name)

    def name_verdict(self, name: str, port: int) -> Verdict:
        """Whether a name (in the form of ``host_name``) may be resolved and connected to on a port."""
        network = self._network
        denied = _found(network.deny, name, port)
        if denied is not None:
            return _denial(denied, f"{name}:{port}")
        allowed = _found(network.allow, name, port)
        if allowed is not None:
            return Verdict(True, str(allowed))
        if network.open:
            return Verdict(True, "open")
        return Verdict(False, None, f"{name}:{port} is in no rule of this sandbox")

    def may_be_looked_up(self, name: str) -> bool:
        """Whether any port of it could be connected to. Other names are never sent to a name server."""
        network = self._network
        denied = _ports(network.deny, name)
        # Kept cheap: code in a sandbox asks as often as it likes, and there may be hundreds of rules about a name.
        allowed = [(1, 65535)] if network.open else _ports(network.allow, name)
        return not all(_within(span, denied) for span in allowed)

    def rule_about(self, name: str) -> str | None:
        """The rule that allows or forbids to look a name up."""
        for rule in (*self._network.deny, *self._network.allow):
            if rule.means_name(name) and (rule in self._network.allow or rule.ports == ((1, 65535),)):
                return str(rule)
        return "open" if self._network.open else None

    def address_verdict(self, address: Address, port: int, name: str | None = None) -> Verdict:
        """Whether an address may be connected to, either asked for directly or as an address of an allowed ``name``."""
        address = plain(address)
        denied = _listed(self._network.deny, address, port)
        if denied is not None:
            return _denial(denied, f"{address} port {port}")
        listed = _listed(self._network.allow, address, port)
        if listed is not None:
            return Verdict(True, str(listed))
        if name is not None and self._pinned.get(name) == address:
            return Verdict(True, "addresses")
        not_public = why_not_public(address, self._of_host)
        if not_public is not None:
            if name is None:
                return Verdict(False, None, f"{address} is {not_public}, and no rule allows it")
            why = f"{name} resolves to {address}, which is {not_public}, and no rule allows that address"
            return Verdict(False, None, why, _hint_of_private(name, address, port))
        if name is not None:
            return Verdict(True, None)  # the name's own rule has decided
        if self._network.open:
            return Verdict(True, "open")
        return Verdict(False, None, f"{address} port {port} is in no rule of this sandbox")


def _denial(rule: Rule, what: str) -> Verdict:
    hint = f'the owner of the sandbox can lift that rule: sandbox.network.allow("{rule}")'
    return Verdict(False, str(rule), f"{what} is denied by the rule {str(rule)!r}", hint)


def _hint_of_private(name: str, address: Address, port: int) -> str:
    where = f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"
    return (
        f'the owner of the sandbox can list the address: sandbox.network.allow("{where}"), or make it with '
        f'Network(rules, addresses={{"{name}": "{address}"}})'
    )


def _found(rules: tuple[Rule, ...], name: str, port: int) -> Rule | None:
    return next((rule for rule in rules if rule.means_name(name) and rule.has_port(port)), None)


def _listed(rules: tuple[Rule, ...], address: Address, port: int) -> Rule | None:
    return next((rule for rule in rules if rule.means_address(address) and rule.has_port(port)), None)


def _ports(rules: tuple[Rule, ...], name: str) -> list[tuple[int, int]]:
    """The ports in rules about a name, as sorted ranges that neither overlap nor touch."""
    found: list[tuple[int, int]] = []
    for first, last in sorted({ports for rule in rules if rule.means_name(name) for ports in rule.ports}):
        if found and first <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(last, found[-1][1])
        else:
            found.append((first, last))
    return found


def _within(span: tuple[int, int], ranges: list[tuple[int, int]]) -> bool:
    at = bisect_right(ranges, (span[0], 65536)) - 1
    return at >= 0 and span[1] <= ranges[at][1]
