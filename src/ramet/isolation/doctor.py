"""Finds out what this host can do for a sandbox, by trying it, and gives the command that fixes what is missing."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import ramet.isolation
from ramet.isolation import hints, launch
from ramet.isolation.kernel import cgroups
from ramet.isolation.own_processes import engine_uids, powers
from ramet.protocol.lazy_dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """One feature that a sandbox needs or benefits from."""

    name: str
    ok: bool
    needed: bool  # without it there are no sandboxes, or none that can be forked
    detail: str
    fix: str | None = None
    tried: bool = True  # False: it needs another feature that is missing and has its own finding


_WHAT = {
    "user-namespace": "user namespaces for ordinary users",
    "nested-user-namespace": "user namespaces inside one another",
    "mount": "mounts in a user namespace",
    "read-only-tree": "read-only views of host folders",
    "own-root": "a file tree separate from the host's",
    "proc": "a separate /proc in a pid namespace",
    "overlay": "a writable layer in memory over read-only folders",
    "overlay-folders": "removing folders of the system or of the interpreter in that layer",
    "network-namespace": "a separate network with loopback only",
    "join-namespaces": "entering the namespaces of a sandbox",
    "hostname": "a host name of its own",
    "seccomp": "a filter of system calls",
    "ptrace": "stopping a process to freeze it",
    "fetch-descriptors": "passing file descriptors to a sandbox",
    "compare-processes": "comparing processes before a fork",
    "thread-ids": "restoring threads with their old ids",
}

_NOT_NEEDED = ("overlay-folders", "hostname")
ONLY_FOR_FORKS = ("compare-processes",)


def examine() -> list[Finding]:
    """Try everything. Needed features come first."""
    done = subprocess.run(
        [str(launch.HELPER), "probe"], capture_output=True, text=True, check=False, env={}, timeout=60
    )
    found = [_finding(*line.split(" ", 2)) for line in done.stdout.splitlines()]
    if len(found) < len(_WHAT):
        found.append(
            Finding("probe", False, True, f"the probe ended early: {done.stderr.strip()}", "install Ramet again")
        )
    network = next((one for one in found if one.name == "network-namespace"), None)
    found.append(_packet_rules(network))
    found.append(_control_groups())
    found.append(_identity())
    return found


def _finding(answer: str, name: str, reason: str = "") -> Finding:
    """The finding for one line of the probe's output."""
    what, needed = _WHAT.get(name, name), name not in _NOT_NEEDED
    if answer == "untried":
        return _not_tried(name, needed, what, reason)
    ok = answer == "ok"
    return Finding(name, ok, needed, f"{what}: {reason}" if reason else what, None if ok else _fix(name, reason))


def _not_tried(name: str, needed: bool, what: str, missing: str) -> Finding:
    return Finding(name, False, needed, f"{what}: not tried: needs {missing}", tried=False)


def hint() -> str:
    """A hint about the first missing feature, for an error message."""
    for finding in examine():
        if finding.needed and not finding.ok and finding.tried:
            return f"{finding.detail}. {finding.fix or ''}".strip() + " (more: ramet doctor)"
    return "run: ramet doctor"


