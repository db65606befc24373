"""The state folder of a server, for what must outlive it: keys and records, the engine's socket, locks, a log."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from ramet.doors.http.processes.keeper import SOCKET_NAME
from ramet.errors import HostNotCapable, InvalidArgument

DATABASE_NAME = "ramet.db"
SERVE_NAME = "serve.pid"

_SOCKET_PATH_BYTES_AT_MOST = 107  # sun_path of unix(7) is 108 bytes with its final zero


def prepare(folder: Path) -> None:
    """Create the folder if needed and make it private, because everybody who can write there can use the engine.

    Raises InvalidArgument or HostNotCapable if that is impossible.
    """
    _check_length(folder)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise InvalidArgument(
            f"cannot use the state folder {folder}: {error.strerror}",
            hint="choose another folder with --state DIR or RAMET_STATE",
            details={"argument": "state"},
        ) from error
    try:
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid():
            raise InvalidArgument(
                f"the state folder {folder} belongs to user {found.st_uid}, but this is user {os.geteuid()}",
                hint="choose a folder of your own with --state DIR or RAMET_STATE",
                details={"argument": "state"},
            )
        if stat.S_IMODE(found.st_mode) & 0o077:
            os.fchmod(descriptor, 0o700)
    except PermissionError as error:  # a file system without modes
        raise HostNotCapable(f"cannot make {folder} private: {error.strerror}") from error
    finally:
        os.close(descriptor)


def _check_length(folder: Path) -> None:
    longest = _SOCKET_PATH_BYTES_AT_MOST - len(SOCKET_NAME) - 1
    length = len(os.fsencode(folder))
    if length > longest:
        raise InvalidArgument(
            f"the path of the state folder {folder} has {length} bytes; a unix socket in it allows {longest}",
            hint="choose a folder with a shorter path with --state DIR or RAMET_STATE",
            details={"argument": "state"},
        )
