"""The folder in which a server keeps what must outlive it: keys and records, the engine's socket, locks, a log."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from ramet.errors import HostNotCapable, InvalidArgument
from ramet.transport.keeper import SOCKET_NAME

DATABASE_NAME = "ramet.db"
SERVE_NAME = "serve.pid"

_SOCKET_PATH_BYTES_AT_MOST = 107  # sun_path of unix(7) is 108 bytes with its final zero


def state_folder(chosen: str | None = None) -> Path:
    """Where it is: as chosen, else as the environment says."""
    if chosen:
        return Path(chosen).expanduser().absolute()
    if named := os.environ.get("RAMET_STATE"):
        return Path(named).expanduser().absolute()
    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(base).expanduser().absolute() / "ramet"


def prepare(folder: Path) -> None:
    """Make it if need be, and see to it that it is ours alone: whoever can write there can speak with the engine."""
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
