"""Secrets in the proxy: placeholders in requests become values, values in answers become stars.

No message, log line or ``repr`` of this process contains a value. Only a sandbox's own placeholders are replaced, only
on the way to the hosts of the secret, and only in the places that its owner named. Elsewhere they are ordinary text.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import field
from functools import cached_property
from json import dumps
from urllib.parse import quote, unquote_plus

from ramet.errors import ProtocolError
from ramet.network.secrets.masking import Masker
from ramet.network.secrets.replacing import GROWTH_BYTES_AT_MOST, Overgrown, Replacer
from ramet.protocol import fields
from ramet.protocol.lazy_dataclasses import dataclass
from ramet.protocol.network.rules import Rule
from ramet.protocol.network.secret_places import SecretPlaces
from ramet.protocol.network.specs import read_rules

_TLS_PORT = 443
# The only header that servers decode further. Other headers are values as they are.
_AUTHORIZATION = b"authorization"
_BASIC = re.compile(rb"(basic[ \t]+)([A-Za-z0-9+/]+={0,2})", re.IGNORECASE)
# Some servers treat ";" as "&". Neither may start another parameter inside a named one.
_BETWEEN_PARAMETERS = re.compile(rb"([&;])")
_FORM = b"application/x-www-form-urlencoded"
_JSON = re.compile(rb"(?:application|text)/(?:[a-z0-9.+-]+\+)?(?:x-)?(?:nd)?json(?:-seq|lines)?")


@dataclass(frozen=True, slots=True, repr=False)
class PeerSecret:
    """One secret of one sandbox."""

    value: str
    placeholders: tuple[str, ...]  # its own, and those of its parents if it was to inherit the secret
    hosts: tuple[Rule, ...]
    places: SecretPlaces = field(default_factory=SecretPlaces)

    def __repr__(self) -> str:
        return f"<PeerSecret for {', '.join(map(str, self.hosts))}>"

    def is_for(self, name: str, port: int) -> bool:
        return any(rule.means_name(name) and rule.has_port(port) for rule in self.hosts)

    @classmethod
    def read(cls, header: Mapping[str, object]) -> PeerSecret:
        value = header.get("value")
        # A line end in a header would begin another header. The error does not quote the value.
        if not isinstance(value, str) or not value.isprintable() or not value:
            raise ProtocolError("the value of a secret is not text that can go into a header")
        placeholders = fields.texts(header, "placeholders")
        hosts = read_rules(fields.texts(header, "hosts"), "secrets")
        return cls(value, placeholders, hosts, SecretPlaces.read(header))


class HostSecrets:
    """The secrets of one sandbox for one host and port, prepared for requests and answers."""

    def __init__(self, secrets: tuple[PeerSecret, ...], port: int, secure: bool) -> None:
        # Not in the clear on the TLS port: the program asked for http://name:443.
        put_in = secrets if secure or port != _TLS_PORT else ()
        # By index in this list, so that many names and placeholders take little memory.
        self._values = [secret.value for secret in put_in]
        self._numbers = {text.encode(): at for at, secret in enumerate(put_in) for text in secret.placeholders}
        self._headers: defaultdict[bytes, set[int]] = defaultdict(set)
        self._query: defaultdict[str, set[int]] = defaultdict(set)
        for at, secret in enumerate(put_in):
            for name in secret.places.header_names():
                self._headers[name.encode()].add(at)
            for name in secret.places.query:
                self._query[name].add(at)
        self._path = {at for at, secret in enumerate(put_in) if secret.places.path}
        self._bodies = {at for at, secret in enumerate(put_in) if secret.places.body}
        self._pattern = re.compile(b"|".join(map(re.escape, self._numbers)) or rb"(?!)")
        self._secrets = secrets

    def __repr__(self) -> str:
        return f"<HostSecrets, {len(self._secrets)}>"

    def in_target(self, target: bytes) -> bytes:
        """Replace placeholders in the path and in query parameters, where these are allowed places.

        Raises Overgrown.
        """
        if not self._path and not self._query:
            return target
        path, mark, query = target.partition(b"?")
        parts = [self._put_in(self._path, self._quoted, path), mark]
        grown = len(parts[0]) - len(path)
        for parameter in _BETWEEN_PARAMETERS.split(query):
            parts.append(self._in_parameter(parameter))
            grown += len(parts[-1]) - len(parameter)
            if grown > GROWTH_BYTES_AT_MOST:
                raise Overgrown
        return b"".join(parts)

    def in_header(self, name: bytes, value: bytes) -> bytes:
        """Replace placeholders in a header (``name`` in lower case).

        In ``Authorization`` also inside ``Basic`` credentials.
        """
        secrets = self._headers.get(name)
        if secrets is None:
            return value
        value = self._put_in(secrets, self._raw, value)
        basic = _BASIC.fullmatch(value) if name == _AUTHORIZATION else None
        if basic is None:
            return value
        try:
            credentials = b64decode(basic[2] + b"=" * (-len(basic[2]) % 4), validate=True)
        except ValueError:
            return value
        replaced = self._put_in(secrets, self._raw, credentials)
        return value if replaced == credentials else basic[1] + b64encode(replaced)

    def body_replacer(self, content_type: bytes) -> Replacer | None:
        """A replacer for one request's body, with values escaped for its content type.

        None: nothing is replaced in it.
        """
        if not self._bodies:
            return None
        kind = content_type.partition(b";")[0].strip().lower()
        values = self._quoted if kind == _FORM else self._json if _JSON.fullmatch(kind) else self._raw
        return Replacer({text: values[at] for text, at in self._numbers.items() if at in self._bodies})

    def masker(self) -> Masker:
        """A masker for one answer, or for one direction of a tunnel: as many stars as there were bytes."""
        return self._masker.fresh()

    def masked(self, text: bytes) -> bytes:
        """Mask text that is complete."""
        return self._masker.fresh().whole(text)

    @cached_property
    def _masker(self) -> Masker:
        return Masker(secret.value for secret in self._secrets)

    @cached_property
    def _raw(self) -> list[bytes]:
        return [value.encode() for value in self._values]

    @cached_property
    def _quoted(self) -> list[bytes]:
        return [quote(value, safe="").encode() for value in self._values]

    @cached_property
    def _json(self) -> list[bytes]:
        return [dumps(value)[1:-1].encode() for value in self._values]

    def _in_parameter(self, parameter: bytes) -> bytes:
        name, equals, value = parameter.partition(b"=")
        secrets = self._query.get(unquote_plus(name.decode("latin-1")))
        return parameter if secrets is None else name + equals + self._put_in(secrets, self._quoted, value)

    def _put_in(self, secrets: set[int], values: list[bytes], data: bytes) -> bytes:
        """Replace placeholders. ``secrets``: those allowed here; ``values``: all of them, as they are escaped here."""
        found = [at for at in map(self._numbers.__getitem__, self._pattern.findall(data)) if at in secrets]
        if not found:
            return data
        if sum(len(values[at]) for at in found) > GROWTH_BYTES_AT_MOST:
            raise Overgrown

        def value(match: re.Match[bytes]) -> bytes:
            at = self._numbers[match[0]]
            return values[at] if at in secrets else match[0]

        return self._pattern.sub(value, data)
