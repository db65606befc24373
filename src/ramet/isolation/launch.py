"""Starting an engine as a child of the calling process: what it may see, who it is, and what it leaves behind."""

from __future__ import annotations

import json
import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import ramet.isolation
from ramet.errors import HostNotCapable
from ramet.isolation import cgroups, interpreter, package_folder, skeleton

NOT_CAPABLE = 71  # exit code of the launcher when the host refused a step; native/common.h has it too

# As root, uid 0 of the engine's namespace is this host uid, which no distribution hands out.
ENGINE_UID = 1_500_000_000

_SWEEP_SECONDS = 2.0

_NEEDED_CAPABILITIES = 1 << 21 | 1 << 7 | 1 << 6  # CAP_SYS_ADMIN, CAP_SETUID, CAP_SETGID

_DESCRIPTORS_AT_LEAST = 2048

HELPER = Path(ramet.isolation.__file__).with_name("ramet-pod")

# Runs in the engine's interpreter, isolated from the owner's environment; argv: folder of the package, options.
_BOOT = "import sys; sys.path.insert(0, sys.argv.pop(1)); from ramet.engine.__main__ import start; start()"


class EngineProcess:
    """The launcher that stands between owner and engine. It ends when the engine ends, after cleaning up."""

    def __init__(self, process: subprocess.Popen[bytes], log: int, groups: Sequence[str]) -> None:
        self._process = process
        self._log = log
        self._groups = groups

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait(self, timeout: float | None = None) -> int | None:
        """Its exit code, or None when it is still there after `timeout` seconds."""
        try:
            code = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None
        self._sweep()
        return code

    def _sweep(self) -> None:
        """A launcher that was killed has not cleaned up; what it watched over dies with it, a moment later."""
        until = time.monotonic() + _SWEEP_SECONDS
        while (left := [folder for folder in self._groups if os.path.isdir(folder)]) and time.monotonic() < until:
            for folder in left:
                cgroups.sweep(folder)
            time.sleep(0.005)

    def kill(self) -> None:
        self._process.kill()

    def stderr_tail(self, size: int = 4000) -> str:
        """The end of what the engine or its launcher wrote to standard error."""
        end = os.fstat(self._log).st_size
        return os.pread(self._log, size, max(0, end - size)).decode("utf-8", "replace").strip()


def engine_uid() -> int | None:
    """The host uid that will be root of the engine's namespace, when we are root and may choose; None: our own."""
    if os.geteuid() != 0:
        return None
    with open("/proc/self/status", encoding="ascii") as lines:
        held = next(int(line.split()[1], 16) for line in lines if line.startswith("CapEff:"))
    if held & _NEEDED_CAPABILITIES != _NEEDED_CAPABILITIES:
        return None
    with open("/proc/self/uid_map", encoding="ascii") as lines:
        ranges = [(int(inside), int(count)) for inside, _, count in (line.split() for line in lines)]
    if any(first <= ENGINE_UID < first + count for first, count in ranges):
        return ENGINE_UID
    last = max(first + count - 1 for first, count in ranges)  # in a container: the last id it has
    return last if last > 0 else None


def _check_descriptors() -> None:
    """The engine takes all that the hard limit gives; a guest's own descriptors are just above 1000."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY and most < _DESCRIPTORS_AT_LEAST:
        raise HostNotCapable(
            f"this process may open {most} descriptors at most, and an engine needs {_DESCRIPTORS_AT_LEAST}",
            hint="raise the hard limit before you start it (ulimit -Hn, or LimitNOFILE= of a systemd unit)",
        )


def _names() -> tuple[Path, ...]:
    """Where it is written who knows the names of hosts, if /etc only points there. For the proxy; no pod shows it."""
    try:
        found = Path("/etc/resolv.conf").resolve(strict=True)
    except (OSError, RuntimeError):
        return ()
    if found.is_relative_to("/etc"):
        return ()
    # The folder, because the file is replaced when it changes; but not one of the top, which holds much else.
    return (found.parent,) if len(found.parents) > 2 else (found,)


def start_engine(primary: socket.socket, options: Sequence[str] = ()) -> EngineProcess:
    """Start an engine that serves `primary`. Failures show as the end of that socket; `stderr_tail` says why."""
    if not HELPER.is_file():
        raise HostNotCapable(
            f"the helper program is missing: {HELPER}", hint="install Ramet again: pip install --force-reinstall ramet"
        )
    _check_descriptors()
    found = interpreter.find(sys.executable)
    package = Path(ramet.isolation.__file__).resolve().parent.parent
    guest = package.with_name("ramet_guest")
    shown = (*skeleton.system_folders(), *found.trees)
    trees = [
        *shown,
        *(str(path) for path in (package, guest, *_names()) if not any(path.is_relative_to(tree) for tree in shown)),
    ]
    base_uid = engine_uid()
    cgroups.sweep_dead()
    delegation = cgroups.delegate(base_uid)
    command = [str(HELPER), "launch", "--owner", str(os.getpid()), "--primary", str(primary.fileno())]
    if base_uid is not None:
        command += ["--base-uid", str(base_uid)]
    for tree in trees:
        command += ["--tree", tree]
    for at, to in (*skeleton.system_links(), *found.links):
        command += ["--link", at, to]
    for folder in delegation.paths():
        command += ["--cgroup", folder]
    cgroup_option = json.dumps({"version": delegation.version, "folders": dict(delegation.folders)})
    command += ["--", sys.executable, "-I", "-c", _BOOT, str(package.parent), "--primary", "3", "--owner-pidfd", "4"]
    command += ["--broker", "5", "--cgroups", cgroup_option, "--guest", str(guest), *options]
    # An engine that serves others keeps no files for them.
    packages = package_folder.find() if "--only-interpreter" not in options else None
    if packages is not None:
        command += ["--packages", packages]
    log = os.memfd_create("ramet-engine-log", os.MFD_CLOEXEC)
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=[primary.fileno()], env={}, cwd="/"
        )
    except OSError:
        for folder in delegation.paths():
            cgroups.sweep(folder)
        os.close(log)
        raise
    return EngineProcess(process, log, delegation.paths())
