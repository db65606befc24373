"""A way to a server that can be cut, as a cable is."""

from __future__ import annotations

import select
import socket
import struct
import threading


class Cutter:
    """Passes bytes on, both ways, until it is told to cut every connection there is."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self._told, self._tell = socket.socketpair()
        self._pairs: dict[socket.socket, socket.socket] = {}
        self._thread = threading.Thread(target=self._run, name="cutter")
        self._thread.start()

    def cut(self) -> None:
        """Both ends hear that the other is gone; returns when they do."""
        self._tell.send(b"c")
        self._tell.recv(1)

    def close(self) -> None:
        self._tell.send(b"e")
        self._thread.join()
        self._tell.close()
        self._told.close()
        self._listening.close()

    def _run(self) -> None:
        while True:
            ready, _, _ = select.select([self._listening, self._told, *self._pairs], [], [])
            for sock in ready:
                if sock is self._told:
                    order = sock.recv(1)
                    for end in list(self._pairs):
                        self._drop(end)
                    if order == b"e":
                        return
                    sock.send(b"d")
                    break
                if sock is self._listening:
                    near, _ = sock.accept()
                    far = socket.create_connection(("127.0.0.1", self._to))
                    self._pairs |= {near: far, far: near}
                elif sock in self._pairs:
                    self._pass_on(sock)

    def _pass_on(self, sock: socket.socket) -> None:
        try:
            data = sock.recv(65536)
            if data:
                self._pairs[sock].sendall(data)
                return
        except OSError:
            pass
        other = self._pairs[sock]
        self._drop(sock)
        self._drop(other)

    def _drop(self, sock: socket.socket) -> None:
        self._pairs.pop(sock, None)
        if sock.fileno() != -1:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.close()
