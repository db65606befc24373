"""Maps a failed freeze or thaw to LimitReached (try later), HostNotCapable (the host refuses a step) or ForkFailed."""

from __future__ import annotations

import os
import re

from ramet.errors import NO_ROOM_ERRNOS, ForkFailed, LimitReached, RametError
from ramet.freezing import _core
from ramet.isolation import hints

# Steps that no sandbox has a say in. Where the kernel does not allow them, nothing can be made here, or not be forked.
_STEPS_OF_THE_HOST = re.compile(
    "clone3 of the sandbox|compare the memory of the REPL and its shadow|fetch a (?:cgroup's file|line to the engine)"
    "|setns back|setns to the pod(?:'s pid namespace)?"
)
# Of a template, which runs trusted code: a sandbox could unmap what is to be read.
_STEPS_OF_TEMPLATES = re.compile(r"(?:read|write) \d+ bytes of task \d+")
_REPLACED = "the code replaced its interpreter; close this sandbox and make another"


def failure(tried: str, cause: _core.FreezeError | OSError, otherwise: type[RametError] = ForkFailed) -> RametError:
    """LimitReached where the kernel had no more of something, which a later try may find; `otherwise` for the rest."""
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
