"""Sockets, examined through a duplicate of the descriptor and distinguished by family."""

from __future__ import annotations

import socket
import struct

from ramet.freezing.descriptors.access import Opened, ProcessAccess
from ramet.freezing.descriptors.calls import CallList
from ramet.freezing.descriptors.recipes import Description, OtherSocket, Thing
from ramet.freezing.descriptors.sockets import internet_sockets, unix_sockets
from ramet.freezing.descriptors.sockets.socket_options import read_facts, set_blocking_mode, set_late_options

_KINDS = (socket.SOCK_STREAM, socket.SOCK_DGRAM)


def read_socket(access: ProcessAccess, opened: Opened) -> Thing:
    with access.copy_of_socket(opened.number) as copy:
        return _read(access, opened, copy)


def _read(access: ProcessAccess, opened: Opened, copy: socket.socket) -> Thing:
    if copy.family == socket.AF_UNIX:
        return unix_sockets.read_unix(access, opened, copy)
    if copy.family in (socket.AF_INET, socket.AF_INET6) and copy.type in _KINDS and copy.proto in (0, 6, 17):
        return internet_sockets.read_internet(access, opened, copy)
    if copy.family == socket.AF_NETLINK:
        return OtherSocket(read_facts(copy), bound=copy.getsockname()[0] != 0)
    return access.dead(opened, f"a socket of family {int(copy.family)}, type {int(copy.type)}")


def make_other(script: CallList, each: Description, thing: OtherSocket) -> int:
    facts = thing.facts
    slot = script.try_create("make a socket", "socket", facts.family, facts.type, facts.protocol)
    if thing.bound:
        any_address = struct.pack("HHII", facts.family, 0, 0, 0)
        script.call("bind a netlink socket", "bind", slot, any_address, len(any_address), must_work=False)
    set_late_options(script, slot, facts)
    set_blocking_mode(script, slot, each.flags)
    return slot
