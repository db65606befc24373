"""Authenticates callers.

The hash of a caller's key is the owner of everything that it makes, and no other owner sees it.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping

from ramet.doors.gateway.errors import ApiError

_BEARER = "bearer "
_LOOPBACK_NAMES = frozenset(("localhost", "127.0.0.1", "[::1]", "::1"))
# Values with which a browser marks requests that neither a page of ours nor the user made.
_FROM_OTHER_SITES = frozenset(("cross-site", "same-site"))


class ClientAccess:
    """Knows the keys that clients need. Without any, every client is accepted, as the owner that its key stands for."""

    def __init__(self, keys: Iterable[str] = ()) -> None:
        self._owners = tuple(_owner(key) for key in keys)

    @property
    def required(self) -> bool:
        return bool(self._owners)

    def owner(self, headers: Mapping[str, str]) -> str:
        """The owner that a request stands for. Raises ApiError (401, 403).

        The published client sends ``Authorization`` since 2.0, and ``X-Api-Key`` before.
        """
        presented = [_owner(key) for key in presented_keys(headers)]
        if not self._owners:
            _check_origin(headers)
            return presented[0] if presented else _owner("")
        for owner in presented:
            if any(hmac.compare_digest(owner, known) for known in self._owners):
                return owner
        raise ApiError(401, "this gateway does not know this key" if presented else "this gateway needs a key")


def _check_origin(headers: Mapping[str, str]) -> None:
    """Refuse requests of web pages.

    Where every key is accepted, only these headers keep a page in the user's browser out: a page of another site has
    its own Origin, and a page whose name was made to point to us (DNS rebinding) has its own Host.
    """
    host, origin = headers.get("host", ""), headers.get("origin")
    if _without_port(host) not in _LOOPBACK_NAMES:
        raise ApiError(403, "a gateway without keys only answers requests whose Host is a name of this machine")
    # An image or a script sends no Origin.
    foreign = headers.get("sec-fetch-site") in _FROM_OTHER_SITES
    if foreign or (origin is not None and origin != f"http://{host}"):
        raise ApiError(403, "a gateway without keys does not answer requests from other web pages")


def _without_port(host: str) -> str:
    name, colon, port = host.lower().rpartition(":")
    return name if colon and port.isdigit() and name else host.lower()


def presented_keys(headers: Mapping[str, str]) -> list[str]:
    keys = []
    if key := headers.get("x-api-key", "").strip():
        keys.append(key)
    authorization = headers.get("authorization", "")
    if authorization[: len(_BEARER)].lower() == _BEARER and (key := authorization[len(_BEARER) :].strip()):
        keys.append(key)
    return keys


def _owner(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()
