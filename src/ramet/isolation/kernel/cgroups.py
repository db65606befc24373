"""Control groups, version 2 or version 1, whichever the host has and lets us write.

`delegate` runs in the owner, before the engine starts, with the owner's rights. `PodGroup` runs in the engine and works
only below what was delegated. Without a writable hierarchy there is no group and rlimits are used instead; `info()` and
`doctor` say so.

Version 2 does not allow processes in a group that distributes controllers to its children ("no internal processes"). An
engine's groups are therefore made next to the owner's own group, where that is allowed. No process is moved for this,
except by `step_aside`, which only a server calls.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ramet.protocol.lazy_dataclasses import dataclass
from ramet.protocol.values.specs import Limits

CONTROLLERS = ("memory", "pids", "cpu")
_CPU_PERIOD_MICROSECONDS = 100_000
# A sandbox's shadow is in its groups too, and must not use up one of the processes that its owner asked for.
_SHADOWS = 1
SERVER_GROUP = "ramet-server"  # group below its own into which `step_aside` moves a server
_EVICTED = "left"  # group without limits, for processes that outlive their pod
_NO_LIMIT = 1 << 60  # version 1 reports the largest page-aligned number where no limit is set
_CPU_SHARES = 512  # half of the default 1024: sandboxes yield to the engine


@dataclass(frozen=True, slots=True)
class Delegation:
    """The engine's folders, by controller. On version 2 all controllers share one folder."""

    version: int
    folders: Mapping[str, str]
    # Controllers that `delegate` enabled in the parent group and that were disabled before.
    switched_on: tuple[str, ...] = ()

    def paths(self) -> tuple[str, ...]:
        return tuple(sorted(set(self.folders.values())))


NONE = Delegation(0, {})


def delegate(owner_uid: int | None) -> Delegation:
    """Make the engine's groups where we may write. `owner_uid`: the host uid of the engine, when it is not ours.

    Returns NONE where no hierarchy is writable.
    """
    name = f"ramet-{os.getpid()}-{secrets.token_hex(4)}"
    mounts, own = _hierarchies(), _own_groups()
    folders: dict[str, str] = {}
    # On version 1 each controller has a hierarchy of its own, and groups with processes may have children.
    for controller in CONTROLLERS:
        if controller in mounts and controller in own:
            folder = os.path.normpath(f"{mounts[controller]}/{own[controller]}/{name}")
            if _make(folder, owner_uid):
                folders[controller] = folder
    if folders:
        return Delegation(1, folders)
    if "" in mounts and "" in own:
        # Below our own group this works only at the root of the hierarchy, because we are in it ourselves. Everywhere
        # else the engine's group becomes a sibling of ours.
        for parent in dict.fromkeys((own[""], os.path.dirname(own[""]))):
            made = _delegate_version_2(os.path.normpath(f"{mounts['']}/{parent}/{name}"), owner_uid)
            if made is not None:
                return made
    return NONE


def undo(made: Delegation) -> None:
    """Revert `delegate` right after it, for an engine that did not start.

    For an engine that ran, `sweep` removes the groups and no more: other programs may rely by then on the controllers
    that it enabled in the parent.
    """
    for folder in made.paths():
        _take_back(folder, made.switched_on)


def step_aside() -> bool:
    """Move this process to a child group, if its group was delegated to it alone, to make room for engines beside it.

    For `ramet serve` as a systemd service with Delegate=yes, or as the only process of a container. Its group may
    distribute controllers, but not while a process is in it. Returns whether the process is in the child group now;
    otherwise nothing has changed.
    """
    mount, own = _hierarchies().get(""), _own_groups().get("")
    if mount is None or own is None:
        return False
    group = os.path.normpath(f"{mount}/{own}")
    leaf = f"{group}/{SERVER_GROUP}"
    try:
        if not _is_given_as_a_whole(group, own) or not _among_ours(_read(f"{group}/cgroup.controllers")):
            return False
        # Any other process in the group would have to be moved too, and is not ours to move.
        if _read(f"{group}/cgroup.procs").split() != [str(os.getpid())]:
            return False
        with contextlib.suppress(FileExistsError):  # left by a server that was killed
            os.mkdir(leaf)
        # Writing our pid moves all threads of this process at once.
        _write(f"{leaf}/cgroup.procs", os.getpid())
    except OSError:
        return False
    if _switch_on(group) is not None:
        return True
    # Another process came in meanwhile, or the controllers are not ours to distribute: move back.
    with contextlib.suppress(OSError):
        _write(f"{group}/cgroup.procs", os.getpid())
        os.rmdir(leaf)
    return False


