"""Hints for hosts that refuse a building block of sandboxes, for `ramet doctor` and for errors."""

from __future__ import annotations

import errno
import os
import re

from ramet.errors import HostNotCapable

# The errors of containers' seccomp filters, and of kernels that lack a call.
REFUSALS = (errno.EPERM, errno.ENOSYS)
_REFUSED = re.compile("|".join(os.strerror(number) for number in REFUSALS))

_FILTERS = "--security-opt seccomp=unconfined --security-opt apparmor=unconfined"
_UNMASKED = "--security-opt systempaths=unconfined"
# Container engines mount something over these. The kernel lets a user namespace mount its own /proc only where an
# unmasked one is visible.
_MASKED = ("acpi", "asound", "bus", "fs", "interrupts", "irq", "kcore", "keys", "scsi", "sys", "sysrq-trigger")
_MARKS_OF_CONTAINERS = ("/.dockerenv", "/run/.containerenv", "/run/systemd/container")


def in_container() -> bool:
    return "KUBERNETES_SERVICE_HOST" in os.environ or any(map(os.path.exists, _MARKS_OF_CONTAINERS))


def proc_is_masked() -> bool:
    masked = {f"/proc/{name}" for name in _MASKED}
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as lines:
        return any(line.split(" ")[4] in masked for line in lines)


def container(masked: bool = True) -> str:
    """All flags at once: adding one must not lead the user to the next error."""
    return f"in a container: docker run {_FILTERS}{f' {_UNMASKED}' if masked else ''}"


def is_refusal(text: str) -> bool:
    """Whether a message of the helper program ends with such an error."""
    return _REFUSED.search(text) is not None


def refused(message: str) -> HostNotCapable:
    """The error for a step that the host refused to an engine, which cannot examine the host itself."""
    return HostNotCapable(message, hint=f"{container()} (more: ramet doctor)")
