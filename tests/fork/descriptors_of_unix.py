"""Unix sockets of a process."""

from __future__ import annotations

import errno
import os
import socket

from tests.fork.descriptors_registry import Check, refused, thing


@thing
def a_pair_of_sockets_keeps_both_queues() -> Check:
    one, other = socket.socketpair()
    one.send(b"to other")
    other.send(b"to one")
    one.settimeout(5)
    other.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 50_000)

    def check() -> None:
        assert (other.recv(99), one.recv(99)) == (b"to other", b"to one")
        assert other.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == 100_000
        assert one.gettimeout() == 5
        one.send(b"more")
        assert other.recv(99) == b"more"

    return check


@thing
def a_full_pair_of_sockets_is_whole() -> Check:
    one, other = socket.socketpair()
    one.setblocking(False)
    sent = 0
    try:
        while True:
            sent += one.send(b"s" * 10_000)
    except BlockingIOError:
        pass
    before = one.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)

    def check() -> None:
        other.settimeout(5)
        got = 0
        while got < sent:
            got += len(other.recv(1 << 20))
        assert got == sent
        assert one.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == before
        assert one.getsockopt(socket.SOL_SOCKET, 72) == 0

    return check


@thing
def messages_stay_apart() -> Check:
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    for message in (b"d1", b"", b"d333"):
        one.send(message)
    first, second = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for message in (b"q1", b"q22"):
        first.send(message)

    def check() -> None:
        assert [other.recv(99) for _ in range(3)] == [b"d1", b"", b"d333"]
        assert [second.recv(99) for _ in range(2)] == [b"q1", b"q22"]
        second.send(b"back")
        assert first.recv(99) == b"back"

    return check


@thing
def a_pair_that_was_shut_down_or_closed_is() -> Check:
    half, other = socket.socketpair()
    half.send(b"then end")
    half.shutdown(socket.SHUT_WR)
    left, closed = socket.socketpair()
    closed.send(b"closed")
    closed.close()

    def check() -> None:
        assert (other.recv(99), other.recv(99)) == (b"then end", b"")
        other.send(b"r")
        assert half.recv(9) == b"r"
        assert (left.recv(99), left.recv(99)) == (b"closed", b"")
        refused(lambda: left.send(b"x"), errno.EPIPE)

    return check


@thing
def a_message_that_carries_a_descriptor_keeps_its_bytes() -> Check:
    one, other = socket.socketpair()
    null = os.open("/dev/null", os.O_RDONLY)
    socket.send_fds(one, [b"with a descriptor"], [null])

    def check() -> None:
        assert other.recv(99) == b"with a descriptor"

    return check


@thing
def unix_listeners_listen() -> Check:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(os.path.abspath("listener"))
    os.chmod("listener", 0o600)
    listener.listen(9)
    client = socket.socket(socket.AF_UNIX)
    client.connect(os.path.abspath("listener"))
    server = listener.accept()[0]
    client.send(b"hi")
    waiting = socket.socket(socket.AF_UNIX)
    waiting.connect(os.path.abspath("listener"))
    abstract = socket.socket(socket.AF_UNIX)
    abstract.bind("\0abstract")
    abstract.listen(3)
    os.mkdir("sub")
    os.chdir("sub")
    relative = socket.socket(socket.AF_UNIX)
    relative.bind("relative")
    relative.listen(2)
    os.chdir("..")

    def check() -> None:
        assert server.recv(99) == b"hi"
        assert server.getsockname() == os.path.abspath("listener")
        accepted = listener.accept()[0]
        waiting.send(b"waited")
        assert accepted.recv(99) == b"waited"
        assert os.stat("listener").st_mode & 0o777 == 0o600
        for address, one in (("listener", listener), ("\0abstract", abstract), ("sub/relative", relative)):
            fresh = socket.socket(socket.AF_UNIX)
            fresh.connect(address)
            one.settimeout(5)
            assert one.accept()[0].send(b"ok")
            assert fresh.recv(9) == b"ok"
            fresh.close()
        assert relative.getsockname() == "relative"

    return check


@thing
def unix_datagrams_find_their_names() -> Check:
    server, client = (socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(2))
    server.bind(os.path.abspath("datagrams"))
    client.bind("\0client")
    client.connect(os.path.abspath("datagrams"))
    client.send(b"first")

    def check() -> None:
        assert server.recvfrom(99) == (b"first", b"\0client")
        client.send(b"second")
        assert server.recv(99) == b"second"

    return check