def _is_given_as_a_whole(group: str, own: str) -> bool:
    """Whether systemd marked the group as delegated (Delegate=yes), or it is the root of our own cgroup namespace."""
    if own == "/":
        return not _is_top(group)
    try:
        return os.getxattr(group, "user.delegate") == b"1"
    except OSError:
        return False


def sweep(folder: str) -> None:
    """Remove an engine's folder and its pods' folders, as far as they are empty."""
    # rmdir of a group with processes fails with EBUSY and changes nothing, so this is safe beside a live engine.
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder):
            if entry.is_dir(follow_symlinks=False):
                with contextlib.suppress(OSError):
                    os.rmdir(entry.path)
        os.rmdir(folder)


def sweep_dead() -> None:
    """Remove the groups of engines whose owner and launcher were both killed, and so could not clean up."""
    mounts, own = _hierarchies(), _own_groups()
    for controller in (*CONTROLLERS, ""):
        if controller not in mounts or controller not in own:
            continue
        for parent in dict.fromkeys((own[controller], os.path.dirname(own[controller]))):
            base = os.path.normpath(f"{mounts[controller]}/{parent}")
            with contextlib.suppress(OSError):
                for name in os.listdir(base):
                    pid = name.split("-")[1] if name.startswith("ramet-") and name.count("-") == 2 else ""
                    # The pid in the name may have been reused. Then the group stays until that process ends, which does
                    # no harm.
                    if pid.isdigit() and not os.path.exists(f"/proc/{pid}"):
                        sweep(f"{base}/{name}")


def memory_limit() -> int | None:
    """The lowest memory limit that applies to this process, in bytes. None: there is no limit."""
    found = []
    for controller, file in (("memory", "memory.limit_in_bytes"), ("", "memory.max")):
        for folder in _upwards(controller):
            # The file says "max", or there is none, as at the root of the hierarchy.
            with contextlib.suppress(OSError, ValueError):
                found.append(int(_read(f"{folder}/{file}")))
    return min((limit for limit in found if limit < _NO_LIMIT), default=None)


def _upwards(controller: str) -> Iterator[str]:
    """Our own group in a hierarchy and its ancestors, as far as they are visible."""
    top, own = _hierarchies().get(controller), _own_groups().get(controller)
    if top is None or own is None:
        return
    folder = os.path.normpath(f"{top}/{own}")
    if not os.path.isdir(folder):
        # A container without a cgroup namespace: its own group is mounted at the top, but /proc shows the host's path.
        folder = top
    while folder.startswith(top):
        yield folder
        if folder == top:
            return
        folder = os.path.dirname(folder)


