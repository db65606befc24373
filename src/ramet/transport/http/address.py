"""A server's URL and key, checked so that neither can inject anything into a request."""

from __future__ import annotations

import re
from dataclasses import field
from urllib.parse import urlsplit

from ramet.protocol.argument_errors import Words, kind_of, must, wrong_argument
from ramet.protocol.lazy_dataclasses import dataclass

_PORTS = {"http": 80, "https": 443}
_URL_CHARACTERS_AT_MOST = 2000
_KEY_CHARACTERS_AT_MOST = 1000
_ALLOWED = "be http://host[:port] or https://host[:port], with a path if the server has one"
# Characters allowed in a request line; the author of a URL has to escape all others.
_PATH = re.compile(r"(/[A-Za-z0-9._~!$&'()*+,;=:@%-]*)*")
_HOST = re.compile(r"[A-Za-z0-9._-]+|[0-9A-Fa-f:.]+")


@dataclass(frozen=True, slots=True)
class Address:
    """A server's address. ``repr`` hides the key."""

    secure: bool
    host: str
    port: int
    path: str  # prefix of the server's routes, without a trailing slash
    key: str | None = field(default=None, repr=False)

    @property
    def authority(self) -> str:
        """Host and port as in a URL and in a Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS["https" if self.secure else "http"] else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        return f"http{'s' if self.secure else ''}://{self.authority}{self.path}"


def read_address(url: object, key: object = None) -> Address:
    """Parse an address. Raise InvalidArgument, whose message never contains the key."""
    if not isinstance(url, str):
        raise must("url", _ALLOWED, kind_of(url))
    if len(url) > _URL_CHARACTERS_AT_MOST:
        raise must("url", f"have at most {_URL_CHARACTERS_AT_MOST} characters", Words(f"{len(url)}"))
    # Check first: urlsplit removes line breaks silently.
    if not url.isascii() or not url.isprintable() or " " in url:
        raise must("url", _ALLOWED, Words("one with a space, a line break or another character that no URL has"))
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:  # its text is not shown: the part it takes for a port may be a password
        raise must("url", _ALLOWED, Words("one whose host or port cannot be read")) from None
    if parts.scheme not in _PORTS:
        raise must("url", _ALLOWED, Words(f"one with the scheme {parts.scheme!r:.20}"))
    if "@" in parts.netloc:
        raise wrong_argument(
            "url", "url must not contain a user or a password", hint="give the key as api_key, or in RAMET_API_KEY"
        )
    if not host or not _HOST.fullmatch(host):
        raise must("url", _ALLOWED, Words(f"one with the host {host!r:.100}"))
    if port == 0:
        raise must("url", _ALLOWED, Words("one with the port 0"))
    if parts.query or parts.fragment or "?" in url or "#" in url:
        raise must("url", _ALLOWED, Words("one with a query or a fragment"))
    path = parts.path.rstrip("/")
    if not _PATH.fullmatch(path):
        raise must("url", _ALLOWED, Words("one with characters in its path that must be escaped"))
    return Address(parts.scheme == "https", host, port or _PORTS[parts.scheme], path, _checked_key(key))


def _checked_key(key: object) -> str | None:
    if key is None:
        return None
    if not isinstance(key, str):
        raise must("api_key", "be a key as `ramet keys create` prints it", kind_of(key))
    if not key or len(key) > _KEY_CHARACTERS_AT_MOST or not key.isascii() or not key.isprintable() or " " in key:
        raise must("api_key", "be a key as `ramet keys create` prints it", Words("something else"))
    return key
