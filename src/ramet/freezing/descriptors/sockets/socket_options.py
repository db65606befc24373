"""Socket options: those that differ from a new socket's are copied."""

from __future__ import annotations

import functools
import os
import socket
import struct

from ramet.freezing.descriptors.calls import CallList
from ramet.freezing.descriptors.recipes import SocketFacts, SocketOption

_SOL_TCP, _SOL_IP, _SOL_IPV6 = socket.IPPROTO_TCP, socket.IPPROTO_IP, socket.IPPROTO_IPV6
SO_BUF_LOCK, SO_PEEK_OFF = 72, 42
_SEND_BUFFER_SET, _RECEIVE_BUFFER_SET = 1, 2
_REUSE_ADDRESS = (socket.SOL_SOCKET, socket.SO_REUSEADDR)
# Never SO_ERROR: reading it clears the owner's pending error.
_ANY = tuple(
    (socket.SOL_SOCKET, option, size)
    for option, size in (
        (socket.SO_REUSEADDR, 4),
        (socket.SO_REUSEPORT, 4),
        (socket.SO_KEEPALIVE, 4),
        (socket.SO_BROADCAST, 4),
        (socket.SO_OOBINLINE, 4),
        (socket.SO_RCVLOWAT, 4),
        (socket.SO_LINGER, 8),
        (socket.SO_RCVTIMEO, 16),
        (socket.SO_SNDTIMEO, 16),
        (socket.SO_PASSCRED, 4),
        (29, 4),  # SO_TIMESTAMP
    )
)
_TCP = tuple(
    (_SOL_TCP, option, 4)
    for option in (
        socket.TCP_NODELAY,
        socket.TCP_CORK,
        socket.TCP_KEEPIDLE,
        socket.TCP_KEEPINTVL,
        socket.TCP_KEEPCNT,
        socket.TCP_DEFER_ACCEPT,
        socket.TCP_USER_TIMEOUT,
        socket.TCP_FASTOPEN,
    )
)
# IP_TOS, IP_TTL, IP_RECVERR, IP_PKTINFO; for datagrams also IP_MULTICAST_TTL and IP_MULTICAST_LOOP
_IP = tuple((_SOL_IP, option, 4) for option in (1, 2, 11, 8))
_IP_MULTICAST = tuple((_SOL_IP, option, 4) for option in (33, 34))
_IPV6 = tuple((_SOL_IPV6, option, 4) for option in (socket.IPV6_V6ONLY, 67))  # 67 is IPV6_TCLASS
# Every option that a copy may have, with the size of its value. None of them takes a capability.
KEPT_OPTIONS = {
    **{(level, option): size for level, option, size in (*_ANY, *_TCP, *_IP, *_IP_MULTICAST, *_IPV6)},
    (socket.SOL_SOCKET, socket.SO_SNDBUF): 4,
    (socket.SOL_SOCKET, socket.SO_RCVBUF): 4,
}
# These decide what bind or listen does, so they are set before it.
_EARLY = frozenset(
    (
        (socket.SOL_SOCKET, socket.SO_REUSEPORT),
        (_SOL_IPV6, socket.IPV6_V6ONLY),
        (socket.SOL_SOCKET, socket.SO_RCVBUF),
        (socket.SOL_SOCKET, socket.SO_SNDBUF),
    )
)


def read_facts(copy: socket.socket) -> SocketFacts:
    """Read a socket's family, type, protocol and options."""
    family, kind = int(copy.family), copy.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE)
    protocol = copy.getsockopt(socket.SOL_SOCKET, socket.SO_PROTOCOL)
    usual = _usual_values(family, kind, protocol)
    options: list[SocketOption] = []
    for key, value in _values(copy, family, kind).items():
        # SO_REUSEADDR is set on the way, to bind ports again, and gets its real value at the end.
        if value != usual.get(key) and key != _REUSE_ADDRESS:
            options.append(SocketOption(*key, value))
    reuses = copy.getsockopt(*_REUSE_ADDRESS) != 0
    return SocketFacts(family, kind, protocol, (*options, *_buffer_sizes(copy)), reuses)


def _values(one: socket.socket, family: int, kind: int) -> dict[tuple[int, int], bytes]:
    wanted = _ANY
    if family in (socket.AF_INET, socket.AF_INET6):
        wanted += _IP + (_TCP if kind == socket.SOCK_STREAM else _IP_MULTICAST)
    if family == socket.AF_INET6:
        wanted += _IPV6
    values: dict[tuple[int, int], bytes] = {}
    for level, option, size in wanted:
        try:
            values[level, option] = one.getsockopt(level, option, size)
        except OSError:
            continue
    return values


@functools.lru_cache(maxsize=32)
def _usual_values(family: int, kind: int, protocol: int) -> dict[tuple[int, int], bytes]:
    """The options of a new socket of this kind. {}: none can be made here, and all options are copied."""
    try:
        with socket.socket(family, kind, protocol) as fresh:
            return _values(fresh, family, kind)
    except OSError:
        return {}


def _buffer_sizes(copy: socket.socket) -> tuple[SocketOption, ...]:
    """Buffer sizes that a program has set. The kernel tunes the others itself. It reports twice what it was given."""
    try:
        # SO_BUF_LOCK (Linux 5.14) shows which sizes a program has set.
        locked = copy.getsockopt(socket.SOL_SOCKET, SO_BUF_LOCK)
    except OSError:
        return ()
    found: list[SocketOption] = []
    for option, bit in ((socket.SO_SNDBUF, _SEND_BUFFER_SET), (socket.SO_RCVBUF, _RECEIVE_BUFFER_SET)):
        if locked & bit:
            size = copy.getsockopt(socket.SOL_SOCKET, option) // 2
            found.append(SocketOption(socket.SOL_SOCKET, option, struct.pack("i", size)))
    return tuple(found)


def set_option(script: CallList, slot: int, level: int, option: int, value: bytes, must_work: bool = True) -> None:
    script.call("set a socket's option", "setsockopt", slot, level, option, value, len(value), must_work=must_work)


def set_early_options(script: CallList, slot: int, facts: SocketFacts) -> None:
    for each in facts.options:
        if (each.level, each.option) in _EARLY:
            set_option(script, slot, each.level, each.option, each.value, must_work=False)


def set_late_options(script: CallList, slot: int, facts: SocketFacts) -> None:
    for each in facts.options:
        if (each.level, each.option) not in _EARLY:
            set_option(script, slot, each.level, each.option, each.value, must_work=False)


def reuse_address(script: CallList, slot: int, wanted: bool) -> None:
    set_option(script, slot, *_REUSE_ADDRESS, struct.pack("i", wanted))


def set_blocking_mode(script: CallList, slot: int, flags: int) -> None:
    if flags & os.O_NONBLOCK:
        script.set_flags("set a socket's flags", slot, flags)
