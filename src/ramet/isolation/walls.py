"""The walls that one sandbox really has, read from the kernel rather than from what we meant to build."""

from __future__ import annotations

import os
from collections.abc import Sequence

from ramet.isolation.kernel.cgroups import Delegation
from ramet.protocol.values.specs import Limits

_NAMESPACES = ("user", "pid", "mnt", "net", "ipc", "uts", "cgroup")


# Without a memory cgroup; `freezing.shared_memory` says why.
_EACH_PROCESS = (
    "for each process: rlimit on private memory, shared memory looked at twice a second; "
    "not counted together with others, nor with files; no memfd_create"
)


def read_walls(
    repl: int | None, limits: Limits, delegation: Delegation, direct: Sequence[tuple[str, str]] = ()
) -> dict[str, object]:
    """Describe the walls of a REPL (its pid as the engine sees it; None when it has ended). `direct`: as in ``Pod``."""
    kept_by = f"cgroup v{delegation.version}"
    found: dict[str, object] = {
        "memory": f"{limits.memory_bytes} bytes, " + (kept_by if "memory" in delegation.folders else _EACH_PROCESS),
        "processes": f"{limits.pids}, " + (kept_by if "pids" in delegation.folders else "rlimit"),
        "cpu": f"{limits.cpus:g} CPUs, {kept_by}"
        if "cpu" in delegation.folders
        else "not limited: no writable cpu cgroup",
        "disk": f"{limits.disk_bytes} bytes, size of the writable layer",
        "network": "loopback only",
        "files": "; ".join(["overlays", *(f"{path} as it is on the host ({why})" for path, why in direct)]),
    }
    if repl is None:
        return found
    try:
        with open(f"/proc/{repl}/status", encoding="ascii", errors="replace") as lines:
            status = dict(line.rstrip("\n").split(":\t", 1) for line in lines if ":\t" in line)
    except OSError:
        return found  # it has just ended
    found["namespaces"] = [name for name in _NAMESPACES if _differs(repl, name)]
    found["capabilities"] = (
        "none" if int(status["CapPrm"], 16) == 0 and int(status["CapEff"], 16) == 0 else status["CapEff"]
    )
    found["no_new_privs"] = status.get("NoNewPrivs") == "1"
    found["seccomp"] = "filter" if status.get("Seccomp") == "2" else "off"
    return found


def _differs(repl: int, name: str) -> bool:
    """Whether a process is in another namespace than the engine. False if it cannot be read."""
    try:
        return os.readlink(f"/proc/{repl}/ns/{name}") != os.readlink(f"/proc/self/ns/{name}")
    except OSError:
        return False
