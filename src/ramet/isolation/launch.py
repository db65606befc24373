"""Starts an engine as a child of the calling process: which host folders it sees, its uid, and cleaning up after it."""

from __future__ import annotations

import fcntl
import json
import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import ramet.isolation
from ramet.errors import HostNotCapable, InvalidArgument
from ramet.isolation.files import cache_folders, interpreter, skeleton
from ramet.isolation.kernel import cgroups
from ramet.isolation.own_processes import engine_uids
from ramet.isolation.own_processes.engine_uids import EngineUid
from ramet_guest import wire

NOT_CAPABLE = wire.EXIT_NOT_CAPABLE  # exit code of the launcher when the host refused a step

_SWEEP_SECONDS = 2.0  # dying sandboxes leave their cgroups within milliseconds; more than this and something is stuck

_DESCRIPTORS_AT_LEAST = 2048
_FILE_BYTES_AT_LEAST = 512 * 1024

# Descriptors per process in a sandbox, where sandboxes share the uid of their owner. The kernel counts the descriptors
# that are in flight through unix sockets per uid, and refuses to send more (ETOOMANYREFS) once the count passes the
# sender's soft RLIMIT_NOFILE, which is 1024 in most programs. A sandbox may therefore have fewer than that: one message
# can carry 253 beyond its own limit, and what else is in flight needs some room.
_USUAL_SOFT_LIMIT = 1024
_SENT_AT_ONCE = 300
_SANDBOX_DESCRIPTORS_AT_LEAST = 256

HELPER = Path(ramet.isolation.__file__).with_name("ramet-pod")

# Runs in the engine's interpreter, isolated from the owner's environment. argv: the package's folder, then options.
# A bare module stands for the package, because the real one imports the whole SDK, which the engine does not need. The
# collector of garbage would find none while modules are imported; `start` switches it on. asyncio takes it that there
# is no ssl, which an engine does not speak and which takes longer to load than the event loop.
_BOOT = (
    "import gc, sys, types; gc.disable(); sys.modules['ssl'] = None; import asyncio; del sys.modules['ssl']; "
    "folder = sys.argv.pop(1); sys.path.insert(0, folder); "
    "sys.modules['ramet'] = package = types.ModuleType('ramet'); package.__path__ = [folder + '/ramet']; "
    "from ramet.engine.__main__ import start; start()"
)


class EngineProcess:
    """The launcher, the process between owner and engine. It ends after the engine, when it has cleaned up."""

    def __init__(self, process: subprocess.Popen[bytes], log: int, groups: Sequence[str]) -> None:
        self._process = process
        self._log = log
        self._groups = groups

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait for the launcher. Returns its exit code, or None if it still runs after `timeout` seconds."""
        try:
            code = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None
        self._sweep()
        return code

    def _sweep(self) -> None:
        """Remove the engine's cgroups, which a launcher that was killed could not do.

        rmdir fails with EBUSY until the last process is gone. The kernel is still killing them (the engine is pid 1 of
        their namespaces, and dies with its launcher), so try again for a moment.
        """
        until = time.monotonic() + _SWEEP_SECONDS
        while (left := [folder for folder in self._groups if os.path.isdir(folder)]) and time.monotonic() < until:
            for folder in left:
                cgroups.sweep(folder)
            time.sleep(0.005)

    def kill(self) -> None:
        self._process.kill()

    def stderr_tail(self, size: int = 4000) -> str:
        """The end of what the engine and its launcher wrote to standard error."""
        end = os.fstat(self._log).st_size
        return os.pread(self._log, size, max(0, end - size)).decode("utf-8", "replace").strip()


def _check_limits() -> None:
    """Check the hard limits, which the engine inherits and uses in full. Raises HostNotCapable.

    A guest's own descriptors have numbers just above 1000, so a lower limit than `_DESCRIPTORS_AT_LEAST` cannot work.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY and most < _DESCRIPTORS_AT_LEAST:
        raise HostNotCapable(
            f"this process may open at most {most} files, but an engine needs {_DESCRIPTORS_AT_LEAST}",
            hint="raise the hard limit before you start it (ulimit -Hn, or LimitNOFILE= of a systemd unit)",
        )
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    if most != resource.RLIM_INFINITY and most < _FILE_BYTES_AT_LEAST:
        raise HostNotCapable(
            f"this process may write files of at most {most} bytes, but an engine needs {_FILE_BYTES_AT_LEAST}",
            hint="raise the hard limit before you start it (ulimit -Hf, or LimitFSIZE= of a systemd unit)",
        )


