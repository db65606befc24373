"""Control groups: limits that the kernel counts, on version 2 or version 1, whichever the host has and lets us write.

`delegate` runs in the owner, before the engine starts, with the owner's rights. `PodGroup` runs in the engine and only
below what was delegated. Without a writable hierarchy there is no group, and rlimits stand in (`info()` and `doctor`
say so).

Version 2 shares controllers out only where no process stands: to the groups below an empty one. An engine's groups are
therefore made beside the owner's own group, where that is allowed. Nobody is moved for it, with one exception:
`step_aside`, which only a server calls.
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
SERVER_GROUP = "ramet-server"  # where a server goes whose whole group was given to it
_EVICTED = "left"  # where processes go that outlive their pod
_NO_LIMIT = 1 << 60  # version 1 writes the largest number it has where there is no limit
_CPU_SHARES = 512  # half of the usual 1024: sandboxes yield to the engine


@dataclass(frozen=True, slots=True)
class Delegation:
    """Folders of the engine, by controller. On version 2 all controllers share one folder."""

    version: int
    folders: Mapping[str, str]
    # Controllers that were switched on for it in the group above its folder, and were off before.
    switched_on: tuple[str, ...] = ()

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
            made = _delegate_version_2(os.path.normpath(f"{mounts['']}/{parent}/{name}"), owner_uid)
            if made is not None:
                return made
    return NONE


def undo(made: Delegation) -> None:
    """Take back what `delegate` did a moment ago. The groups of an engine that ran are swept, and no more than that:
    whatever it had switched on in a group above, others may count on by now."""
    for folder in made.paths():
        _take_back(folder, made.switched_on)


def step_aside() -> bool:
    """Move this process, alone in a group that was given to it as a whole, into a group below: engines find room then.

    For `ramet serve` as a systemd service with Delegate=yes, or as the one process of a container: its group may be
    shared out, but not while it stands in it. True when it stands below now. Anything else stays as it is.
    """
    mount, own = _hierarchies().get(""), _own_groups().get("")
    if mount is None or own is None:
        return False
    group = os.path.normpath(f"{mount}/{own}")
    leaf = f"{group}/{SERVER_GROUP}"
    try:
        if not _is_given_as_a_whole(group, own) or not _among_ours(_read(f"{group}/cgroup.controllers")):
            return False
        if _read(f"{group}/cgroup.procs").split() != [str(os.getpid())]:
            return False
        with contextlib.suppress(FileExistsError):  # of a server that was killed
            os.mkdir(leaf)
        _write(f"{leaf}/cgroup.procs", os.getpid())
    except OSError:
        return False
    if _switch_on(group) is not None:
        return True
    with contextlib.suppress(OSError):  # somebody came in meanwhile, or the controllers are not ours to give
        _write(f"{group}/cgroup.procs", os.getpid())
        os.rmdir(leaf)
    return False


def _is_given_as_a_whole(group: str, own: str) -> bool:
    """Whether systemd has marked the group (Delegate=yes), or it is the top of a cgroup namespace of our own."""
    if own == "/":
        return not _is_top(group)
    try:
        return os.getxattr(group, "user.delegate") == b"1"
    except OSError:
        return False


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


def memory_limit() -> int | None:
    """The least of the limits of memory that this process stands under, in bytes. None: nobody has set one."""
    found = []
    for controller, file in (("memory", "memory.limit_in_bytes"), ("", "memory.max")):
        for folder in _upwards(controller):
            with contextlib.suppress(OSError, ValueError):  # "max"; or a group that has no such file, as the top
                found.append(int(_read(f"{folder}/{file}")))
    return min((limit for limit in found if limit < _NO_LIMIT), default=None)


def _upwards(controller: str) -> Iterator[str]:
    """The own group in a hierarchy and those above it, as far as they are in sight."""
    top, own = _hierarchies().get(controller), _own_groups().get(controller)
    if top is None or own is None:
        return
    folder = os.path.normpath(f"{top}/{own}")
    if not os.path.isdir(folder):
        folder = top  # a container without a cgroup namespace: its own group is mounted there, under another path
    while folder.startswith(top):
        yield folder
        if folder == top:
            return
        folder = os.path.dirname(folder)


class Surroundings:
    """The group that the engine and its sandboxes stand in together, where pods have none that counts memory.

    A limit of it, a container's for instance, is held by the kernel, which then ends one process of them.
    """

    def __init__(self, delegation: Delegation) -> None:
        self._file: str | None = None
        self._told = 0  # kills that were told as the reason of some end: one end each
        if "memory" not in delegation.folders:
            places = [("memory", "memory.oom_control"), ("", "memory.events")]
            files = [f"{next(_upwards(controller), '')}/{file}" for controller, file in places]
            self._file = next(filter(os.path.isfile, files), None)
            self._told = self.kills()

    def kills(self) -> int:
        """So many processes were ended there so far because memory ran out; 0 where pods count for themselves."""
        return _count_kills(self._file) if self._file is not None else 0

    def explain(self, kills_before: int) -> bool:
        """Whether the end of a process that began with so many kills was one of those that followed."""
        if self.kills() <= max(kills_before, self._told):
            return False
        self._told = max(kills_before, self._told) + 1
        return True


def _count_kills(file: str) -> int:
    with contextlib.suppress(OSError, ValueError):
        for line in _read(file).splitlines():
            key, _, value = line.partition(" ")
            if key == "oom_kill":
                return int(value)
    return 0


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


def _delegate_version_2(folder: str, owner_uid: int | None) -> Delegation | None:
    """The engine's folder with all controllers that can be had there. None, and no trace, where there is none."""
    switched_on = _switch_on(os.path.dirname(folder)) or ()
    usable: tuple[str, ...] = ()
    if _make(folder, owner_uid):
        try:
            usable = _among_ours(_read(f"{folder}/cgroup.controllers"))
            if usable:
                _write(f"{folder}/cgroup.subtree_control", _signed("+", usable))
            if owner_uid is not None:
                for name in ("cgroup.procs", "cgroup.subtree_control", "cgroup.threads"):
                    os.chown(f"{folder}/{name}", owner_uid, owner_uid)
        except OSError:
            usable = ()
    if usable:
        return Delegation(2, dict.fromkeys(usable, folder), switched_on)
    _take_back(folder, switched_on)
    return None


