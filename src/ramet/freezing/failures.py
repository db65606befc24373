"""What a freeze or a thaw that failed is told as: there was no room just now, or it does not work."""

from __future__ import annotations

from ramet.errors import NO_ROOM_ERRNOS, ForkFailed, LimitReached, RametError
from ramet.freezing import _core
from ramet.freezing.template import describe

_REPLACED = "the code replaced its interpreter; close this sandbox and make another"


def failure(tried: str, cause: _core.FreezeError | OSError, otherwise: type[RametError] = ForkFailed) -> RametError:
    """LimitReached where the kernel had no more of something, which a later try may find. Otherwise as it is told."""
    if isinstance(cause, OSError):
        number, reason = cause.errno, str(cause)
    else:
        number, reason = cause.args[1], describe(cause)
    kind = LimitReached if number in NO_ROOM_ERRNOS else otherwise
    return kind(f"{tried}: {reason}", hint=_REPLACED if isinstance(cause, _core.ReplacedError) else None)
