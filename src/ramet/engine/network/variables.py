"""The environment variables by which programs in a sandbox find the proxy, and the certificates that they trust."""

from __future__ import annotations

import os
from collections.abc import Container, Iterable
from functools import lru_cache

from ramet.protocol.network.specs import PROXY_PORT

CERTIFICATES = "/run/ramet/certificates.pem"
# Where distributions keep their bundle of trusted certificates; every pod has a copy (isolation/files/skeleton.py).
_SYSTEM_CERTIFICATES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/certs/ca-bundle.crt",
)
_SYSTEM_FOLDERS = ("/etc/ssl/certs/", "/etc/pki/tls/certs/", "/etc/pki/ca-trust/")

# http:// for ALL_PROXY, too: httpx refuses to start with a socks address unless another package is installed.
_PROXY = f"http://127.0.0.1:{PROXY_PORT}"
_NOT_PROXIED = "localhost,127.0.0.1,::1"
_OF_A_NETWORK = {
    **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"), _PROXY),
    **dict.fromkeys(("NO_PROXY", "no_proxy"), _NOT_PROXIED),
    "NODE_USE_ENV_PROXY": "1",
    "UV_BREAK_SYSTEM_PACKAGES": "1",
    "UV_LINK_MODE": "copy",
}
_OF_TRUST = (
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "PIP_CERT",
    "NODE_EXTRA_CA_CERTS",
)
# Programs read more than one of these. An owner who sets one of them means it for all.
_SAYS_WHOM_TO_TRUST = (*_OF_TRUST, "SSL_CERT_DIR")


def variables(
    placeholders: Iterable[tuple[str, str]] = (), own_certificates: bool = False, own: Container[str] = ()
) -> dict[str, str]:
    """The variables of a sandbox with a network and these secrets. ``own``: names that its owner has set, which win."""
    names = dict(placeholders)
    bundle = certificates(own_certificates or bool(names), own)
    found = {**_OF_A_NETWORK, **(dict.fromkeys(_OF_TRUST, bundle) if bundle is not None else {})}
    return {**{name: value for name, value in found.items() if name not in own}, **names}


def certificates(own_certificates: bool, own: Container[str] = ()) -> str | None:
    """The file of certificates that programs in a sandbox are told to trust, or None to leave that to them.

    Many programs bring a list of their own, which lacks authorities that only this host trusts.
    """
    if own_certificates:
        return CERTIFICATES
    if any(name in own for name in _SAYS_WHOM_TO_TRUST):
        return None
    return _system_certificates()


def is_of_the_system(path: str) -> bool:
    """Whether the path names certificates of the system, which are the same in every fresh pod."""
    return os.path.normpath(path) == path and path.startswith(_SYSTEM_FOLDERS)


@lru_cache(maxsize=1)
def _system_certificates() -> str | None:
    return next((path for path in _SYSTEM_CERTIFICATES if os.access(path, os.R_OK)), None)
