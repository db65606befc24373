"""Explains a failed name lookup in a sandbox without a network: the error says so, and what to do about it.

The C library says "Name or service not known" both for a name that does not exist and when it has no server to ask.
Programs that a cell starts show that text; code in the REPL gets ours, in an error of the same class and number.
"""

from __future__ import annotations

import functools
import socket
from collections.abc import Callable
from typing import Any

_REPLACED = ("getaddrinfo", "gethostbyname", "gethostbyname_ex")
# Not every C library has all of these.
_NOT_FOUND = {getattr(socket, name, None) for name in ("EAI_NONAME", "EAI_AGAIN", "EAI_FAIL", "EAI_NODATA")}
# The resolver of a sandbox's network: 127.0.0.1 port 53, as /proc/net/udp shows it.
_UDP_SOCKETS = "/proc/net/udp"
_RESOLVER = "0100007F:0035"
_NAME_CHARACTERS = 100


def install() -> None:
    """Replaces the lookup functions of `socket`. They work as before; only their errors differ."""
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

    # pickle finds functions by module and name; in `_socket`, where some of them come from, it would find the plain
    # one.
    looked_up.__module__ = socket.__name__
    return looked_up


def explanation(error: OSError, host: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> str | None:
    """Returns the message, or None if the error is about something else."""
    if error.errno is None or error.errno not in _NOT_FOUND or not isinstance(host, (str, bytes)) or has_resolver():
        return None
    flags = arguments[5] if len(arguments) > 5 else named.get("flags", 0)
    if flags & socket.AI_NUMERICHOST:
        return None  # no lookup was requested
    name = host.decode("ascii", "backslashreplace") if isinstance(host, bytes) else host
    name = name[:_NAME_CHARACTERS]
    return (
        f"this sandbox has no network, so {name!r} cannot be looked up "
        f"(hint: its owner can give it one, with Sandbox(network=[{name!r}]))"
    )


def has_resolver(udp_sockets: str = _UDP_SOCKETS) -> bool:
    """Whether this sandbox has a resolver. True if the kernel does not show it."""
    try:
        with open(udp_sockets, encoding="ascii") as lines:
            return any(_RESOLVER in line.split()[1:2] for line in lines)
    except OSError:
        return True
