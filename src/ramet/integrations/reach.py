"""What a model is told of the network of its sandbox."""

from __future__ import annotations

from collections.abc import Iterable

from ramet import Network

_NAMED_AT_MOST = 40  # more would fill a prompt


def reach(network: Network | None, secrets: Iterable[str] = ()) -> str:
    """A sentence, or several."""
    if network is None or not network.rules:
        return "There is no internet access."
    rules = [rule for rule in network.rules if rule != "open"]
    more = f", and {len(rules) - _NAMED_AT_MOST} more" if len(rules) > _NAMED_AT_MOST else ""
    listed = ", ".join(rules[:_NAMED_AT_MOST]) + more
    if "open" in network.rules:
        beside = f", except for {listed}" if rules else ""
        told = f"There is internet access; private addresses cannot be reached{beside}."
    else:
        told = f"Only these hosts can be reached over the network: {listed}. Everything else is refused."
    names = ", ".join(secrets)
    if names:
        told += (
            f" These environment variables hold placeholders: {names}. Use them as they are: on the way to the hosts "
            "that they are for, the real values take their place."
        )
    return told


NO_INTERNET = reach(None)
