"""Control groups: limits that the kernel counts, on version 2 or version 1, whichever the host has and lets us write.

`delegate` runs in the owner, before the engine starts, with the owner's rights. `PodGroup` runs in the engine and only
below what was delegated. Without a writable hierarchy there is no group, and rlimits stand in (`info()` and `doctor`
say so).
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ramet.protocol.specs import Limits

CONTROLLERS = ("memory", "pids", "cpu")
_CPU_PERIOD_MICROSECONDS = 100_000
_SHADOWS = 1  # a sandbox's shadow is in its groups too, and must not take one of the processes that were promised
_EVICTED = "left"  # where processes go that outlive their pod
_CPU_SHARES = 512  # half of the usual 1024: sandboxes yield to the engine


@dataclass(frozen=True, slots=True)
class Delegation:
    """Folders of the engine, by controller. On version 2 all controllers share one folder."""

    version: int
    folders: Mapping[str, str]

    def paths(self) -> tuple[str, ...]:
        return tuple(sorted(set(self.folders.values())))


NONE = Delegation(0, {})


def delegate(owner_uid: int | None) -> Delegation:
    """Make the engine's groups where we may. `owner_uid`: the host uid the engine will have, when it is not ours."""
    name = f"ramet-{os.getpid()}-{secrets.token_hex(4)}"
    mounts, own = _hierarchies(), _own_groups()
    folders: dict[str, str] = {}
    for controller in CONTROLLERS:
        if controller in mounts and controller in own:
            folder = os.path.normpath(f"{mounts[controller]}/{own[controller]}/{name}")
            if _make(folder, owner_uid):
                folders[controller] = folder
    if folders:
        return Delegation(1, folders)
    if "" in mounts and "" in own:
        for parent in dict.fromkeys((own[""], os.path.dirname(own[""]))):
            folder = os.path.normpath(f"{mounts['']}/{parent}/{name}")
            available = _make_version_2(folder, owner_uid)
            if available:
                return Delegation(2, dict.fromkeys(available, folder))
    return NONE


def sweep(folder: str) -> None:
    """Remove an engine's folder and the pods' folders in it, as far as they are empty."""
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder):
            if entry.is_dir(follow_symlinks=False):
                with contextlib.suppress(OSError):
                    os.rmdir(entry.path)
        os.rmdir(folder)


def sweep_dead() -> None:
    """Remove what engines left behind whose owner was killed together with its launcher."""
    mounts, own = _hierarchies(), _own_groups()
    for controller in (*CONTROLLERS, ""):
        if controller not in mounts or controller not in own:
            continue
        for parent in dict.fromkeys((own[controller], os.path.dirname(own[controller]))):
            base = os.path.normpath(f"{mounts[controller]}/{parent}")
            with contextlib.suppress(OSError):
                for name in os.listdir(base):
                    pid = name.split("-")[1] if name.startswith("ramet-") and name.count("-") == 2 else ""
                    if pid.isdigit() and not os.path.exists(f"/proc/{pid}"):
                        sweep(f"{base}/{name}")


def _hierarchies() -> dict[str, str]:
    """Mount point by controller; the key "" is version 2."""
    found: dict[str, str] = {}
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            left, _, right = line.partition(" - ")
            kind, _, options = right.split(" ", 2)
            point = left.split(" ")[4]
            if kind == "cgroup2":
                found.setdefault("", point)
            elif kind == "cgroup":
                for option in options.strip().split(","):
                    found.setdefault(option, point)
    return found


def _own_groups() -> dict[str, str]:
    found: dict[str, str] = {}
    with open("/proc/self/cgroup", encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            _, controllers, path = line.rstrip("\n").split(":", 2)
            for controller in controllers.split(","):
                found[controller] = path
    return found


def _make(folder: str, owner_uid: int | None) -> bool:
    try:
        os.mkdir(folder)
        if owner_uid is not None:
            os.chown(folder, owner_uid, owner_uid)
    except OSError:
        return False
    return True


def _make_version_2(folder: str, owner_uid: int | None) -> tuple[str, ...]:
    if not _make(folder, owner_uid):
        return ()
    for name in CONTROLLERS:  # mostly given to us already, or not ours to give
        with contextlib.suppress(OSError):
            _write(f"{os.path.dirname(folder)}/cgroup.subtree_control", f"+{name}")
    try:
        with open(f"{folder}/cgroup.controllers", encoding="ascii") as controllers:
            usable = tuple(name for name in CONTROLLERS if name in controllers.read().split())
        for name in usable:
            _write(f"{folder}/cgroup.subtree_control", f"+{name}")
        if owner_uid is not None:
            for name in ("cgroup.procs", "cgroup.subtree_control", "cgroup.threads"):
                os.chown(f"{folder}/{name}", owner_uid, owner_uid)
        if usable:
            return usable
    except OSError:
        pass
    sweep(folder)
    return ()


def _write(path: str, value: object) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, str(value).encode())
    finally:
        os.close(descriptor)


def _read(path: str) -> str:
    with open(path, encoding="ascii") as file:
        return file.read()


