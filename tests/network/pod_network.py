"""A network of its own, as a pod has it, in a process that does nothing else: loopback, and the packet rules of a pod.

Its listeners are handed out; then it connects to whatever it is asked for, in the words of a program that knows no
proxy.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from ramet.isolation.kernel import packet_rules

_NEW_USER, _NEW_NET = 0x10000000, 0x40000000
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1
SECONDS = 20
RAW_PORT = 3129


class PodNetwork:
    """The other side of that process."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        _, descriptors, _, _ = socket.recv_fds(line, 100, 3)
        if len(descriptors) != 3:
            raise OSError("the network could not be made")
        self.listeners = dict(zip(("proxy", "transparent", "names"), descriptors, strict=True))

    def ask(self, host: str, port: int, say: str = "", family: str = "tcp") -> str:
        """What a program got that connected, said something, and read: text, or the name of an error."""
        self._line.send(json.dumps([host, port, say, family]).encode())
        return self._line.recv(65536).decode()


@contextmanager
def pod_network() -> Iterator[PodNetwork]:
    """OSError: this machine lets nobody make one, or has no nf_tables."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    process = subprocess.Popen([sys.executable, __file__, str(theirs.fileno())], pass_fds=[theirs.fileno()])
    theirs.close()
    try:
        with ours:
            network = PodNetwork(ours)
            yield network
            for descriptor in network.listeners.values():
                os.close(descriptor)
    finally:
        ours.close()
        process.wait(SECONDS)


def _make() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEW_USER | _NEW_NET) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    with socket.socket() as any_socket:
        request = struct.pack("16sH14x", b"lo", _IFF_UP)
        if libc.ioctl(any_socket.fileno(), _SIOCSIFFLAGS, request) != 0:
            raise OSError(ctypes.get_errno(), "bring loopback up")
    with (
        socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, packet_rules.NETLINK_ROUTE) as route,
        socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, packet_rules.NETLINK_NETFILTER) as packets,
    ):
        packet_rules.lead_away(route, packets, RAW_PORT)


def _connect(host: str, port: int, say: str, family: str) -> str:
    try:
        kind = socket.SOCK_DGRAM if family == "udp" else socket.SOCK_STREAM
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, kind) as end:
            end.settimeout(SECONDS)
            end.connect((host, port))
            if say:
                end.sendall(say.encode("latin-1"))
            return end.recv(65536).decode("latin-1")
    except OSError as error:
        return type(error).__name__


def main() -> None:
    line = socket.socket(fileno=int(sys.argv[1]))
    _make()
    proxy = socket.create_server(("127.0.0.1", 3128))
    raw = socket.create_server(("127.0.0.1", RAW_PORT))
    names = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    names.bind(("127.0.0.1", 53))
    socket.send_fds(line, [b"here"], [proxy.fileno(), raw.fileno(), names.fileno()])
    for end in (proxy, raw, names):
        end.close()
    while asked := line.recv(65536):
        line.send(_connect(*json.loads(asked)).encode() or b"(end)")


if __name__ == "__main__":
    main()
