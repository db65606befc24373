"""A secret of the state folder, which keeps readers of the records from guessing hashes and tokens.

It is beside the records and not in them, so that a copy of the records alone is of no use. It must be on disk: after a
crash the server must recognise a repeated request, and serve the same URLs.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import hmac
import os
import secrets
from contextlib import suppress
from pathlib import Path

from ramet.errors import RametError

SECRET_NAME = "ramet.secret"
_SECRET_BYTES = 32
_TOKEN_BYTES = 24  # 192 bits; 32 characters


class StateSecret:
    """Hashes with a key that it never shows."""

    __slots__ = ("_key",)

    def __init__(self, key: bytes) -> None:
        self._key = key

    def __repr__(self) -> str:
        return "<StateSecret>"

    def fingerprint(self, data: bytes) -> bytes:
        """The hash of a request, which may hold values that are easily guessed, such as a short password."""
        return self._hash(b"request", data)

    def token(self, about: bytes) -> str:
        """A token for a URL, always the same for the same subject."""
        return base64.urlsafe_b64encode(self._hash(b"token", about)[:_TOKEN_BYTES]).decode("ascii")

    def _hash(self, purpose: bytes, data: bytes) -> bytes:
        return hmac.new(self._key, purpose + b"\0" + data, hashlib.sha256).digest()


def load(path: Path) -> StateSecret:
    """Read the secret in this file, or create it. Raises RametError."""
    try:
        with suppress(FileNotFoundError):
            return _read(path)
        _make(path)
        return _read(path)
    except OSError as error:
        raise RametError(f"cannot use the secret of the server, {str(path)!r}: {error.strerror}") from error


def _read(path: Path) -> StateSecret:
    key = path.read_bytes()
    if len(key) != _SECRET_BYTES:
        raise RametError(
            f"the secret of the server, {str(path)!r}, has {len(key)} bytes instead of {_SECRET_BYTES}",
            hint="move the file away; the URLs of exposed ports will change",
        )
    return StateSecret(key)


def _make(path: Path) -> None:
    """Create the file atomically.

    If two processes do so at once, link(2) fails for the second, and the first one's stays.
    """
    draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        if os.write(descriptor, secrets.token_bytes(_SECRET_BYTES)) != _SECRET_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        with suppress(FileExistsError):
            os.link(draft, path)
    finally:
        os.close(descriptor)
        os.unlink(draft)
