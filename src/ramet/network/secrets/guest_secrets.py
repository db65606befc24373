"""Secrets in the proxy: placeholders in requests become values, values in answers become stars.

A value is in no message, log line or ``repr`` of this process. A sandbox's own placeholders are replaced for it, on the
way to the hosts that the secret is for, and nobody else's.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from json import dumps
from urllib.parse import quote

from ramet.errors import ProtocolError
from ramet.network.secrets.masking import Masker
from ramet.network.secrets.replacing import GROWTH_BYTES_AT_MOST, Overgrown, Replacer
from ramet.protocol import fields
from ramet.protocol.network import read_rules
from ramet.protocol.rules import Rule

_TLS_PORT = 443
_BASIC = re.compile(rb"(basic[ \t]+)([A-Za-z0-9+/]+={0,2})", re.IGNORECASE)
_FORM = b"application/x-www-form-urlencoded"
_JSON = re.compile(rb"(?:application|text)/(?:[a-z0-9.+-]+\+)?(?:x-)?(?:nd)?json(?:-seq|lines)?")


@dataclass(frozen=True, slots=True, repr=False)
class GuestSecret:
    """One secret of one sandbox."""

    value: str
    placeholders: tuple[str, ...]  # its own, and that of whatever it was forked from if it was to inherit it
    hosts: tuple[Rule, ...]

    def __repr__(self) -> str:
        return f"<GuestSecret for {', '.join(map(str, self.hosts))}>"

    def is_for(self, name: str, port: int) -> bool:
        return any(rule.means_name(name) and rule.has_port(port) for rule in self.hosts)

    @classmethod
    def read(cls, header: Mapping[str, object]) -> GuestSecret:
        value = header.get("value")
        # A line end in a header would begin another one. What is wrong is said without the value.
        if not isinstance(value, str) or not value.isprintable() or not value:
            raise ProtocolError("the value of a secret is not text that can go into a header")
        placeholders = fields.texts(header, "placeholders")
        return cls(value, placeholders, read_rules(fields.texts(header, "hosts"), "secrets"))


class HostSecrets:
    """The secrets of one sandbox for one host and port, ready for requests to it and answers from it."""

    def __init__(self, secrets: tuple[GuestSecret, ...], port: int, secure: bool) -> None:
        # Not in the clear where TLS is at home: somebody asked for http://name:443.
        put_in = secrets if secure or port != _TLS_PORT else ()
        self._raw = _placeholders(put_in, str.encode)
        self._quoted = _placeholders(put_in, lambda value: quote(value, safe="").encode())
        self._json = _placeholders(put_in, lambda value: dumps(value)[1:-1].encode())
        self._pattern = re.compile(b"|".join(map(re.escape, self._raw)) or rb"(?!)")
        self._secrets = secrets

    def __repr__(self) -> str:
        return f"<HostSecrets, {len(self._secrets)}>"

    def in_target(self, target: bytes) -> bytes:
        return self._put_in(self._quoted, target)

    def in_value(self, value: bytes) -> bytes:
        """In the value of a header, also in a user's name or password for ``Basic``."""
        value = self._put_in(self._raw, value)
        basic = _BASIC.fullmatch(value)
        if basic is None:
            return value
        try:
            credentials = b64decode(basic[2] + b"=" * (-len(basic[2]) % 4), validate=True)
        except ValueError:
            return value
        replaced = self._put_in(self._raw, credentials)
        return value if replaced == credentials else basic[1] + b64encode(replaced)

    def body_replacer(self, content_type: bytes) -> Replacer:
        """For the body of one request, in the spelling of its content type."""
        kind = content_type.partition(b";")[0].strip().lower()
        if kind == _FORM:
            return Replacer(self._quoted)
        return Replacer(self._json if _JSON.fullmatch(kind) else self._raw)

    def masker(self) -> Masker:
        """For one answer, or one direction of a tunnel: as many stars as there were bytes."""
        return self._masker.fresh()

    def masked(self, text: bytes) -> bytes:
        """For what comes in one piece."""
        return self._masker.fresh().whole(text)

    @cached_property
    def _masker(self) -> Masker:
        return Masker(secret.value for secret in self._secrets)

    def _put_in(self, values: Mapping[bytes, bytes], data: bytes) -> bytes:
        found = self._pattern.findall(data)
        if not found:
            return data
        if sum(len(values[placeholder]) for placeholder in found) > GROWTH_BYTES_AT_MOST:
            raise Overgrown
        return self._pattern.sub(lambda match: values[match[0]], data)


def _placeholders(secrets: tuple[GuestSecret, ...], spelled: Callable[[str], bytes]) -> dict[bytes, bytes]:
    return {placeholder.encode(): spelled(secret.value) for secret in secrets for placeholder in secret.placeholders}
