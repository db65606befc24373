"""Starting an engine as a child of the calling process: what it may see, who it is, and what it leaves behind."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import ramet.isolation
from ramet.errors import HostNotCapable
from ramet.isolation import cgroups, interpreter, skeleton

# As root, uid 0 of the engine's namespace is this host uid: one that no distribution hands out, below systemd's ranges' end.
ENGINE_UID = 1_500_000_000

HELPER = Path(ramet.isolation.__file__).with_name("ramet-pod")

# Runs in the engine's interpreter, isolated from the owner's environment variables; argv: folder of the package, options.
_BOOT = "import sys; sys.path.insert(0, sys.argv.pop(1)); from ramet.engine.__main__ import start; start()"


class EngineProcess:
    """The launcher that stands between owner and engine. It ends when the engine ends, after cleaning up."""

    def __init__(self, process: subprocess.Popen[bytes], log: int) -> None:
        self._process = process
        self._log = log

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait(self, timeout: float | None = None) -> int | None:
        """Its exit code, or None when it is still there after `timeout` seconds."""
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> None:
        self._process.kill()

    def stderr_tail(self, size: int = 4000) -> str:
        """The end of what the engine or its launcher wrote to standard error."""
        end = os.fstat(self._log).st_size
        return os.pread(self._log, size, max(0, end - size)).decode("utf-8", "replace").strip()


def start_engine(primary: socket.socket, options: Sequence[str] = ()) -> EngineProcess:
    """Start an engine that serves `primary`. Failures show as the end of that socket; `stderr_tail` says why."""
    if not HELPER.is_file():
        raise HostNotCapable(f"the helper program is missing: {HELPER}", hint="install Ramet again: pip install --force-reinstall ramet")
    found = interpreter.find(sys.executable)
    package = Path(ramet.isolation.__file__).resolve().parent.parent
    guest = package.with_name("ramet_guest")
    shown = (*skeleton.system_folders(), *found.trees)
    trees = [*shown, *(str(folder) for folder in (package, guest) if not any(folder.is_relative_to(tree) for tree in shown))]
    as_root = os.geteuid() == 0
    cgroups.sweep_dead()
    delegation = cgroups.delegate(ENGINE_UID if as_root else None)
    command = [str(HELPER), "launch", "--owner", str(os.getpid()), "--primary", str(primary.fileno())]
    if as_root:
        command += ["--base-uid", str(ENGINE_UID)]
    for tree in trees:
        command += ["--tree", tree]
    for at, to in (*skeleton.system_links(), *found.links):
        command += ["--link", at, to]
    for folder in delegation.paths():
        command += ["--cgroup", folder]
    cgroup_option = json.dumps({"version": delegation.version, "folders": dict(delegation.folders)})
    command += ["--", sys.executable, "-I", "-c", _BOOT, str(package.parent), "--primary", "3", "--owner-pidfd", "4"]
    command += ["--broker", "5", "--cgroups", cgroup_option, "--guest", str(guest), *options]
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
    return EngineProcess(process, log)
