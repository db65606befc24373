"""Routes and packet rules that lead all TCP out of a pod to one listening socket, written with netlink.

A pod has loopback only. With these rules, a connection to any other address arrives at a port of the pod's loopback.
The proxy outside listens there and asks the kernel for the original destination (SO_ORIGINAL_DST). Nothing else leaves
the pod: other protocols are rejected. The kernel enforces the rules; code in the pod has no capability to change them.

    address  198.19.255.254/32 on lo        what programs see as their own address (see OWN_ADDRESS)
    route    local default dev lo           every address is local
    table ip ramet
      chain early  (output, before connection tracking)    to 127/8: not tracked;  not TCP, to elsewhere: rejected,
                                                           except to the own address, where ICMP rejections go
      chain away   (output, nat)                           TCP to elsewhere: redirected to the port

Numbers are from linux/rtnetlink.h, linux/netfilter/nfnetlink.h and linux/netfilter/nf_tables.h.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import struct
from collections.abc import Sequence

NETLINK_ROUTE, NETLINK_NETFILTER = 0, 12

# Both are in the block that RFC 2544 reserves for benchmarks: no host on the internet has such an address. The own
# address is not in 127/8: the proxy's replies go to it, and the kernel can only translate replies back that it tracks.
OWN_ADDRESS = ipaddress.IPv4Address("198.19.255.254")
NAMES_BLOCK = ipaddress.IPv4Network("198.18.0.0/16")

_REQUEST, _ACKNOWLEDGE, _CREATE, _EXCLUSIVE, _APPEND = 0x1, 0x4, 0x400, 0x200, 0x800
_NEW_ADDRESS, _NEW_ROUTE = 20, 24
_HOST_SCOPE, _LOCAL_TABLE, _STATIC, _LOCAL_ROUTE, _LOOPBACK_INDEX = 254, 255, 4, 2, 1

_BATCH_BEGIN, _BATCH_END, _SUBSYSTEM = 16, 17, 10
_NEW_TABLE, _NEW_CHAIN, _NEW_RULE = (_SUBSYSTEM << 8 | number for number in (0, 3, 6))
_NESTED = 0x8000
_OUTPUT_HOOK, _RAW_PRIORITY, _NAT_PRIORITY = 3, -300, -100
_NETWORK_HEADER, _DESTINATION_OFFSET = 1, 16
_PROTOCOL_KEY, _TCP = 16, 6
_EQUAL, _NOT_EQUAL = 0, 1
_TABLE = b"ramet\0"
_ERROR = 2


def lead_away(route: socket.socket, packets: socket.socket, port: int) -> None:
    """Lead all TCP of a pod that is not for its loopback to this port. Both are netlink sockets of the pod's network.

    Raises OSError where the kernel refuses; its text names the step.
    """
    # The rules first: with the route alone, a connection to any address would reach the pod itself.
    _tell(packets, _table(port), "add packet rules")
    _tell(route, [_own_address()], "give loopback an address")
    _tell(route, [_route()], "add a route")


def probe() -> None:
    """Try the rules in this process's own network, which was made for this and ends with it.

    Exits with a message that names the failing step.
    """
    kind = socket.SOCK_RAW | socket.SOCK_NONBLOCK
    with (
        socket.socket(socket.AF_NETLINK, kind, NETLINK_ROUTE) as route,
        socket.socket(socket.AF_NETLINK, kind, NETLINK_NETFILTER) as packets,
    ):
        try:
            lead_away(route, packets, 1)
        except OSError as error:
            raise SystemExit(str(error.strerror)) from None


def _own_address() -> bytes:
    packed = OWN_ADDRESS.packed
    body = struct.pack("=BBBBI", socket.AF_INET, 32, 0, _HOST_SCOPE, _LOOPBACK_INDEX)
    body += _attribute(1, packed) + _attribute(2, packed)  # IFA_ADDRESS, IFA_LOCAL
    return _message(_NEW_ADDRESS, _ACKNOWLEDGE | _CREATE | _EXCLUSIVE, 1, body)


def _route() -> bytes:
    family, table = socket.AF_INET, _LOCAL_TABLE
    body = struct.pack("=BBBBBBBBI", family, 0, 0, 0, table, _STATIC, _HOST_SCOPE, _LOCAL_ROUTE, 0)
    body += _attribute(4, struct.pack("=I", _LOOPBACK_INDEX))  # RTA_OIF
    body += _attribute(7, OWN_ADDRESS.packed)  # RTA_PREFSRC
    return _message(_NEW_ROUTE, _ACKNOWLEDGE | _CREATE | _EXCLUSIVE, 1, body)


def _table(port: int) -> Sequence[bytes]:
    # The first byte of the destination decides: 127/8 or not.
    to_loopback = _destination() + _compare(_EQUAL, b"\x7f\0\0\0")
    to_elsewhere = _destination() + _compare(_NOT_EQUAL, b"\x7f\0\0\0")
    to_strangers = to_elsewhere + _destination(b"\xff\xff\xff\xff") + _compare(_NOT_EQUAL, OWN_ADDRESS.packed)
    return (
        _of_batch(_BATCH_BEGIN),
        _of_table(_NEW_TABLE, 1, _attribute(1, _TABLE)),
        _chain(2, b"early\0", _RAW_PRIORITY, b"filter\0"),
        # Untracked, because the kernel's record of each connection is in no memory limit, and loopback needs no
        # translation.
        _rule(3, b"early\0", to_loopback + _expression(b"notrack\0")),
        # The rejection is an ICMP packet to the own address, sent through the same chain. It must not be rejected in
        # turn.
        _rule(4, b"early\0", to_strangers + _protocol() + _compare(_NOT_EQUAL, bytes((_TCP,))) + _reject()),
        _chain(5, b"away\0", _NAT_PRIORITY, b"nat\0"),
        # In the output hook `redir` changes the destination to 127.0.0.1 and the given port.
        _rule(6, b"away\0", to_elsewhere + _protocol() + _compare(_EQUAL, bytes((_TCP,))) + _redirect(port)),
        _of_batch(_BATCH_END),
    )


def _chain(number: int, name: bytes, priority: int, kind: bytes) -> bytes:
    hook = _attribute(1, _big(_OUTPUT_HOOK)) + _attribute(2, struct.pack("!i", priority))
    body = _attribute(1, _TABLE) + _attribute(3, name) + _attribute(4 | _NESTED, hook) + _attribute(7, kind)
    return _of_table(_NEW_CHAIN, number, body)


def _rule(number: int, chain: bytes, expressions: bytes) -> bytes:
    body = _attribute(1, _TABLE) + _attribute(2, chain) + _attribute(4 | _NESTED, expressions)
    return _of_table(_NEW_RULE, number, body, _APPEND)


# All expressions use register 1.


def _expression(name: bytes, data: bytes = b"") -> bytes:
    """One expression: NFTA_LIST_ELEM with its name and its data."""
    return _attribute(1 | _NESTED, _attribute(1, name) + _attribute(2 | _NESTED, data))


def _destination(mask_bytes: bytes = b"\xff\0\0\0") -> bytes:
    """Load the destination address under a mask; by default only its first byte."""
    base, offset, length = _NETWORK_HEADER, _DESTINATION_OFFSET, 4
    load = (
        _attribute(1, _big(1)) + _attribute(2, _big(base)) + _attribute(3, _big(offset)) + _attribute(4, _big(length))
    )
    mask = _attribute(1, _big(1)) + _attribute(2, _big(1)) + _attribute(3, _big(length))
    mask += _attribute(4 | _NESTED, _attribute(1, mask_bytes)) + _attribute(5 | _NESTED, _attribute(1, b"\0\0\0\0"))
    return _expression(b"payload\0", load) + _expression(b"bitwise\0", mask)


def _protocol() -> bytes:
    return _expression(b"meta\0", _attribute(1, _big(1)) + _attribute(2, _big(_PROTOCOL_KEY)))


def _compare(operation: int, value: bytes) -> bytes:
    compared = _attribute(3 | _NESTED, _attribute(1, value))
    return _expression(b"cmp\0", _attribute(1, _big(1)) + _attribute(2, _big(operation)) + compared)


def _redirect(port: int) -> bytes:
    value = _attribute(2 | _NESTED, _attribute(1, struct.pack("!H", port)))
    return _expression(b"immediate\0", _attribute(1, _big(1)) + value) + _expression(b"redir\0", _attribute(1, _big(1)))


def _reject() -> bytes:
    """Reject with ICMP "port unreachable", which the sender sees as ECONNREFUSED."""
    return _expression(b"reject\0", _attribute(1, _big(0)) + _attribute(2, bytes((3,))))


# Messages


def _big(value: int) -> bytes:
    """nf_tables takes numbers in network byte order, rtnetlink in host order."""
    return struct.pack("!I", value)


def _attribute(kind: int, data: bytes) -> bytes:
    """One attribute: length and kind, then data padded to four bytes."""
    size = 4 + len(data)
    return struct.pack("=HH", size, kind) + data + bytes(-size % 4)


def _message(kind: int, flags: int, number: int, body: bytes) -> bytes:
    return struct.pack("=IHHII", 16 + len(body), kind, flags | _REQUEST, number, 0) + body


def _of_batch(kind: int) -> bytes:
    """Begin or end a batch. The kernel applies everything between the two or nothing."""
    return _message(kind, 0, 0, struct.pack("!BBH", socket.AF_UNSPEC, 0, _SUBSYSTEM))


def _of_table(kind: int, number: int, body: bytes, more: int = 0) -> bytes:
    head = struct.pack("!BBH", socket.AF_INET, 0, 0)
    return _message(kind, _ACKNOWLEDGE | _CREATE | more, number, head + body)


def _tell(netlink: socket.socket, messages: Sequence[bytes], step: str) -> None:
    """Send messages and check the kernel's answers. Raises OSError with the step in its text.

    The kernel processes netlink requests inside `send`, so its answers are already there when it returns.
    """
    expected = sum(struct.unpack_from("=IHH", message)[2] & _ACKNOWLEDGE != 0 for message in messages)
    netlink.send(b"".join(messages))
    while expected:
        try:
            data = netlink.recv(65536)
        except BlockingIOError:
            raise OSError(errno.EIO, f"{step}: the kernel did not answer") from None
        while len(data) >= 20:
            size, kind = struct.unpack_from("=IH", data)
            if kind == _ERROR:
                reason = -struct.unpack_from("=i", data, 16)[0]
                if reason:
                    raise OSError(reason, f"{step}: {os.strerror(reason)}")
                expected -= 1
            # Messages are aligned to four bytes; at least one header forward, also for an invalid length.
            data = data[max(size + 3 & ~3, 16) :]
