"""TCP and UDP sockets. A pod has no network but its own, so a connection's peer is in the same pod, or gone."""

from __future__ import annotations

import contextlib
import fcntl
import socket
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from ramet.freezing.descriptors.access import Opened, ProcessAccess
from ramet.freezing.descriptors.bounds import MOST_QUEUE_BYTES
from ramet.freezing.descriptors.recipes import Address, Description, InternetSocket
from ramet.freezing.descriptors.sockets.peeking import may_receive, peek_messages, peek_tcp
from ramet.freezing.descriptors.sockets.socket_options import read_facts

LISTEN, CLOSE = 10, 7  # states of TCP, from include/net/tcp_states.h
_CONNECTED = frozenset((1, 4, 5, 8, 9, 11))  # states with data that can still be read
_SIOCOUTQ = 0x5411
_FINISHING = frozenset((4, 9, 11))  # FIN_WAIT1, LAST_ACK, CLOSING: the FIN is sent but not acknowledged
_UNACKED_AT, _SACKED_AT = 24, 28  # in struct tcp_info of a listener: queued connections, and the backlog
_TCP_REPAIR, _TCP_REPAIR_QUEUE, _TCP_QUEUE_SEQ = 19, 20, 21
_REPAIR_ON, _REPAIR_OFF_QUIETLY = 1, -1
_NO_QUEUE, _RECEIVE_QUEUE, _SEND_QUEUE = 0, 1, 2
_PEEK = socket.MSG_PEEK | socket.MSG_DONTWAIT
_MOST_LOOKS = 100  # a window holds a few dozen segments of the loopback


def read_internet(access: ProcessAccess, opened: Opened, copy: socket.socket) -> InternetSocket:
    facts = read_facts(copy)
    local, remote = _address(copy.getsockname()), _remote(copy)
    if copy.type == socket.SOCK_DGRAM:
        messages = peek_messages(copy, access.budget)[0] if may_receive(copy) else ()
        return InternetSocket(facts, local, remote, False, 0, 0, CLOSE, b"", 0, messages)
    info = copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
    state = info[0]
    received = b""
    waiting = backlog = under_way = 0
    if state == LISTEN:
        waiting, backlog = (int.from_bytes(info[at : at + 4], "little") for at in (_UNACKED_AT, _SACKED_AT))
        if waiting:
            access.lost.append(f"socket {opened.number}: what was sent on {waiting} connections not yet accepted")
    elif state in _CONNECTED:
        # A pending error would be consumed even by a peek. Without one, a peek can neither wait nor fail.
        received = peek_tcp(copy, access.budget) if may_receive(copy) else b""
        under_way = int.from_bytes(fcntl.ioctl(copy, _SIOCOUTQ, bytes(4)), "little")
    return InternetSocket(facts, local, remote, state == LISTEN, backlog, waiting, state, received, under_way, ())


def _address(address: Any) -> Address:
    """Without the scope of a link-local IPv6 address, which pods do not have."""
    return str(address[0]).partition("%")[0], int(address[1])


def plain(address: Address | None) -> Address | None:
    """An IPv4-mapped IPv6 address (::ffff:127.0.0.1) is the same place as the IPv4 address."""
    return address and (address[0].removeprefix("::ffff:") if "." in address[0] else address[0], address[1])


def _remote(copy: socket.socket) -> Address | None:
    try:
        return _address(copy.getpeername())
    except OSError:
        return None


def read_under_way(
    access: ProcessAccess, descriptions: list[Description], opened: Mapping[int, Opened]
) -> list[Description]:
    """Add to each connection with both ends here what the receiver had no room for or has not acknowledged yet."""
    names = {
        (plain(each.thing.local), plain(each.thing.remote)): index
        for index, each in enumerate(descriptions)
        if isinstance(each.thing, InternetSocket) and each.thing.remote is not None
    }
    for (local, remote), index in names.items():
        sender = descriptions[index].thing
        peer = names.get((remote, local))
        if not isinstance(sender, InternetSocket) or not sender.under_way or peer is None or peer == index:
            continue
        receiver = descriptions[peer]
        if isinstance(receiver.thing, InternetSocket):
            received = _read_all(access, sender, opened[index], opened[peer])
            if received is not None:
                descriptions[peer] = replace(receiver, thing=replace(receiver.thing, received=received))
    return descriptions


def _read_all(access: ProcessAccess, sender: InternetSocket, sending: Opened, receiving: Opened) -> bytes | None:
    """The bytes that the receiver will have read in the end. Its own and those that the sender keeps may overlap."""
    access.budget.spend(sender.under_way, "what waits in a TCP connection", MOST_QUEUE_BYTES)
    try:
        with access.copy_of_socket(sending.number) as source, access.copy_of_socket(receiving.number) as target:
            with _repairing(source, _SEND_QUEUE):  # repair mode stops the socket: it sends nothing while we look
                # The sequence number behind the last byte that was written; `reached` is that behind the last byte
                # received. The difference is what the receiver still lacks, and the sender keeps at least that.
                end = source.getsockopt(socket.IPPROTO_TCP, _TCP_QUEUE_SEQ)
                kept = source.recv(sender.under_way, _PEEK)
                received, reached = _received(access, target)
    except OSError as error:
        access.lost.append(f"socket {sending.number}: {sender.under_way} bytes on their way ({error})")
        return None
    # Sequence numbers are modulo 2^32, and a FIN takes one of them.
    missing = (end - reached) % (1 << 32) - (1 if sender.state in _FINISHING else 0)
    return received + (kept[-missing:] if 0 < missing <= len(kept) else b"")


def _received(access: ProcessAccess, target: socket.socket) -> tuple[bytes, int]:
    """What waits at the receiver, and the sequence number behind the last byte of it. Raises OSError.

    Segments that were sent before may arrive at any moment: on a busy machine, packets of the loopback wait for their
    turn. Bytes that come between the two looks would be in neither, so it is looked until none came.
    """
    reached = _sequence_number(target)
    for _ in range(_MOST_LOOKS):
        received = peek_tcp(target, access.budget) if may_receive(target) else b""
        before, reached = reached, _sequence_number(target)
        if before == reached:
            return received, reached
    raise OSError(f"segments kept arriving during {_MOST_LOOKS} looks")


def _sequence_number(target: socket.socket) -> int:
    with _repairing(target, _RECEIVE_QUEUE):
        return target.getsockopt(socket.IPPROTO_TCP, _TCP_QUEUE_SEQ)


@contextlib.contextmanager
def _repairing(copy: socket.socket, queue: int) -> Iterator[None]:
    """Switch on TCP_REPAIR, in which the kernel shows a connection's queues. Needs CAP_NET_ADMIN over the network.

    Leaving the mode resets SO_REUSEADDR, so it is set again.
    """
    reuses = copy.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR)
    copy.setsockopt(socket.IPPROTO_TCP, _TCP_REPAIR, _REPAIR_ON)
    try:
        copy.setsockopt(socket.IPPROTO_TCP, _TCP_REPAIR_QUEUE, queue)
        yield
    finally:
        copy.setsockopt(socket.IPPROTO_TCP, _TCP_REPAIR_QUEUE, _NO_QUEUE)
        # Not plain "off", which would send a window probe to the peer.
        copy.setsockopt(socket.IPPROTO_TCP, _TCP_REPAIR, _REPAIR_OFF_QUIETLY)
        copy.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuses)
