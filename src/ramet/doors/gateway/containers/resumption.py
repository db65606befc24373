"""The note in the first result of a container whose sandbox came back in an earlier state."""

from __future__ import annotations

from ramet.doors.gateway.containers.kept_sandbox import ResumedState
from ramet.doors.gateway.running.outputs import OWN_CELL

_CELLS_TOLD = 10
_CODE_CHARACTERS = 60


def notice_of(resumed: ResumedState) -> str:
    """Names the calls whose work is missing. Empty: none is."""
    missing = [code for code in resumed.missing if not code.startswith(OWN_CELL)]
    if not missing:
        return ""
    told = [_shown(code) for code in missing[:_CELLS_TOLD]]
    if len(missing) > _CELLS_TOLD:
        told.append(f"and {len(missing) - _CELLS_TOLD} more")
    calls = "call is" if len(missing) == 1 else f"{len(missing)} calls is"
    return (
        "[this container came back in an earlier state, because what ran it has ended unexpectedly: the work of the "
        f"last {calls} missing, in variables and files: {', '.join(told)}]\n"
    )


def _shown(code: str) -> str:
    line = next((one.strip() for one in code.splitlines() if one.strip()), "")
    short = line if len(line) <= _CODE_CHARACTERS else f"{line[:_CODE_CHARACTERS]}..."
    return f"`{short}`"
