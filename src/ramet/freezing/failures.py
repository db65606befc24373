"""Maps a failed freeze or thaw to LimitReached (try later), HostNotCapable (the host refuses a step) or ForkFailed."""

from __future__ import annotations

import os
import re

from ramet.errors import NO_ROOM_ERRNOS, ForkFailed, LimitReached, RametError
from ramet.freezing import _core
from ramet.isolation import hints

# Steps that no sandbox can influence. Where the kernel refuses them, this host cannot make sandboxes, or not fork them.
_STEPS_OF_THE_HOST = re.compile(
    "clone3 of the sandbox|compare the memory of the REPL and its shadow|fetch a (?:cgroup's file|line to the engine)"
    "|setns back|setns to the pod(?:'s pid namespace)?"
)
# The same of a template, which runs trusted code. A sandbox could unmap the memory that is to be read.
_STEPS_OF_TEMPLATES = re.compile(r"(?:read|write) \d+ bytes of task \d+")
_REPLACED = "the code replaced its interpreter; close this sandbox and make another"


def failure(tried: str, cause: _core.FreezeError | OSError, otherwise: type[RametError] = ForkFailed) -> RametError:
    """The error to raise: LimitReached where the kernel has run out of something and a retry may succeed,
    HostNotCapable where the host refuses the step, else `otherwise`."""
    if isinstance(cause, OSError):
        number, reason = cause.errno, str(cause)
    else:
        number, reason = cause.args[1], describe(cause)
        step = cause.args[0]
        by_host = _STEPS_OF_THE_HOST.fullmatch(step) or (
            otherwise is not ForkFailed and _STEPS_OF_TEMPLATES.fullmatch(step)
        )
        if number in hints.REFUSALS and by_host:
            return hints.refused(f"{tried}: {reason}")
    kind = LimitReached if number in NO_ROOM_ERRNOS else otherwise
    return kind(f"{tried}: {reason}", hint=_REPLACED if isinstance(cause, _core.ReplacedError) else None)


def describe(error: _core.FreezeError) -> str:
    step, number = error.args
    return f"{step}: {os.strerror(number)}" if number else str(step)
