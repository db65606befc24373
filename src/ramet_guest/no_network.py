"""Names that cannot be looked up because the sandbox has no network: the error says so, and what to do about it.

The C library only says "Name or service not known", for a name that does not exist and for want of anybody to ask.
Programs that a cell starts see that text; code in the REPL sees ours, in an error of the same class and number.
"""

from __future__ import annotations

import functools
import socket
from collections.abc import Callable
from typing import Any

_REPLACED = ("getaddrinfo", "gethostbyname", "gethostbyname_ex")
# Not every C library has all of them.
_NOT_FOUND = {getattr(socket, name, None) for name in ("EAI_NONAME", "EAI_AGAIN", "EAI_FAIL", "EAI_NODATA")}
# Where the network of a sandbox answers questions for names: 127.0.0.1 port 53, as /proc/net/udp writes it.
_UDP_SOCKETS = "/proc/net/udp"
_RESOLVER = "0100007F:0035"
_NAME_CHARACTERS = 100


def install() -> None:
    """Replaces the functions of `socket` that look names up. They ask as before, and only their errors differ."""
    for name in _REPLACED:
        setattr(socket, name, explaining(getattr(socket, name)))


def explaining(look_up: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(look_up)
    def looked_up(*arguments: Any, **named: Any) -> Any:
        try:
            return look_up(*arguments, **named)
        except socket.gaierror as error:
            host = arguments[0] if arguments else named.get("host")
            text = explanation(error, host, arguments, named)
            if text is None:
                raise
            error.args = (socket.EAI_NONAME, text)
            error.errno, error.strerror = error.args
            raise

    # Pickled functions are found by name and module: in `_socket`, where some of them are from, stays the plain one.
    looked_up.__module__ = socket.__name__
    return looked_up


def explanation(error: OSError, host: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> str | None:
    """None: the error is about something else."""
    if error.errno is None or error.errno not in _NOT_FOUND or not isinstance(host, (str, bytes)) or has_resolver():
        return None
    flags = arguments[5] if len(arguments) > 5 else named.get("flags", 0)
    if flags & socket.AI_NUMERICHOST:
        return None  # no name was to be looked up
    name = host.decode("ascii", "backslashreplace") if isinstance(host, bytes) else host
    name = name[:_NAME_CHARACTERS]
    return (
        f"this sandbox has no network, so {name!r} cannot be looked up "
        f"(hint: its owner can give it one, with Sandbox(network=[{name!r}]))"
    )


def has_resolver(udp_sockets: str = _UDP_SOCKETS) -> bool:
    """Whether anybody in this sandbox answers questions for names. If the kernel does not say, somebody may."""
    try:
        with open(udp_sockets, encoding="ascii") as lines:
            return any(_RESOLVER in line.split()[1:2] for line in lines)
    except OSError:
        return True
