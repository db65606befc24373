"""The process that loads modules once, and forks for each process that tests want; see `nursery`.

python nursery_process.py guest ENTRY
python nursery_process.py command

Its connection is descriptor 3, and it ends with the connection.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

CONNECTION = 3
MOST_BYTES = 1 << 18
_MOST_DESCRIPTORS = 8
# What the guest's `boot` imports when it runs.
_OF_GUESTS = (
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
# What the commands of `ramet` import when they run.
_OF_COMMANDS = ("ramet.transport.http.remote", "ramet.transport.embedded_links", "ramet.client.drivers.blocking")

Request = dict[str, Any]


def main() -> None:
    begin = load_guest(sys.argv[2]) if sys.argv[1] == "guest" else load_command()
    request = _serve(socket.socket(fileno=CONNECTION))
    if request is not None:  # this is one of those processes
        begin(request)


def load_guest(entry_path: str) -> Callable[[Request], None]:
    # The module that a guest's interpreter is started with, but not as the program: that would serve at once.
    entry = ModuleType("entry")
    entry.__file__ = entry_path
    with open(entry_path, encoding="utf-8") as file:
        exec(compile(file.read(), entry_path, "exec"), vars(entry))
    entry.__name__ = "__main__"
    sys.modules["__main__"] = entry
    sys.meta_path.insert(0, entry.PrivateFinder)
    boot = import_module("ramet_guest.boot")
    for name in _OF_GUESTS:
        import_module(name)

    def begin(request: Request) -> None:
        sys.argv[:] = [entry_path, *request["arguments"]]
        boot.main(sys.argv[1], entry.FOLDER)

    return begin


def load_command() -> Callable[[Request], None]:
    command = import_module("ramet.cli.main")
    for name in _OF_COMMANDS:
        import_module(name)

    def begin(request: Request) -> None:
        os.chdir(request["folder"])
        sys.argv[:] = [str(command.__file__), *request["arguments"]]
        sys.exit(command.main())

    return begin


def _serve(connection: socket.socket) -> Request | None:
    """Each request is for a process, or for the status of one. Returns in that process, or with None at the end."""
    while True:
        data, descriptors, _, _ = socket.recv_fds(connection, MOST_BYTES, _MOST_DESCRIPTORS)
        if not data:
            return None
        request: Request = json.loads(data)
        if "ended" in request:
            connection.send(b"%d" % os.waitpid(request["ended"], 0)[1])
            continue
        made = os.fork()
        if made == 0:
            connection.detach()
            os.environ.clear()
            os.environ.update(request["environment"])
            _settle(descriptors, request["numbers"])
            return request
        for descriptor in descriptors:
            os.close(descriptor)
        connection.send(b"%d" % made)


def _settle(descriptors: list[int], numbers: list[int]) -> None:
    """Have these descriptors by these numbers, and no others."""
    os.setpgid(0, 0)
    for descriptor, number in zip(descriptors, numbers, strict=True):
        os.dup2(descriptor, number)
    kept = sorted(numbers)
    for last, following in zip(kept, (*kept[1:], os.sysconf("SC_OPEN_MAX")), strict=True):
        if last + 1 < following:  # os.closerange(0, 0) would close all
            os.closerange(last + 1, following)


if __name__ == "__main__":
    main()
