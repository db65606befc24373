"""Identity of all that an image was made of: a changed machine, interpreter or library is noticed before it is used."""

from __future__ import annotations

import hashlib
import json
import math
import os
import stat
import time
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple

from ramet.freezing.images.manifest import FORMAT, ImageRefused, Manifest
from ramet.freezing.images.processor import processor_here
from ramet.freezing.images.stored.store import TEMPLATE_PREFIX
from ramet.isolation.kernel import syscalls
from ramet.protocol.values.specs import TemplateSpec

_PASSED_AT_MOST = 10 * 366 * 86400.0


@cache
def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def template_name(spec: TemplateSpec, guest: str, environment: dict[str, str]) -> str:
    """The name under which a store has the image of a template."""
    about = json.dumps([FORMAT, processor_here().text(), guest, spec.header(), environment], sort_keys=True)
    return f"{TEMPLATE_PREFIX}{hashlib.sha256(about.encode('utf-8', 'surrogateescape')).hexdigest()[:40]}"


def loaded_list(root: int, paths: Iterable[str], booted_at: float) -> bytes:
    """The state of files and folders as a pod shows them: size, times and path of each, for ``ramet-pod blank``.

    Raises OSError if one was changed after ``booted_at``: nobody knows which state the process has loaded.
    """
    rows = []
    for path in sorted(set(paths)):
        try:
            descriptor = syscalls.open_in_root(root, path, os.O_PATH)
        except (FileNotFoundError, NotADirectoryError):
            continue  # an entry of sys.path that does not exist, or a name that is no path
        try:
            found = os.fstat(descriptor)
        finally:
            os.close(descriptor)
        if found.st_ctime > booted_at:
            raise OSError(f"{path} was changed meanwhile, and the process may have an earlier state of it")
        # The size of a folder says nothing, and differs between file systems that show the same one.
        size = 0 if stat.S_ISDIR(found.st_mode) else found.st_size
        rows.append(b"%d %d %d %s\0" % (size, found.st_mtime_ns, found.st_ctime_ns, os.fsencode(path)))
    return b"".join(rows)


class Clocks(NamedTuple):
    """Of a process or the machine: seconds since the boot, without and with the time that the machine has slept."""

    monotonic: float
    boottime: float


class Shifts(NamedTuple):
    """Whole seconds by which the clocks of a process are ahead of the machine's."""

    monotonic: int
    boottime: int


def clocks() -> Clocks:
    return Clocks(time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME))


def clock_shifts(manifest: Manifest) -> Shifts:
    """Seconds to add to the clocks of a process that goes on from an image.

    While the machine stays up, time passes as for a stopped process. After a reboot its clocks begin again at zero, and
    every deadline in memory is a time of the old ones: so they go on as if the machine had stayed up.

    Raises ImageRefused where the kernel cannot shift them.
    """
    if manifest.boot == boot_id():
        # As they were: the process may have gone through a reboot before.
        shifts = Shifts(manifest.clock_shift, manifest.boottime_shift)
    else:
        # A wall clock that was set back, or is wrong by years: deadlines come late or at once, but no clock goes back.
        passed = min(max(0.0, time.time() - manifest.created), _PASSED_AT_MOST)
        now = clocks()
        # Rounded up, for the same reason.
        shifts = Shifts(
            math.ceil(manifest.monotonic + passed - now.monotonic), math.ceil(manifest.boottime + passed - now.boottime)
        )
    if any(shifts) and not os.path.exists("/proc/self/ns/time"):
        raise ImageRefused(
            "the image was made before the last reboot, and this kernel cannot give it the clock that it had: "
            "it has no time namespaces",
            hint="use Linux 5.6 or newer with CONFIG_TIME_NS, or make the image again",
        )
    return shifts


def guest_digest(folder: str) -> str:
    """Hash of the guest's code: an image has part of it in memory, and imports the rest later."""
    digest = hashlib.sha256()
    for path in sorted(Path(folder).rglob("*.py")):
        digest.update(str(path.relative_to(folder)).encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def shifts_of(pid: int) -> Shifts:
    """Seconds by which the clocks of a process are ahead: it may live in a time namespace of its own."""
    try:
        lines = Path(f"/proc/{pid}/timens_offsets").read_text(encoding="ascii").splitlines()
    except FileNotFoundError:
        return Shifts(0, 0)  # a kernel without time namespaces
    seconds = {name: int(value) for name, value, _ in map(str.split, lines)}
    return Shifts(seconds.get("monotonic", 0), seconds.get("boottime", 0))