class Surroundings:
    """The group that contains the engine and all its sandboxes. Used where pods have no memory cgroup of their own.

    When that group (a container's, for example) reaches its limit, the kernel kills one of the processes in it.
    """

    def __init__(self, delegation: Delegation) -> None:
        self._file: str | None = None
        self._told = 0  # kills already given as the reason for the end of some process; each explains one end
        if "memory" not in delegation.folders:
            places = [("memory", "memory.oom_control"), ("", "memory.events")]
            files = [f"{next(_upwards(controller), '')}/{file}" for controller, file in places]
            self._file = next(filter(os.path.isfile, files), None)
            # Kills from before this engine started explain none of its ends.
            self._told = self.kills()

    def kills(self) -> int:
        """Processes that the OOM killer has ended in this group so far. 0 where pods count for themselves."""
        return _count_kills(self._file) if self._file is not None else 0

    def explain(self, kills_before: int) -> bool:
        """Whether an OOM kill explains the end of a process that started when the count was `kills_before`.

        Each kill explains one end only: when two processes end and one kill was counted, the second ended for another
        reason.
        """
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
    """Mount point by controller. The key "" is version 2."""
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
    """Our own group in each hierarchy, by controller. The key "" is version 2."""
    found: dict[str, str] = {}
    with open("/proc/self/cgroup", encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            _, controllers, path = line.rstrip("\n").split(":", 2)
            for controller in controllers.split(","):
                found[controller] = path
    return found


def _make(folder: str, owner_uid: int | None) -> bool:
    """Make a group and give it to the engine's uid. Returns whether that worked."""
    try:
        os.mkdir(folder)
        # The engine makes its pods' groups in this folder, so it has to own it.
        if owner_uid is not None:
            os.chown(folder, owner_uid, owner_uid)
    except OSError:
        return False
    return True


def _delegate_version_2(folder: str, owner_uid: int | None) -> Delegation | None:
    """Make the engine's folder with all controllers available there.

    None where there are none; then nothing is left over.
    """
    switched_on = _switch_on(os.path.dirname(folder)) or ()
    usable: tuple[str, ...] = ()
    if _make(folder, owner_uid):
        # Enabling controllers in our own folder is allowed: it is new and empty. Pods are its children.
        try:
            usable = _among_ours(_read(f"{folder}/cgroup.controllers"))
            if usable:
                _write(f"{folder}/cgroup.subtree_control", _signed("+", usable))
            if owner_uid is not None:
                # These three files are what cgroups(7) has a delegatee own. All others stay root's, so that the engine
                # cannot raise limits on its own folder.
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
        with contextlib.suppress(OSError):  # EBUSY: another engine there uses them
            _write(f"{os.path.dirname(folder)}/cgroup.subtree_control", _signed("-", switched_on))


def _switch_on(group: str) -> tuple[str, ...] | None:
    """Enable our controllers for the children of a group. Returns those that were disabled before; None if refused.

    In one write, which the kernel accepts or refuses as a whole. Written one by one, pids and cpu would succeed even in
    a group that contains processes. That would turn it into a threaded group for good, below which memory cannot be
    counted.
    """
    try:
        wanted = _among_ours(_read(f"{group}/cgroup.controllers"))
        on = _read(f"{group}/cgroup.subtree_control").split()
        missing = tuple(name for name in wanted if name not in on)
        if not missing:
            return ()
        # Without memory among them the kernel would not refuse, so check for processes ourselves. The root of the
        # hierarchy is exempt from the rule and may contain processes.
        alone = "memory" in missing or _is_top(group) or not _read(f"{group}/cgroup.procs")
        if not alone:
            return None
        _write(f"{group}/cgroup.subtree_control", _signed("+", missing))
        # A process came in between the check and the write.
        if not _is_top(group) and _read(f"{group}/cgroup.type") != "domain\n":
            _write(f"{group}/cgroup.subtree_control", _signed("-", missing))
            return None
    except OSError:
        return None
    return missing


def _is_top(group: str) -> bool:
    """Whether a group is the root of the whole hierarchy, not just of our cgroup namespace.

    Only the real root has no type.
    """
    return not os.path.exists(f"{group}/cgroup.type")


def _among_ours(names: str) -> tuple[str, ...]:
    there = names.split()
    return tuple(name for name in CONTROLLERS if name in there)


def _signed(sign: str, names: Iterable[str]) -> str:
    return " ".join(f"{sign}{name}" for name in names)


def _write(path: str, value: object) -> None:
    """Write a value in one write(2): cgroup files take each write as a complete command."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, str(value).encode())
    finally:
        os.close(descriptor)


def _read(path: str) -> str:
    with open(path, encoding="ascii") as file:
        return file.read()


class PodGroup:
    """The control groups of one pod. The pod owns them and calls `remove` after its last process has ended."""

    def __init__(self, delegation: Delegation, name: str) -> None:
        self._delegation = delegation
        self._folders = {controller: f"{folder}/{name}" for controller, folder in delegation.folders.items()}
        self._limits: Limits | None = None
        self._memory_bytes = 0

    @classmethod
    def create(cls, delegation: Delegation, name: str, limits: Limits) -> PodGroup:
        """Make the groups and set their limits. Raises OSError, with nothing left over."""
        group = cls(delegation, name)
        group._limits, group._memory_bytes = limits, limits.memory_bytes
        try:
            for folder in group._unique():
                # The limits are set before any process can be in the group, so none ever runs without them.
                os.mkdir(folder)
            for controller, folder in group._folders.items():
                for file, value, required in _settings(delegation.version, controller, limits):
                    try:
                        _write(f"{folder}/{file}", value)
                    except OSError:  # the kernel does not have or does not count this
                        if required:
                            raise
        except OSError:
            group.remove()
            raise
        return group

    def _unique(self) -> Iterator[str]:
        yield from dict.fromkeys(self._folders.values())

    def open_group_files(self) -> list[int]:
        """Open the files through which a task enters these groups by writing 0.

        The kernel checks permission with the credentials of the opener, so that a task inside the pod can use them
        although it sees no cgroup file system. Version 1 has a file for single tasks, version 2 only one for whole
        processes.
        """
        group_file = "tasks" if self._delegation.version == 1 else "cgroup.procs"
        group_files: list[int] = []
        try:
            for folder in self._unique():
                group_files.append(os.open(f"{folder}/{group_file}", os.O_WRONLY | os.O_CLOEXEC))
        except OSError:  # out of descriptors
            for opened in group_files:
                os.close(opened)
            raise
        return group_files

    def set_room(self, extra_memory_bytes: int, extra_pids: int) -> bool:
        """Allow this much above the limits, replacing the previous allowance.

        Returns False when current use is above the new limit: lowering it would make the kernel kill a process for
        memory that it was allowed to use. Call again later. A fork needs the room: pages that its children still share
        stay charged to the parent when it writes to them.
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
        # The kernel lowers memory.max below the current use by reclaiming and then killing. Version 1 fails with EBUSY.
        if lower and self.memory_bytes() > wanted:
            return False
        if self._delegation.version == 1:
            files = ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"]
            if not lower:
                # Version 1 requires memory.limit_in_bytes <= memory.memsw.limit_in_bytes at every moment.
                files.reverse()
        else:
            files = ["memory.max"]
        for file in files:
            try:
                _write(f"{folder}/{file}", wanted)
            except FileNotFoundError:
                continue  # the kernel does not count swap here
            except OSError:
                return False
        self._memory_bytes = wanted
        return True

    def evict(self, pids: Iterable[int], to: PodGroup | None = None) -> None:
        """Move processes that outlive the pod to another pod's groups, or to a group without limits.

        The pod's own groups can be removed then. A snapshot's shadow is such a process. Moving it does not move the
        charge for its pages.
        """
        pids = tuple(pids)
        for controller, folder in self._delegation.folders.items():
            target = to._folders[controller] if to is not None else f"{folder}/{_EVICTED}"
            # An earlier eviction may have made it. It goes with the engine's own folder.
            with contextlib.suppress(FileExistsError):
                os.mkdir(target)
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):  # it ended by itself
                    _write(f"{target}/cgroup.procs", pid)

    def out_of_memory_kills(self) -> int:
        """Processes of the pod that the OOM killer has ended so far. 0 where memory is not counted."""
        folder = self._folders.get("memory")
        if folder is None:
            return 0
        file = "memory.oom_control" if self._delegation.version == 1 else "memory.events"
        return _count_kills(f"{folder}/{file}")

    def memory_bytes(self) -> int:
        """Memory charged to the pod now. 0 where memory is not counted.

        Uses three system calls, because forks wait for it.
        """
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
        """Upper bound for what its processes have written to memory and swap. 0: not known."""
        folder = self._folders.get("memory")
        if folder is None:
            return 0
        with contextlib.suppress(OSError, ValueError):
            if self._delegation.version == 1:
                return int(_read(f"{folder}/memory.memsw.usage_in_bytes"))
            return self.memory_bytes() + int(_read(f"{folder}/memory.swap.current"))
        # Swap is not counted here. If the host has no swap, there is none to add.
        with contextlib.suppress(OSError):
            if len(_read("/proc/swaps").splitlines()) <= 1:
                return self.memory_bytes()
        return 0

    def usage(self) -> dict[str, int]:
        """Memory and processes in use, as far as this host counts them."""
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
        """Remove the groups. Returns whether nothing is left; False while a process is still in them."""
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
    """(file, value, whether it must work) for each limit. Not every host counts swap; cpu weights are optional."""
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
        # No swap for sandboxes: it would let them use memory beyond the limit, and slow down the whole host.
        "memory": [("memory.max", limits.memory_bytes, True), ("memory.swap.max", 0, False)],
        "pids": [("pids.max", limits.pids + _SHADOWS, True)],
        "cpu": [("cpu.max", f"{quota} {_CPU_PERIOD_MICROSECONDS}", True), ("cpu.weight", 50, False)],
    }
    return settings.get(controller, ())
