"""The listening socket of a door. The supervisor owns the server's: clients queue in it while a worker is replaced."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import time

from ramet.errors import InvalidArgument, RametError

_BACKLOG = 2048
# When a supervisor is killed, its worker holds the port until it has died as well. Wait this long for that.
_PORT_SECONDS = 2.0


def listen(host: str, port: int) -> socket.socket:
    """Return a bound, listening socket; port 0 takes a free port. Raises InvalidArgument with a hint."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError) as error:
        raise _refused("host", f"{host!r} is not an address of this machine: {error}", "use --host 127.0.0.1") from None
    family, kind, protocol, _, address = found[0]
    until = time.monotonic() + _PORT_SECONDS
    while True:
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(_BACKLOG)
            return listener
        except OSError as error:
            listener.close()
            if error.errno != errno.EADDRINUSE or time.monotonic() > until:
                raise _bind_error(host, port, error) from None
        except BaseException:
            listener.close()
            raise
        time.sleep(0.05)


def _bind_error(host: str, port: int, error: OSError) -> RametError:
    number = error.errno or 0
    if number == errno.EADDRINUSE:
        hint = f"choose another (--port 0 takes a free one), or end what listens there: ss -ltnp 'sport = :{port}'"
        return _refused("port", f"port {port} of {host} is in use", hint)
    if number == errno.EACCES:
        return _refused("port", f"this user may not listen on port {port}", "choose one above 1023")
    if number == errno.EADDRNOTAVAIL:
        return _refused("host", f"{host} is not an address of this machine", "see them with: ip address")
    return _refused("host", f"cannot listen on {host} port {port}: {os.strerror(number)}", "use --host 127.0.0.1")


def _refused(argument: str, message: str, hint: str) -> InvalidArgument:
    return InvalidArgument(message, hint=hint, details={"argument": argument})


def address_of(listener: socket.socket) -> tuple[str, int]:
    """The numeric address and the port that the socket is bound to."""
    host, port = listener.getsockname()[:2]
    return str(host), int(port)


def is_loopback(host: str) -> bool:
    return ipaddress.ip_address(host.partition("%")[0]).is_loopback


def reachable(host: str) -> str:
    """An address at which this machine reaches a server that listens on ``host``, which may be "any address"."""
    address = ipaddress.ip_address(host.partition("%")[0])
    if not address.is_unspecified:
        return host
    return "127.0.0.1" if address.version == 4 else "::1"


def url_of(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