def _sandbox_descriptors() -> int:
    """The RLIMIT_NOFILE for sandboxes with their owner's uid, low enough for the owner to still send descriptors."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    shared = _USUAL_SOFT_LIMIT if soft == resource.RLIM_INFINITY else min(soft, _USUAL_SOFT_LIMIT)
    return max(shared - _SENT_AT_ONCE, _SANDBOX_DESCRIPTORS_AT_LEAST)


def _above_standard(descriptor: int) -> int:
    """Duplicate a descriptor to a number from 3 on. An owner without standard streams has sockets at 0, 1 or 2."""
    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)


def _names() -> tuple[Path, ...]:
    """The folder or file with the host's DNS settings, if /etc/resolv.conf is a link out of /etc.

    The proxy reads it; no pod shows it.
    """
    try:
        found = Path("/etc/resolv.conf").resolve(strict=True)
    except (OSError, RuntimeError):
        return ()
    if found.is_relative_to("/etc"):
        return ()
    # Show the folder, because the file is replaced when it changes, and a mount of a file would keep showing the old
    # one. But not a folder directly below the root, which holds much else.
    return (found.parent,) if len(found.parents) > 2 else (found,)


def start_engine(
    primary: socket.socket, options: Sequence[str] = (), listener: socket.socket | None = None
) -> EngineProcess:
    """Start an engine that serves `primary`, and every client that connects to `listener`.

    Raises HostNotCapable when the helper is missing or limits are too low, LimitReached when no uid is free. Later
    failures show as the end of the primary socket; `stderr_tail` then says why.
    """
    if not HELPER.is_file():
        raise HostNotCapable(
            f"the helper program is missing: {HELPER}",
            hint="install Ramet again: pip install --force-reinstall . in a checkout of Ramet",
        )
    _check_limits()
    # The launcher inherits its copies of all of this. Ours are closed when it has started, or failed to: a copy of the
    # engine's end kept here would hide its death.
    with ExitStack() as ours:
        own = None
        if (among := engine_uids.choices()) is not None:
            own = engine_uids.take(among)
            ours.callback(own.close)
        passed = []
        for each in (primary, listener):
            if each is not None:
                passed.append(_above_standard(each.fileno()))
                ours.callback(os.close, passed[-1])
        return _launch(passed, own, options)


def images_option() -> list[str]:
    """The engine's option for the caller's folder of images, as the caller's environment has it.

    Not in the state folder of a server: its workers can read that, and must not reach the memory of sandboxes.
    """
    folder = cache_folders.find("images") if os.environ.get("RAMET_IMAGES") != "off" else None
    return ["--no-images"] if folder is None else ["--images", folder]


def history_options() -> list[str]:
    """The engine's options for the budgets of kept states, as the caller's environment has them."""
    options = []
    for variable, option in (
        ("RAMET_HISTORY_MEMORY_MIB", "--history-memory-mib"),
        ("RAMET_HISTORY_DISK_MIB", "--history-disk-mib"),
    ):
        given = os.environ.get(variable, "")
        if given:
            if not given.isascii() or not given.isdigit() or len(given) > 9:
                raise InvalidArgument(
                    f"{variable} must be a number of MiB, got {given!r:.40}", details={"argument": variable}
                )
            options += [option, given]
    return options


def _launch(sockets: Sequence[int], own: EngineUid | None, options: Sequence[str]) -> EngineProcess:
    """Build the launcher's command line and start it.

    `sockets`: the primary one, then the listening one if there is one. `own`: the engine's uid, if it is not ours.
    """
    found = interpreter.find(sys.executable)
    package = Path(ramet.isolation.__file__).resolve().parent.parent
    guest = package.with_name("ramet_guest")
    shown = (*skeleton.system_folders(), *found.trees)
    trees = [
        *shown,
        *(str(path) for path in (package, guest, *_names()) if not any(path.is_relative_to(tree) for tree in shown)),
    ]
    base_uid = own.uid if own is not None else None
    # The groups of dead engines first, so that they do not add up.
    cgroups.sweep_dead()
    delegation = cgroups.delegate(base_uid)
    command = [str(HELPER), "launch", "--owner", str(os.getpid()), "--primary", str(sockets[0])]
    for listener in sockets[1:]:
        command += ["--listener", str(listener)]
    if base_uid is not None:
        command += ["--base-uid", str(base_uid)]
    for tree in trees:
        command += ["--tree", tree]
    for at, to in (*skeleton.system_links(), *found.links):
        command += ["--link", at, to]
    for folder in delegation.paths():
        command += ["--cgroup", folder]
    cgroup_option = json.dumps({"version": delegation.version, "folders": dict(delegation.folders)})
    # Without site (-S): the engine needs no package but its own, and no .pth file has to run code in it.
    command += ["--", sys.executable, "-I", "-S", "-c", _BOOT, str(package.parent)]
    command += ["--primary", str(wire.ENGINE_PRIMARY)]
    command += ["--owner-pidfd", str(wire.ENGINE_OWNER_PIDFD), "--broker", str(wire.ENGINE_BROKER)]
    command += ["--cgroups", cgroup_option, "--guest", str(guest), *options]
    if sockets[1:]:
        command += ["--listener", str(wire.ENGINE_LISTENER)]
    if base_uid is None:
        command += ["--sandbox-descriptors", str(_sandbox_descriptors())]
    # An engine that serves others keeps no packages for them on disk.
    packages = cache_folders.find("packages") if "--only-interpreter" not in options else None
    if packages is not None:
        command += ["--packages", packages]
    if not any(option.startswith(("--images", "--no-images")) for option in options):
        command += images_option()
    if not any(option.startswith("--history-") for option in options):
        command += history_options()
    # A memfd rather than a pipe: the engine never blocks on it, and its end can be read after a crash.
    log = os.memfd_create("ramet-engine-log", os.MFD_CLOEXEC)
    # The lock on the engine's uid belongs to the open file. The launcher keeps it open, and so holds the lock until it
    # ends.
    passed = [*sockets, *([own.lock] if own is not None and own.lock is not None else [])]
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=passed, env={}, cwd="/"
        )
    except BaseException:
        # The launcher removes the groups at its end, but there is none.
        cgroups.undo(delegation)
        os.close(log)
        raise
    return EngineProcess(process, log, delegation.paths())
