"""The process that loads the guest's modules once, and forks for each guest; see `nursery`.

python -P -X utf8 nursery_process.py ENTRY, with its connection as descriptor 3. It ends with the connection.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from importlib import import_module
from types import ModuleType

CONNECTION = 3
MOST_BYTES = 1 << 16
_MOST_DESCRIPTORS = 8
# What `boot` imports when it runs.
_LOADED = (
    "IPython.utils.io",
    "ramet_guest.cells.magics",
    "ramet_guest.cells.no_network",
    "ramet_guest.cells.postmortem",
    "ramet_guest.cells.shell",
    "ramet_guest.cells.sources",
    "ramet_guest.processes.scripts",
    "ramet_guest.repl",
    "ramet_guest.waking.memory",
    "ramet_guest.waking.warmup",
)


def main(entry_path: str) -> None:
    entry = _entry(entry_path)
    sys.meta_path.insert(0, entry.PrivateFinder)
    boot = import_module("ramet_guest.boot")
    for name in _LOADED:
        import_module(name)
    options = _serve(socket.socket(fileno=CONNECTION))
    if options is not None:  # this is a guest
        sys.argv[:] = [entry_path, options]
        boot.main(options, entry.FOLDER)


def _entry(path: str) -> ModuleType:
    """The module that a guest's interpreter is started with, without having run it."""
    entry = ModuleType("entry")
    entry.__file__ = path
    with open(path, encoding="utf-8") as file:
        exec(compile(file.read(), path, "exec"), vars(entry))
    entry.__name__ = "__main__"
    sys.modules["__main__"] = entry
    return entry


def _serve(connection: socket.socket) -> str | None:
    """Each request is for a guest, or for the status of one. Returns its options in a guest, None at the end."""
    while True:
        data, descriptors, _, _ = socket.recv_fds(connection, MOST_BYTES, _MOST_DESCRIPTORS)
        if not data:
            return None
        asked = json.loads(data)
        if "ended" in asked:
            connection.send(b"%d" % os.waitpid(asked["ended"], 0)[1])
            continue
        guest = os.fork()
        if guest == 0:
            connection.detach()
            os.environ.clear()
            os.environ.update(asked["environment"])
            _settle(descriptors, asked["numbers"])
            return str(asked["options"])
        for descriptor in descriptors:
            os.close(descriptor)
        connection.send(b"%d" % guest)


def _settle(descriptors: list[int], numbers: list[int]) -> None:
    """Have these descriptors by these numbers, and no others."""
    os.setpgid(0, 0)
    for descriptor, number in zip(descriptors, numbers, strict=True):
        os.dup2(descriptor, number)
    low, high = [number for number in numbers if number < CONNECTION], max(numbers)
    assert len(low) == CONNECTION
    os.closerange(CONNECTION, min(set(numbers) - set(low)))
    os.closerange(high + 1, os.sysconf("SC_OPEN_MAX"))


if __name__ == "__main__":
    main(sys.argv[1])
