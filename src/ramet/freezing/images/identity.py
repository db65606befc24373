"""What an image was made of, so that a changed machine, interpreter or library is noticed before the image is used."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from time import monotonic

from ramet.freezing.images.manifest import FORMAT, Manifest
from ramet.freezing.images.memory import kernels_areas, read_vdso
from ramet.freezing.images.store import TEMPLATE_PREFIX
from ramet.isolation.kernel import syscalls
from ramet.protocol.values.specs import TemplateSpec


@cache
def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


@cache
def machine() -> str:
    """A digest of the processor's features, which the C library has chosen its functions by, and of the kernel's vdso.

    Memory is full of pointers into both.
    """
    with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
        features = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    own = os.getpid()
    vdso = read_vdso(own, kernels_areas(own))
    return hashlib.sha256(" ".join(sorted(features.split())).encode() + vdso).hexdigest()


def template_name(spec: TemplateSpec, guest: str, environment: dict[str, str]) -> str:
    """The name under which a store has the image of a template."""
    about = json.dumps([FORMAT, machine(), guest, spec.header(), environment], sort_keys=True)
    return f"{TEMPLATE_PREFIX}{hashlib.sha256(about.encode('utf-8', 'surrogateescape')).hexdigest()[:40]}"


def loaded_list(root: int, paths: Iterable[str], booted_at: float) -> bytes:
    """The state of files and folders as a pod shows them: size, times and path of each, for ``ramet-pod blank``.

    Raises OSError if one was changed after the boot had begun: nobody knows which state the template has loaded.
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
            raise OSError(f"{path} was changed while the template booted")
        # The size of a folder says nothing, and differs between file systems that show the same one.
        size = 0 if stat.S_ISDIR(found.st_mode) else found.st_size
        rows.append(b"%d %d %d %s\0" % (size, found.st_mtime_ns, found.st_ctime_ns, os.fsencode(path)))
    return b"".join(rows)


def clock_shift(manifest: Manifest) -> int:
    """Seconds to add to the clock of a process that goes on from an image.

    After a reboot the monotonic clock begins again at zero, and every deadline in memory is a time of the old one.
    While the machine stays up, time passes as for a stopped process.
    """
    if manifest.boot == boot_id():
        return manifest.clock_shift  # as it was: it may have gone through a reboot before
    return max(0, int(manifest.monotonic - monotonic()) + 1)


def guest_digest(folder: str) -> str:
    """Of the code that runs in sandboxes: an image has it in memory, and imports the rest of it later."""
    digest = hashlib.sha256()
    for path in sorted(Path(folder).rglob("*.py")):
        digest.update(str(path.relative_to(folder)).encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def shift_of(pid: int) -> int:
    """Seconds by which the clock of a process is ahead of the machine's: it may live in a time namespace of its own."""
    try:
        lines = Path(f"/proc/{pid}/timens_offsets").read_text(encoding="ascii").splitlines()
    except FileNotFoundError:
        return 0  # a kernel without time namespaces
    return max((int(line.split()[1]) for line in lines if line.startswith("monotonic")), default=0)
