"""Describes the network of a sandbox to a model."""

from __future__ import annotations

from collections.abc import Mapping

from ramet import Network, Secret

_NAMED_AT_MOST = 40  # more would fill a prompt


def reach(network: Network | None, secrets: Mapping[str, Secret] | None = None) -> str:
    """Sentences for a prompt: the reachable hosts, and how to use the placeholders of secrets."""
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
    if secrets:
        names = ", ".join(name + _places(secret) for name, secret in secrets.items())
        told += (
            f" These environment variables hold placeholders: {names}. Use them as they are, in the header "
            "Authorization, X-Api-Key or Api-Key, or where it says: on the way to the hosts that they are for, the "
            "real values take their place."
        )
    return told


def _places(secret: Secret) -> str:
    """The further places in a request where a secret may be used."""
    places = [f"header {name}" for name in secret.headers] + [f"query parameter {name}" for name in secret.query]
    places += [name for name, may in (("path", secret.path), ("body", secret.body)) if may]
    return f" (also in: {', '.join(places)})" if places else ""


NO_INTERNET = reach(None)
