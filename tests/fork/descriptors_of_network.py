"""TCP and UDP sockets of a process."""

from __future__ import annotations

import asyncio
import errno
import os
import select
import socket
import struct

from tests.fork.descriptors_registry import Check, kept, refused, thing


@thing
def a_tcp_listener_listens_and_its_connections_go_on() -> Check:
    listener = socket.create_server(("127.0.0.1", 8001), backlog=7)
    client = socket.create_connection(("127.0.0.1", 8001))
    server = listener.accept()[0]
    client.send(b"ping" * 1000)
    server.send(b"pong")
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    waiting = socket.create_connection(("127.0.0.1", 8001))
    names = client.getsockname(), client.getpeername()

    def check() -> None:
        assert server.recv(9999) == b"ping" * 1000
        assert client.recv(99) == b"pong"
        assert names == (client.getsockname(), client.getpeername()) == (server.getpeername(), server.getsockname())
        assert client.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
        listener.settimeout(5)
        assert listener.accept()[1] == waiting.getsockname()
        info = listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 32)
        assert struct.unpack_from("I", info, 28)[0] == 7
        fresh = socket.create_connection(("127.0.0.1", 8001))
        assert listener.accept()[0].send(b"x") == 1
        assert fresh.recv(9) == b"x"

    return check


@thing
def a_half_closed_tcp_connection_is_half_closed() -> Check:
    with socket.create_server(("127.0.0.1", 8002)) as listener:
        client = socket.create_connection(("127.0.0.1", 8002))
        server = listener.accept()[0]
    server.send(b"half")
    server.shutdown(socket.SHUT_WR)

    def check() -> None:
        assert (client.recv(9), client.recv(9)) == (b"half", b"")
        client.send(b"k")
        assert server.recv(9) == b"k"

    return check


@thing
def a_full_tcp_connection_is_whole() -> Check:
    listener = socket.create_server(("127.0.0.1", 8004))
    client = socket.create_connection(("127.0.0.1", 8004))
    server = listener.accept()[0]
    client.setblocking(False)
    sent = 0
    try:
        while True:
            sent += client.send(b"B" * 65_536)
    except BlockingIOError:
        pass
    kept.extend((listener, client))

    def check() -> None:
        server.settimeout(10)
        got = 0
        while got < sent:
            got += len(server.recv(1 << 20))
        assert got == sent

    return check


@thing
def ipv6_listens_too() -> Check:
    only = socket.socket(socket.AF_INET6)
    only.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    only.bind(("::1", 8003))
    only.listen(4)
    both = socket.create_server(("", 8005), family=socket.AF_INET6, dualstack_ipv6=True)
    client = socket.create_connection(("127.0.0.1", 8005))
    server = both.accept()[0]
    client.send(b"mapped")

    def check() -> None:
        assert only.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY) == 1
        with socket.create_connection(("::1", 8003)) as fresh:
            only.accept()[0].send(b"six")
            assert fresh.recv(9) == b"six"
        assert server.recv(9) == b"mapped"
        server.send(b"back")
        assert client.recv(9) == b"back"

    return check


@thing
def several_listeners_share_a_port() -> Check:
    listeners = []
    for _ in range(3):
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(("127.0.0.1", 8006))
        listener.listen()
        listener.setblocking(False)
        listeners.append(listener)
    client = socket.create_connection(("127.0.0.1", 8006))
    ready = select.select(listeners, (), (), 5)[0]
    server = ready[0].accept()[0]
    client.send(b"one of three")

    def check() -> None:
        server.settimeout(5)
        assert server.recv(99) == b"one of three"
        fresh = socket.create_connection(("127.0.0.1", 8006))
        assert len(select.select(listeners, (), (), 5)[0]) == 1
        fresh.close()

    return check


@thing
def datagrams_come_from_where_they_came_from() -> Check:
    server, client, stranger = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(3))
    server.bind(("127.0.0.1", 9001))
    client.bind(("127.0.0.1", 9002))
    stranger.bind(("127.0.0.1", 9003))
    client.sendto(b"one", ("127.0.0.1", 9001))
    stranger.sendto(b"two", ("127.0.0.1", 9001))
    stranger.close()
    client.sendto(b"three", ("127.0.0.1", 9001))
    client.connect(("127.0.0.1", 9001))

    def check() -> None:
        server.settimeout(5)
        expected = [(b"one", 9002), (b"two", 9003), (b"three", 9002)]
        assert [(data, source[1]) for data, source in (server.recvfrom(99) for _ in range(3))] == expected
        client.send(b"four")
        assert server.recvfrom(99) == (b"four", ("127.0.0.1", 9002))

    return check


@thing
def a_pending_error_is_not_taken() -> Check:
    lonely = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    lonely.connect(("127.0.0.1", 9999))
    lonely.send(b"nobody there")
    original = os.getpid()

    def check() -> None:
        lonely.setblocking(False)
        # Errors stay with the original.
        refused(lambda: lonely.recv(9), errno.ECONNREFUSED if os.getpid() == original else errno.EAGAIN)

    return check


@thing
def an_asyncio_server_serves() -> Check:
    loop = asyncio.new_event_loop()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"echo " + await reader.readline())
        await writer.drain()
        writer.close()

    async def ask() -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", 8090)
        writer.write(b"hey\n")
        line = await reader.readline()
        writer.close()
        return line

    server = loop.run_until_complete(asyncio.start_server(answer, "127.0.0.1", 8090))
    loop.call_soon_threadsafe(lambda: None)
    kept.append(server)

    def check() -> None:
        assert loop.run_until_complete(asyncio.wait_for(ask(), 5)) == b"echo hey\n"

    return check


@thing
def a_netlink_socket_is_bound() -> Check:
    netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
    netlink.bind((0, 0))

    def check() -> None:
        assert netlink.getsockname()[0] != 0

    return check
