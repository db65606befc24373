"""Files of exported snapshots on this machine: they hold memory, so only their owner may read them."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from os import PathLike

from ramet.protocol.argument_errors import kind_of, must


class NewImageFile:
    """A file that is being written beside its place. It gets its name when it is complete, or is removed."""

    def __init__(self, path: str | PathLike[str]) -> None:
        if not isinstance(path, str | PathLike) or not os.fspath(path):
            raise must("path", "be the path of a file", kind_of(path))
        self.path = os.fspath(path)
        folder, name = os.path.split(os.path.abspath(self.path))
        self._beside = os.path.join(folder, f".{name}-{secrets.token_hex(4)}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self._file = open(os.open(self._beside, flags, 0o600), "wb")  # noqa: SIM115 - closed by finish or leave
        self.size_bytes = 0
        self._finished = False

    def write(self, piece: bytes) -> None:
        self._file.write(piece)
        self.size_bytes += len(piece)

    def finish(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        os.replace(self._beside, self.path)
        self._finished = True

    def leave(self) -> None:
        """At the end, in any case."""
        self._file.close()
        if not self._finished:
            with suppress(FileNotFoundError):
                os.unlink(self._beside)
