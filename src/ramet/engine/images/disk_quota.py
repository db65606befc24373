"""How much disk the images of one owner may take."""

from __future__ import annotations

from ramet.engine.seams import Machine
from ramet.errors import LimitReached
from ramet.isolation.files.cache_folders import owner_part
from ramet.protocol.values.allowances import Allowance

_NO_LIMIT = 1 << 62


async def check_bytes(machine: Machine, owner: str, allowance: Allowance, replaced_bytes: int = 0) -> int:
    """How many bytes the owner may still have on disk. Raises LimitReached if it has all that it may.

    ``replaced_bytes``: of an image that goes when the new one is there.
    """
    if allowance.image_bytes is None:
        return _NO_LIMIT
    left = allowance.image_bytes + replaced_bytes - await machine.image_bytes(owner_part(owner))
    if left <= 0:
        raise LimitReached(
            f"your images on disk take {allowance.image_bytes >> 20} MiB already, which is the limit of this key",
            hint="remove some of them, or have the server's operator raise the limit: ramet keys set --image-mib",
            details={"limit": "image_mib", "allowed": allowance.image_bytes >> 20},
        )
    return left
