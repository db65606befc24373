"""Secrets that a sandbox may use, and the placeholders that it holds in their place."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256

from ramet.protocol.network import SecretSpec

# To recognise a value without keeping it. Of this process only.
_KEY = secrets.token_bytes(32)
_OLDER_AT_MOST = 100  # of copies of copies; the newest


@dataclass(frozen=True, slots=True)
class Trace:
    """What a snapshot remembers of a secret: enough to know it again, nothing of its value."""

    digest: bytes
    placeholders: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HeldSecret:
    """``repr`` hides the value. ``older`` placeholders are in memory that was copied, and mean the same there."""

    spec: SecretSpec
    placeholder: str
    older: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<HeldSecret {self.spec.name}>"

    @classmethod
    def of(cls, spec: SecretSpec, known: Iterable[Trace] = ()) -> HeldSecret:
        """With a placeholder of its own; one that memory has for this very secret goes on."""
        digest = _digest(spec)
        older = next((trace.placeholders for trace in known if trace.digest == digest), ())
        return cls(spec, _placeholder(), older)

    def for_copy(self) -> HeldSecret:
        return replace(self, placeholder=_placeholder(), older=self._all()[:_OLDER_AT_MOST])

    def knowing(self, older: Mapping[bytes, tuple[str, ...]]) -> HeldSecret:
        """With the placeholders that memory has for this very secret."""
        found = older.get(_digest(self.spec), ())
        more = tuple(each for each in found if each not in self._all())
        return replace(self, older=(*more, *self.older)[:_OLDER_AT_MOST]) if more else self

    def trace(self) -> Trace:
        return Trace(_digest(self.spec), self._all())

    def header(self) -> dict[str, object]:
        """For the proxy."""
        hosts = [str(host) for host in self.spec.hosts]
        told = {"value": self.spec.value, "placeholders": list(self._all()), "hosts": hosts}
        return {**told, **self.spec.places.header()}

    def _all(self) -> tuple[str, ...]:
        return (self.placeholder, *self.older)


def _placeholder() -> str:
    return f"ramet_secret_{secrets.token_hex(16)}"


def _digest(spec: SecretSpec) -> bytes:
    return hmac.digest(_KEY, f"{spec.name}={spec.value}".encode(), sha256)