class PodGroup:
    """The groups of one pod. Owned by the pod; `remove` after its last process is gone."""

    def __init__(self, delegation: Delegation, name: str) -> None:
        self._delegation = delegation
        self._folders = {controller: f"{folder}/{name}" for controller, folder in delegation.folders.items()}
        self._limits: Limits | None = None
        self._memory_bytes = 0

    @classmethod
    def create(cls, delegation: Delegation, name: str, limits: Limits) -> PodGroup:
        group = cls(delegation, name)
        group._limits, group._memory_bytes = limits, limits.memory_bytes
        try:
            for folder in group._unique():
                os.mkdir(folder)
            for controller, folder in group._folders.items():
                for file, value, required in _settings(delegation.version, controller, limits):
                    try:
                        _write(f"{folder}/{file}", value)
                    except OSError:
                        if required:
                            raise
        except OSError:
            group.remove()
            raise
        return group

    def _unique(self) -> Iterator[str]:
        yield from dict.fromkeys(self._folders.values())

    def open_doors(self) -> list[int]:
        """Descriptors of the files through which a task enters these groups by writing 0."""
        door = "tasks" if self._delegation.version == 1 else "cgroup.procs"
        doors: list[int] = []
        try:
            for folder in self._unique():
                doors.append(os.open(f"{folder}/{door}", os.O_WRONLY | os.O_CLOEXEC))
        except OSError:  # no descriptors left
            for opened in doors:
                os.close(opened)
            raise
        return doors

    def set_room(self, extra_memory_bytes: int, extra_pids: int) -> bool:
        """Allow so much above the limits, instead of what was allowed before.

        False when memory in use forbids to take room away: nobody is to die of what he was allowed. Ask again later.
        """
        if self._limits is None:
            return True
        with contextlib.suppress(OSError, KeyError):
            _write(f"{self._folders['pids']}/pids.max", self._limits.pids + _SHADOWS + extra_pids)
        return self._set_memory(self._limits.memory_bytes + extra_memory_bytes)

    def _set_memory(self, wanted: int) -> bool:
        folder = self._folders.get("memory")
        if folder is None or wanted == self._memory_bytes:
            return True
        lower = wanted < self._memory_bytes
        if lower and self.memory_bytes() > wanted:
            return False
        if self._delegation.version == 1:
            files = ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"]
            if not lower:
                files.reverse()  # the limit without swap may never be above the one with
        else:
            files = ["memory.max"]
        for file in files:
            try:
                _write(f"{folder}/{file}", wanted)
            except FileNotFoundError:
                continue  # swap is only counted on some hosts
            except OSError:
                return False
        self._memory_bytes = wanted
        return True

    def evict(self, pids: Iterable[int], to: PodGroup | None = None) -> None:
        """Move processes that outlive the pod to another's groups, or to a group without limits: these can then go."""
        pids = tuple(pids)
        for controller, folder in self._delegation.folders.items():
            target = to._folders[controller] if to is not None else f"{folder}/{_EVICTED}"
            with contextlib.suppress(FileExistsError):
                os.mkdir(target)
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):  # gone by itself
                    _write(f"{target}/cgroup.procs", pid)

    def out_of_memory_kills(self) -> int:
        folder = self._folders.get("memory")
        if folder is None:
            return 0
        file = "memory.oom_control" if self._delegation.version == 1 else "memory.events"
        with contextlib.suppress(OSError, ValueError):
            for line in _read(f"{folder}/{file}").splitlines():
                key, _, value = line.partition(" ")
                if key == "oom_kill":
                    return int(value)
        return 0

    def memory_bytes(self) -> int:
        """What is on its account now; 0 where memory is not counted. In three calls: forks wait for it."""
        folder = self._folders.get("memory")
        if folder is None:
            return 0
        file = "memory.usage_in_bytes" if self._delegation.version == 1 else "memory.current"
        try:
            descriptor = os.open(f"{folder}/{file}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return 0
        try:
            return int(os.read(descriptor, 64))
        finally:
            os.close(descriptor)

    def usage(self) -> dict[str, int]:
        names = {
            1: {
                "memory_bytes": ("memory", "memory.usage_in_bytes"),
                "memory_peak_bytes": ("memory", "memory.max_usage_in_bytes"),
            },
            2: {"memory_bytes": ("memory", "memory.current"), "memory_peak_bytes": ("memory", "memory.peak")},
        }.get(self._delegation.version, {})
        found: dict[str, int] = {}
        for key, (controller, file) in {**names, "processes": ("pids", "pids.current")}.items():
            with contextlib.suppress(OSError, ValueError, KeyError):
                found[key] = int(_read(f"{self._folders[controller]}/{file}"))
        return found

    def remove(self) -> bool:
        """True when nothing is left."""
        gone = True
        for folder in self._unique():
            try:
                os.rmdir(folder)
            except FileNotFoundError:
                pass
            except OSError:
                gone = False
        return gone


def _settings(version: int, controller: str, limits: Limits) -> Sequence[tuple[str, int | str, bool]]:
    """(file, value, must it work): swap is only counted on some hosts."""
    quota = int(limits.cpus * _CPU_PERIOD_MICROSECONDS)
    settings: dict[str, list[tuple[str, int | str, bool]]]
    if version == 1:
        settings = {
            "memory": [
                ("memory.limit_in_bytes", limits.memory_bytes, True),
                ("memory.memsw.limit_in_bytes", limits.memory_bytes, False),
            ],
            "pids": [("pids.max", limits.pids + _SHADOWS, True)],
            "cpu": [
                ("cpu.cfs_period_us", _CPU_PERIOD_MICROSECONDS, True),
                ("cpu.cfs_quota_us", quota, True),
                ("cpu.shares", _CPU_SHARES, False),
            ],
        }
        return settings.get(controller, ())
    settings = {
        "memory": [("memory.max", limits.memory_bytes, True), ("memory.swap.max", 0, False)],
        "pids": [("pids.max", limits.pids + _SHADOWS, True)],
        "cpu": [("cpu.max", f"{quota} {_CPU_PERIOD_MICROSECONDS}", True), ("cpu.weight", 50, False)],
    }
    return settings.get(controller, ())
