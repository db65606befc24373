"""What this host can do for a sandbox: tried, not read from versions, each with the command that would mend it."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import ramet.isolation
from ramet.isolation import cgroups, launch


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing a sandbox needs or profits from."""

    name: str
    ok: bool
    needed: bool  # without it there is no sandbox
    detail: str
    fix: str | None = None


_WHAT = {
    "user-namespace": "user namespaces for ordinary users",
    "nested-user-namespace": "user namespaces inside one another",
    "mount": "mounts in a user namespace",
    "read-only-tree": "read-only views of host folders",
    "proc": "an own /proc in a pid namespace",
    "overlay": "a writable layer in memory over read-only folders",
    "overlay-folders": "removing folders of the system or of the interpreter in that layer",
    "network-namespace": "an own network with loopback only",
    "seccomp": "a filter of system calls",
    "ptrace": "stopping a process to freeze it",
    "thread-ids": "waking threads under their old ids",
}

_NOT_NEEDED = ("overlay-folders",)


def examine() -> list[Finding]:
    """Every finding, the needed ones first."""
    done = subprocess.run(
        [str(launch.HELPER), "probe"], capture_output=True, text=True, check=False, env={}, timeout=60
    )
    found = []
    for line in done.stdout.splitlines():
        answer, _, rest = line.partition(" ")
        name, _, reason = rest.partition(" ")
        ok = answer == "ok"
        detail = _WHAT.get(name, name) + (f": {reason}" if reason else "")
        found.append(Finding(name, ok, name not in _NOT_NEEDED, detail, None if ok else _fix(name)))
    if len(found) < len(_WHAT):
        found.append(
            Finding("probe", False, True, f"the probe ended early: {done.stderr.strip()}", "install Ramet again")
        )
    found.append(_packet_rules())
    found.append(_control_groups())
    found.append(_identity())
    return found


def hint() -> str:
    """What to do about the first thing that is missing, for an error message."""
    for finding in examine():
        if finding.needed and not finding.ok:
            return f"{finding.detail}. {finding.fix or ''}".strip() + " (more: ramet doctor)"
    return "run: ramet doctor"


def _setting(path: str) -> str | None:
    try:
        with open(path, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return None


def _fix(name: str) -> str:
    if name in ("user-namespace", "nested-user-namespace", "mount", "read-only-tree", "network-namespace"):
        if _setting("/proc/sys/kernel/unprivileged_userns_clone") == "0":
            return "run: sudo sysctl -w kernel.unprivileged_userns_clone=1"
        if _setting("/proc/sys/user/max_user_namespaces") in ("0", "1", "2"):
            return "run: sudo sysctl -w user.max_user_namespaces=65536"
        if _setting("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == "1":
            return "run: sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"
        options = "--security-opt seccomp=unconfined --security-opt apparmor=unconfined"
        return f"in a container: allow user namespaces (docker run {options})"
    if name == "proc":
        return "in a container: unmask /proc (docker run --security-opt systempaths=unconfined)"
    if name == "overlay":
        return f"needs Linux 5.15 or newer with overlayfs (this is {platform.release()})"
    if name == "overlay-folders":
        return f"needs Linux 6.6 or newer (this is {platform.release()}); everything else works without"
    if name == "ptrace" and _setting("/proc/sys/kernel/yama/ptrace_scope") == "3":
        return "kernel.yama.ptrace_scope=3 can only be undone by a reboot: set it to 1 in /etc/sysctl.d"
    if name in ("ptrace", "seccomp", "thread-ids"):
        return "in a container: docker run --security-opt seccomp=unconfined"
    return "see docs/limits.md"


def _packet_rules() -> Finding:
    """Tried by a process of its own, which makes itself a network first."""
    package = str(Path(ramet.isolation.__file__).resolve().parent.parent.parent)
    boot = "import sys; sys.path.insert(0, sys.argv[1]); from ramet.isolation.packet_rules import probe; probe()"
    done = subprocess.run(
        [sys.executable, "-I", "-c", boot, package],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONDONTWRITEBYTECODE": "1"},
        timeout=60,
    )
    detail = "raw TCP of sandboxes with a network, redirected by packet rules (nf_tables)"
    if done.returncode == 0:
        return Finding("packet-rules", True, False, detail)
    reason = done.stderr.strip().splitlines()[-1:] or ["it ended without saying why"]
    fix = "run: sudo modprobe nf_tables nft_chain_nat nft_redir nft_reject_ipv4; programs that know proxies need none"
    return Finding("packet-rules", False, False, f"{detail}: {reason[0]}", fix)


def _control_groups() -> Finding:
    made = cgroups.delegate(None)
    for folder in made.paths():
        cgroups.sweep(folder)
    if made == cgroups.NONE:
        return Finding(
            "control-groups", False, False,
            "no writable control group: memory and processes are limited by rlimits per process, CPU not at all",
            "with systemd: systemd-run --user --scope -p Delegate=yes -- your command",
        )  # fmt: skip
    missing = [name for name in cgroups.CONTROLLERS if name not in made.folders]
    detail = f"control groups version {made.version}: {', '.join(sorted(made.folders))}"
    return Finding(
        "control-groups", not missing, False, detail + (f"; without {', '.join(missing)}" if missing else "")
    )


def _identity() -> Finding:
    base = launch.engine_uid()
    who = f"the host's unused uid {base}" if base is not None else f"your own uid {os.geteuid()}"
    shared = "all sandboxes share it: inotify instances and pipe memory are counted together"
    return Finding("identity", True, False, f"sandboxes run as {who}; {shared}")
