"""The engine's process. Started by ``ramet.isolation.launch``, not by hand."""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import resource
import socket
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from ramet.engine.busy_selector import BusySelector
from ramet.engine.making.workshop import StartMachine
from ramet.engine.seams import Machine
from ramet.engine.serving import serve
from ramet.engine.settings import Settings, interrupt_waits
from ramet.protocol.values.specs import Interpreter


def start(arguments: Sequence[str] | None = None, start_machine: StartMachine | None = None) -> None:
    """Serve until the owner ends. ``start_machine`` replaces the machine below, for development without walls."""
    parser = argparse.ArgumentParser(prog="ramet.engine", description=__doc__)
    parser.add_argument("--primary", type=int, required=True, help="descriptor of the primary socket")
    parser.add_argument("--owner-pidfd", type=int, help="pidfd of the owner")
    parser.add_argument("--owner", type=int, help="process id of the owner, where it means something")
    parser.add_argument("--broker", type=int, help="descriptor of the launcher's socket")
    parser.add_argument("--listener", type=int, help="descriptor of a socket that the owner connects to")
    parser.add_argument("--sandbox-descriptors", type=int, metavar="N", help="most descriptors of a sandboxed process")
    parser.add_argument("--cgroups", type=json.loads, default={"version": 0, "folders": {}}, help="delegated groups")
    parser.add_argument("--guest", help="folder of the guest package")
    parser.add_argument("--interrupt-seconds", type=interrupt_waits, default=(1.0, 1.0, 2.0), metavar="AGAIN,HARD,KILL")
    parser.add_argument("--only-interpreter", type=json.loads, help="make sandboxes from this one; no mounts")
    parser.add_argument("--server", default="", help="name of the server, which has its sandboxes on disk again")
    parser.add_argument("--packages", help="folder of the host in which installed packages are kept")
    parser.add_argument("--images", help="folder of the host in which images of templates are kept")
    parser.add_argument("--no-images", action="store_true", help="keep none, whatever the environment says")
    parser.add_argument(
        "--history-memory-mib", type=int, metavar="N", help="memory of kept states; 5 %% of all there is"
    )
    parser.add_argument("--history-disk-mib", type=int, metavar="N", help="the same on disk; 0: none is kept there")
    parser.add_argument("--sweep-faults", action="store_true", help="for tests: each fork fails one step later")
    chosen = parser.parse_args(arguments)

    owner: int | None = chosen.owner_pidfd
    if owner is None and chosen.owner is not None:
        try:
            owner = os.pidfd_open(chosen.owner)
        except ProcessLookupError:
            return  # the owner ended before we started
    again, hard, kill = chosen.interrupt_seconds
    only = chosen.only_interpreter
    settings = Settings(
        interrupt_again_seconds=again,
        hard_interrupt_seconds=hard,
        kill_seconds=kill,
        interpreter=None if only is None else Interpreter.read(only),
        packages_folder=chosen.packages,
        history_bytes=None if chosen.history_memory_mib is None else chosen.history_memory_mib << 20,
        server=chosen.server,
    )
    if chosen.history_disk_mib is not None:
        settings = replace(settings, history_disk_bytes=chosen.history_disk_mib << 20)
    primary = socket.socket(fileno=chosen.primary)
    listener = socket.socket(fileno=chosen.listener) if chosen.listener is not None else None
    for descriptor in (chosen.primary, owner, chosen.broker, chosen.listener):
        if descriptor is not None:
            os.set_inheritable(descriptor, False)
    os.umask(0o022)
    _allow_many_descriptors()
    # No core dump: this memory contains secrets. With a handler in core_pattern the kernel ignores a limit of 0; only a
    # limit of 1 keeps it from starting the handler.
    resource.setrlimit(resource.RLIMIT_CORE, (1, 1))
    machine = start_machine or (lambda: _real_machine(chosen))
    # Objects that exist now stay for good: the garbage collector need not visit them again.
    gc.freeze()
    gc.enable()  # the command that started this process has switched it off
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(BusySelector())) as runner:
        runner.run(serve(primary, owner, machine, settings, listener))


def _allow_many_descriptors() -> None:
    """Raise the soft limit to the hard one: a sandbox takes about ten descriptors, and the usual soft limit is 1024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def _real_machine(chosen: argparse.Namespace) -> Machine:
    # The only place where the engine imports the layer that makes real sandboxes.
    from ramet.freezing import resource_limits
    from ramet.freezing.machine import Machine as RealMachine
    from ramet.isolation.kernel.cgroups import Delegation
    from ramet.protocol import fields

    resource_limits.descriptors_at_most = chosen.sandbox_descriptors
    groups: dict[str, object] = chosen.cgroups
    delegation = Delegation(fields.whole(groups, "version"), fields.text_mapping(groups, "folders"))
    machine = await RealMachine.start(socket.socket(fileno=chosen.broker), delegation, chosen.guest, chosen.images)
    if chosen.sweep_faults:
        machine.sweep_faults()
    # A cast, because it accepts bodies of its own kind only; the engine has no others.
    return cast(Machine, machine)


if __name__ == "__main__":
    start()
