"""The secrets that a sandbox may use, and the placeholders that its code sees instead of their values."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import replace
from hashlib import sha256

from ramet.protocol.lazy_dataclasses import dataclass
from ramet.protocol.network.specs import SecretSpec

# Key of the digests by which a snapshot recognises a secret without storing its value. Random in each engine: a digest
# means nothing elsewhere.
_KEY = secrets.token_bytes(32)
_OLDER_AT_MOST = 100  # placeholders that a copy of a copy of a copy remembers; the newest ones


@dataclass(frozen=True, slots=True)
class Trace:
    """A snapshot's record of a secret: a digest to recognise it by, and the placeholders in the frozen memory."""

    digest: bytes
    placeholders: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HeldSecret:
    """A secret and its placeholders. ``repr`` hides the value.

    Each copy of a sandbox gets a placeholder of its own. Memory that was copied still contains the ``older`` ones of
    its ancestors; the proxy replaces those, too.
    """

    spec: SecretSpec
    placeholder: str
    older: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<HeldSecret {self.spec.name}>"

    @classmethod
    def of(cls, spec: SecretSpec, known: Iterable[Trace] = ()) -> HeldSecret:
        """A secret with a new placeholder, plus those that the sandbox's memory already has for the same secret."""
        digest = _digest(spec)
        older = next((trace.placeholders for trace in known if trace.digest == digest), ())
        return cls(spec, _placeholder(), older)

    def for_copy(self) -> HeldSecret:
        """The same secret for a copy of the sandbox, under a new placeholder."""
        return replace(self, placeholder=_placeholder(), older=self._all()[:_OLDER_AT_MOST])

    def knowing(self, older: Mapping[bytes, tuple[str, ...]]) -> HeldSecret:
        """The same secret with the placeholders added that restored memory has for it, by digest."""
        found = older.get(_digest(self.spec), ())
        more = tuple(each for each in found if each not in self._all())
        return replace(self, older=(*more, *self.older)[:_OLDER_AT_MOST]) if more else self

    def trace(self) -> Trace:
        return Trace(_digest(self.spec), self._all())

    def header(self) -> dict[str, object]:
        """The secret as the proxy needs it, value included."""
        hosts = [str(host) for host in self.spec.hosts]
        told = {"value": self.spec.value, "placeholders": list(self._all()), "hosts": hosts}
        return {**told, **self.spec.places.header()}

    def _all(self) -> tuple[str, ...]:
        return (self.placeholder, *self.older)


def _placeholder() -> str:
    return f"ramet_secret_{secrets.token_hex(16)}"


def _digest(spec: SecretSpec) -> bytes:
    return hmac.digest(_KEY, f"{spec.name}={spec.value}".encode(), sha256)