def _take_back(folder: str, switched_on: Sequence[str]) -> None:
    sweep(folder)
    if switched_on:
        with contextlib.suppress(OSError):  # EBUSY while an engine there uses them
            _write(f"{os.path.dirname(folder)}/cgroup.subtree_control", _signed("-", switched_on))


def _switch_on(group: str) -> tuple[str, ...] | None:
    """Share a group's controllers out to the groups below. Gives those that were off before, None where it is refused.

    All in one write, which the kernel takes or refuses as a whole. One by one, pids and cpu would be taken also where
    processes stand: that turns the group into a threaded one, below which memory can never be counted, for good.
    """
    try:
        wanted = _among_ours(_read(f"{group}/cgroup.controllers"))
        on = _read(f"{group}/cgroup.subtree_control").split()
        missing = tuple(name for name in wanted if name not in on)
        if not missing:
            return ()
        # Without memory among them nothing would make the kernel refuse. The top of the hierarchy may hold processes.
        alone = "memory" in missing or _is_top(group) or not _read(f"{group}/cgroup.procs")
        if not alone:
            return None
        _write(f"{group}/cgroup.subtree_control", _signed("+", missing))
        if not _is_top(group) and _read(f"{group}/cgroup.type") != "domain\n":  # somebody came in meanwhile
            _write(f"{group}/cgroup.subtree_control", _signed("-", missing))
            return None
    except OSError:
        return None
    return missing


def _is_top(group: str) -> bool:
    """Whether it is the real top of the hierarchy, also where that is not seen by its path: a namespace has its own."""
    return not os.path.exists(f"{group}/cgroup.type")


def _among_ours(names: str) -> tuple[str, ...]:
    there = names.split()
    return tuple(name for name in CONTROLLERS if name in there)


def _signed(sign: str, names: Iterable[str]) -> str:
    return " ".join(f"{sign}{name}" for name in names)


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
        return _count_kills(f"{folder}/{file}")

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

    def memory_at_most(self) -> int:
        """What its processes have written, in memory and in swap, and not more; 0 where that is not known."""
        folder = self._folders.get("memory")
        if folder is None:
            return 0
        with contextlib.suppress(OSError, ValueError):
            if self._delegation.version == 1:
                return int(_read(f"{folder}/memory.memsw.usage_in_bytes"))
            return self.memory_bytes() + int(_read(f"{folder}/memory.swap.current"))
        # Swap is not counted here. Without any there is none to count.
        with contextlib.suppress(OSError):
            if len(_read("/proc/swaps").splitlines()) <= 1:
                return self.memory_bytes()
        return 0

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
