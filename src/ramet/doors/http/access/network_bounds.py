"""Bounds on the network of sandboxes: reads them from words, and intersects two of them.

none                         nothing: requests for a network with rules are refused
open                         every public address
open 10.0.0.5:5432           the same, and one private address
api.example *.example:443    these hosts, and any subset of them
"""

from __future__ import annotations

from collections.abc import Iterable

from ramet.protocol.argument_errors import wrong_argument
from ramet.protocol.network.rules import NONE, OPEN, Rule
from ramet.protocol.network.specs import NetworkSpec, check_network, read_rules

NOTHING = NetworkSpec()
ANYTHING_PUBLIC = NetworkSpec(open=True)


def read_bound(words: Iterable[str], argument: str = "network") -> NetworkSpec:
    """Parse a bound, the inverse of ``rule_texts``, which gives no words for "none". Raises InvalidArgument."""
    given = list(words)
    if NONE in given and len(given) > 1:
        raise wrong_argument(
            argument, f"{NONE!r} in {argument} must be given alone", hint=f"give {NONE!r} alone, or {OPEN!r} and rules"
        )
    bound = NetworkSpec(
        open=OPEN in given, allow=read_rules((word for word in given if word not in (NONE, OPEN)), argument)
    )
    check_network(bound)
    return bound


def less(one: NetworkSpec, other: NetworkSpec) -> NetworkSpec:
    """The network that both bounds allow."""
    rules = [meeting for mine in one.allow for theirs in other.allow if (meeting := _meet(mine, theirs)) is not None]
    for opened, listed in ((one, other), (other, one)):
        if opened.open:
            # Names only: "open" means public addresses, and a rule for an address applies without asking whether it is
            # public.
            rules += [rule for rule in listed.allow if rule.block is None]
    return NetworkSpec(open=one.open and other.open, allow=tuple(dict.fromkeys(rules)))


def _meet(one: Rule, other: Rule) -> Rule | None:
    """The hosts and ports that two rules share.

    Of two names or two blocks, one contains the other or they are disjoint.
    """
    ports = tuple(
        (max(first, other_first), min(last, other_last))
        for first, last in one.ports
        for other_first, other_last in other.ports
        if max(first, other_first) <= min(last, other_last)
    )
    if not ports:
        return None
    hosts, others = (Rule(rule.name, rule.below, rule.block, ports) for rule in (one, other))
    if hosts.covers(others):
        return others
    return hosts if others.covers(hosts) else None
