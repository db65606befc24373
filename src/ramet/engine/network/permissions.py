"""Checks a requested network against what its owner may have."""

from __future__ import annotations

from ramet.errors import NotPermitted
from ramet.protocol.network.requests import rule_texts
from ramet.protocol.network.specs import NetworkSpec, beyond
from ramet.protocol.values.allowances import Allowance

_RULES_TOLD = 20


def check_allowed(network: NetworkSpec | None, allowance: Allowance) -> None:
    """Raise NotPermitted if the network goes beyond the owner's allowance."""
    most = allowance.network
    if network is None or most is None:
        return
    what = beyond(network, most)
    if what is not None:
        allowed = _in_words(most)
        raise NotPermitted(
            f"{what} is more network than this key, or a caller without one, may use",
            hint=f"allowed: {allowed}; an operator can allow more with `ramet keys create --network`, "
            "or for callers without a key with `ramet serve --network`",
            details={"allowed": allowed},
        )


def _in_words(most: NetworkSpec) -> str:
    rules = rule_texts(most)
    more = len(rules) - _RULES_TOLD
    if not rules:
        return "no host at all"
    return ", ".join(rules[:_RULES_TOLD]) + (f" and {more} more rules" if more > 0 else "")
