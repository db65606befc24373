"""A web server that costs as little as Python can make it cost: a thread for each connection, answers laid out ahead.

`python -m bench.web_server` serves it and prints its address. /bytes/N has N bytes, a multiple of a mebibyte; all else
is three bytes.
"""

import socket
import threading

_PIECE = bytes(1 << 20)
_SMALL = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 3\r\n\r\nok\n"


def _serve(connection: socket.socket) -> None:
    with connection:
        try:
            while head := connection.recv(65536):
                target = head.split(b" ", 2)[1]
                if not target.startswith(b"/bytes/"):
                    connection.sendall(_SMALL)
                    continue
                count = int(target.removeprefix(b"/bytes/"))
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % count)
                for _ in range(count // len(_PIECE)):
                    connection.sendall(_PIECE)
        except ConnectionError:
            pass  # the client has seen enough


def main() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=_serve, args=(connection,), daemon=True).start()


if __name__ == "__main__":
    main()
