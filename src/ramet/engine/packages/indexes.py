"""Checks whether a sandbox's rules allow the package indexes that pip would ask."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urlsplit

from ramet.network.connecting.decisions import Decider, Verdict
from ramet.protocol.network.rules import host_address, host_name
from ramet.protocol.network.specs import NetworkSpec

_PORTS = {"http": 80, "https": 443}


def why_none_answers(network: NetworkSpec, urls: Iterable[str]) -> str | None:
    """A message for the user of pip if the rules allow none of these URLs, else None."""
    refusals = [_refusal(network, url) for url in urls]
    if not refusals or None in refusals:
        return None
    reasons, remedies = zip(*(each for each in refusals if each is not None), strict=True)
    allowed = ", ".join(f'"{remedy}"' for remedy in dict.fromkeys(remedies))
    return (
        f"ramet network: pip's index cannot be reached: {'; '.join(dict.fromkeys(reasons))}\n\n"
        f"hint: the owner of the sandbox can allow it: sandbox.network.allow({allowed})"
    )


def _refusal(network: NetworkSpec, url: str) -> tuple[str, str] | None:
    """The reason of a refusal and the rule that would allow the URL; None if it is allowed, or not a URL we know."""
    try:
        parts = urlsplit(url)
        port = parts.port or _PORTS[parts.scheme]
        host = parts.hostname or ""
    except (ValueError, KeyError):
        return None  # pip itself reports what is wrong with it
    verdict = _verdict(Decider(network), host, port)
    if verdict is None or verdict.allowed:
        return None
    shown = f"[{host}]" if ":" in host else host
    return verdict.reason or f"{shown}:{port} is not allowed", verdict.rule or f"{shown}:{port}"


def _verdict(decider: Decider, host: str, port: int) -> Verdict | None:
    address = host_address(host)
    if address is not None:
        return decider.address_verdict(address, port)
    name = host_name(host)
    return None if name is None else decider.name_verdict(name, port)