def _setting(path: str) -> str | None:
    try:
        with open(path, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return None


def _fix(name: str, reason: str) -> str:
    if name in ("user-namespace", "nested-user-namespace", "mount", "read-only-tree", "network-namespace"):
        return _allow_namespaces()
    if name == "proc" and hints.proc_is_masked():
        return hints.container()
    if name == "overlay" and not hints.is_refusal(reason):
        return f"needs Linux 5.15 or newer with overlayfs (this is {platform.release()})"
    if name == "overlay-folders":
        return f"needs Linux 6.6 or newer (this is {platform.release()}); everything else works without"
    if name == "hostname":
        return f"{hints.container(hints.proc_is_masked())}; everything else works without"
    if name == "ptrace" and _setting("/proc/sys/kernel/yama/ptrace_scope") == "3":
        return "kernel.yama.ptrace_scope=3 can only be undone by a reboot: set it to 1 in /etc/sysctl.d"
    return hints.container(hints.proc_is_masked())


def _allow_namespaces() -> str:
    if _setting("/proc/sys/kernel/unprivileged_userns_clone") == "0":
        return "run: sudo sysctl -w kernel.unprivileged_userns_clone=1"
    if _setting("/proc/sys/user/max_user_namespaces") in ("0", "1", "2"):
        return "run: sudo sysctl -w user.max_user_namespaces=65536"
    if os.geteuid() == 0 and not powers.has_capability(powers.CAP_SETFCAP):
        # Since Linux 5.12 this capability is required to map uid 0 to the real uid 0.
        return "root needs CAP_SETFCAP for this: run as another user, or in a container: docker run --cap-add SETFCAP"
    restricted = _setting("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == "1"
    if hints.in_container() or not restricted:
        flags = hints.container(hints.proc_is_masked())
        return f"{flags}; on its host: {_WITHOUT_APPARMOR}" if restricted else flags
    return (
        f"allow them for Ramet: write these lines to /etc/apparmor.d/ramet, then run: "
        f"sudo apparmor_parser -r /etc/apparmor.d/ramet\n\n{apparmor_profile(str(launch.HELPER))}\n"
        f"or allow them for every program, until the next boot: {_WITHOUT_APPARMOR}"
    )


_WITHOUT_APPARMOR = "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"


def apparmor_profile(helper: str) -> str:
    """The AppArmor profile that allows our helper user namespaces, on hosts that restrict them by program."""
    path = re.sub(r'([][{}*?^"\\])', r"\\\1", os.path.realpath(helper))
    return f"""abi <abi/4.0>,
include <tunables/global>

profile ramet "{path}" flags=(unconfined) {{
  userns,
}}
"""


def _packet_rules(network: Finding | None) -> Finding:
    """Try packet rules in a network namespace that the helper makes: a host may allow these to the helper alone."""
    name, detail = "packet-rules", "raw TCP of sandboxes with a network, redirected by packet rules (nf_tables)"
    if network is None or not network.ok:
        missing = "network-namespace" if network is None or network.tried else "user-namespace"
        return _not_tried(name, False, detail, missing)
    package = str(Path(ramet.isolation.__file__).resolve().parent.parent.parent)
    boot = "import sys; sys.path.insert(0, sys.argv[1]); from ramet.isolation.kernel.packet_rules import probe; probe()"
    done = subprocess.run(
        [str(launch.HELPER), "network", sys.executable, "-I", "-c", boot, package],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONDONTWRITEBYTECODE": "1"},
        timeout=60,
    )
    if done.returncode == 0:
        return Finding(name, True, False, detail)
    said = done.stderr.strip().splitlines()[-1:] or ["it ended without a message"]
    fix = "run: sudo modprobe nf_tables nft_chain_nat nft_redir nft_reject_ipv4; programs that use proxies work without"
    return Finding(name, False, False, f"{detail}: {said[0]}", fix)


def _control_groups() -> Finding:
    made = cgroups.delegate(None)
    cgroups.undo(made)
    missing = [name for name in cgroups.CONTROLLERS if name not in made.folders]
    if made == cgroups.NONE:
        detail = "no writable control group: rlimits limit memory and processes per process, and nothing limits CPU"
    else:
        detail = f"control groups version {made.version}: {', '.join(sorted(made.folders))}"
        detail += f"; without {', '.join(missing)}" if missing else ""
    fix = _give_controllers(made) if missing else None
    return Finding("control-groups", not missing, False, detail, fix)


def _has_systemd() -> bool:
    return os.path.isdir("/run/systemd/system")


def _give_controllers(made: cgroups.Delegation) -> str:
    """How to get the controllers that are missing."""
    if hints.in_container():
        return (
            "in a container: make /sys/fs/cgroup writable there, in a cgroup namespace of its own; "
            "without that, limits are rlimits"
        )
    if not _has_systemd():
        return "make a control group that you may write to, and start your program in a group below it"
    service = "a systemd service with Delegate=yes (docs/server.md)"
    if os.geteuid() == 0:
        return f"run: systemd-run --scope -p Delegate=yes -- your command; or make it {service}"
    if made == cgroups.NONE:
        return f"run: systemd-run --user --scope -p Delegate=yes -- your command; or make it {service}"
    # Before systemd 252 user managers were not given the cpu controller.
    return (
        "run: sudo systemctl edit user@.service, write the two lines [Service] and "
        f"Delegate={' '.join(sorted(cgroups.CONTROLLERS))} there, and log in again; or make it {service}"
    )


def _identity() -> Finding:
    among = engine_uids.choices()
    if among is None:
        who = (
            f"your own uid {os.geteuid()}; pipe memory and similar resources count together with those of your programs"
        )
    else:
        who = f"a host uid from {among[0]} to {among[-1]} that no other engine uses"
    shared = "all sandboxes of an engine share it, so inotify instances and pipe memory count together"
    return Finding("identity", True, False, f"sandboxes run as {who}; {shared}")
