"""Servers that run in a sandbox, for tests of its exposed ports. Each is code for one cell, after which it listens."""

from __future__ import annotations

PORT = 8000

# Answers what its paths say, one connection at a time for each thread.
TALKATIVE = """
import base64, hashlib, json, socket, threading

released, departed, stuck = threading.Event(), threading.Event(), threading.Event()
taken = [0]
WRITTEN = {}  # path: bytes that are the whole answer
TARGETS = []  # of all requests that came

def read_head(reader):
    lines = []
    while (line := reader.readline()) not in (b"\\r\\n", b"\\n", b""):
        lines.append(line.decode("latin-1").rstrip("\\r\\n"))
    if not lines:
        return None
    method, target, _ = lines[0].split(" ", 2)
    headers = [line.partition(": ")[::2] for line in lines[1:]]
    return method, target, headers

def pieces(reader, found):
    if "content-length" in found:
        left = int(found["content-length"])
        while left > 0:
            piece = reader.read1(min(left, 65536))
            if not piece:
                return
            left -= len(piece)
            yield piece
    elif found.get("transfer-encoding") == "chunked":
        while size := int(reader.readline() or b"0", 16):
            yield reader.read(size)
            reader.readline()
        reader.readline()

def head(status="200 OK", **headers):
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\\r\\n".join([f"HTTP/1.1 {status}", *lines, "", ""]).encode()

def chunk(data):
    return b"%x\\r\\n%s\\r\\n" % (len(data), data)

def serve(connection):
    with connection, connection.makefile("rb") as reader:
        asked = read_head(reader)
        if asked is None:
            return
        method, target, headers = asked
        TARGETS.append(target)
        found = {name.lower(): value for name, value in headers}
        path = target.partition("?")[0]
        send = connection.sendall
        if path in WRITTEN:
            send(WRITTEN[path])
        elif path == "/events":
            send(head(content_type="text/event-stream") + b"data: first\\n\\n")
            released.wait()
            send(b"data: second\\n\\n")
        elif path == "/forever":
            send(head(content_type="text/event-stream") + b"data: first\\n\\n")
            connection.recv(1)
            departed.set()
        elif path == "/duplex":
            send(head(transfer_encoding="chunked"))
            for piece in pieces(reader, found):
                send(chunk(piece.upper()))
            send(b"0\\r\\n\\r\\n")
        elif path == "/many":
            size = int(target.partition("?")[2])
            send(head(content_length=size))
            while size:
                step = min(size, 1 << 20)
                send(b"x" * step)
                size -= step
        elif path == "/unread":
            connection.settimeout(1)  # so long without room: nobody reads
            send(head())
            try:
                while True:
                    taken[0] += connection.send(bytes(1 << 20))
            except TimeoutError:
                stuck.set()
        elif path == "/socket":
            key = found["sec-websocket-key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
            accept = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
            switch = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Accept": accept}
            send(head("101 Switching Protocols", **switch) + b"first words")
            while piece := reader.read1(65536):
                send(piece[::-1])
            departed.set()
        else:
            body = b"".join(pieces(reader, found)).decode("latin-1")
            told = json.dumps({"method": method, "target": target, "headers": headers, "body": body}).encode()
            send(head(content_type="application/json", content_length=len(told)) + (b"" if method == "HEAD" else told))

def listen(port):
    listener = socket.create_server(("127.0.0.1", port))
    def accept():
        while True:
            threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
    threading.Thread(target=accept, daemon=True).start()

listen(8000)
print("listening")
"""
