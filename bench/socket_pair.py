"""The least that a tool call can cost: a request and an answer in JSON between two Python processes, over a socketpair.

As a program it takes one sample for each line it is sent: seconds for so many round trips, one after the other.
"""

import json
import os
import socket
import struct
import sys
import time

REQUEST = {"tool": "lookup", "arguments": {"sku": "ABC123"}}
ANSWER = {"value": {"sku": "ABC123", "days": [{"units": 1}, {"units": 2}, {"units": 3}]}}
_LENGTH = struct.Struct("<I")


def _send(connection: socket.socket, value: object) -> None:
    data = json.dumps(value).encode()
    connection.sendall(_LENGTH.pack(len(data)) + data)


def _receive(connection: socket.socket) -> object:
    data = connection.recv(65536)
    if not data:
        sys.exit(0)
    (length,) = _LENGTH.unpack_from(data)
    assert len(data) == 4 + length
    return json.loads(data[4:])


def main() -> None:
    count = int(sys.argv[1])
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        ours.close()
        while True:
            assert _receive(theirs) == REQUEST
            _send(theirs, ANSWER)
    theirs.close()
    for _ in sys.stdin:
        started = time.perf_counter()
        for _ in range(count):
            _send(ours, REQUEST)
            assert _receive(ours) == ANSWER
        print(time.perf_counter() - started, flush=True)


if __name__ == "__main__":
    main()
