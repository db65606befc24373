"""The addresses of the machine that the proxy runs on, through which its own services could be reached."""

from __future__ import annotations

import ctypes
import ipaddress
import socket
import time
from collections.abc import Collection, Iterator

from ramet.protocol.network.rules import Address

_SECONDS = 10.0


class _Interface(ctypes.Structure):
    """The beginning of struct ifaddrs."""


_Interface._fields_ = [
    ("next", ctypes.POINTER(_Interface)),
    ("name", ctypes.c_char_p),
    ("flags", ctypes.c_uint),
    ("address", ctypes.c_void_p),
]

_libc = ctypes.CDLL(None, use_errno=True)


class HostAddresses(Collection[Address]):
    """The host's addresses, read again every few seconds: machines gain and lose addresses."""

    def __init__(self) -> None:
        self._found: frozenset[Address] = frozenset()
        self._looked_at = -_SECONDS

    def __contains__(self, address: object) -> bool:
        return address in self._now()

    def __iter__(self) -> Iterator[Address]:
        return iter(self._now())

    def __len__(self) -> int:
        return len(self._now())

    def _now(self) -> frozenset[Address]:
        now = time.monotonic()
        # Read again on use rather than by a timer: most proxies are idle most of the time.
        if now - self._looked_at >= _SECONDS:
            self._found, self._looked_at = frozenset(own_addresses()), now
        return self._found


def own_addresses() -> list[Address]:
    """Read the addresses of all interfaces. Raises OSError."""
    first = ctypes.POINTER(_Interface)()
    if _libc.getifaddrs(ctypes.byref(first)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, "getifaddrs: the addresses of this machine cannot be read")
    found: list[Address] = []
    try:
        one = first
        while one:
            place = one.contents.address
            if place:
                family = ctypes.c_ushort.from_address(place).value
                if family == socket.AF_INET:  # struct sockaddr_in: family, port, address
                    found.append(ipaddress.IPv4Address(ctypes.string_at(place + 4, 4)))
                elif family == socket.AF_INET6:  # struct sockaddr_in6: family, port, flow, address
                    found.append(ipaddress.IPv6Address(ctypes.string_at(place + 8, 16)))
            one = one.contents.next
    finally:
        _libc.freeifaddrs(first)
    return found
