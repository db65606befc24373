"""Images of points: states of living sandboxes that memory has no room for.

They are the engine's own: it removes them when it ends, and the next one does it if it was killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Mapping

from ramet.freezing.frozen import Frozen
from ramet.freezing.images.images import FAILURES, Images
from ramet.freezing.images.sandboxes import SandboxImages, WritingPoint
from ramet.freezing.images.stored.engine_marks import hold_mark, leave
from ramet.freezing.images.stored.store import PAST_PREFIX, ImageStore


class PointImages:
    """Writes and removes the images of one engine's points."""

    def __init__(self, images: Images, sandboxes: SandboxImages) -> None:
        self._images = images
        self._sandboxes = sandboxes
        self._word = secrets.token_hex(8)
        self._written = 0
        self._mark: int | None = None
        self._marking = asyncio.Lock()  # two first writes at once would both make the mark, which exists once

    async def write(
        self, frozen: Frozen, whose: str, about: Mapping[str, object], base: str | None, bytes_at_most: int
    ) -> tuple[str, int]:
        """Write a snapshot as an increment of an earlier point, or of its template. Returns its name and its size.

        ``whose``: the sandbox, for people who look into the store. Gives way to images that a caller waits for. Raises
        RametError.
        """
        await self._hold_mark()
        self._written += 1
        name = f"{PAST_PREFIX}{self._word}-{whose}-{self._written}"
        size = await self._sandboxes.save(frozen, name, about, WritingPoint(base, bytes_at_most))
        return name, size

    async def _hold_mark(self) -> None:
        async with self._marking:
            if self._mark is None:
                with contextlib.suppress(*FAILURES):  # without one, the next engine takes the points for left ones
                    self._mark = await asyncio.to_thread(hold_mark, await self._images.store(), self._word)

    async def sizes(self) -> dict[str, int]:
        """Of all points that this engine has on disk, by name. What several share counts in equal parts."""
        with contextlib.suppress(*FAILURES):
            return await asyncio.to_thread(_sizes, await self._images.store(), f"{PAST_PREFIX}{self._word}-")
        return {}

    async def close(self) -> None:
        """Remove all that is left."""
        if self._mark is None:
            return
        with contextlib.suppress(*FAILURES):
            await asyncio.to_thread(leave, await self._images.store(), self._word, self._mark)
        self._mark = None


def _sizes(store: ImageStore, prefix: str) -> dict[str, int]:
    found = {}
    for name in store.names(prefix):
        with contextlib.suppress(*FAILURES):
            if (image_id := store.find(name)) is not None:
                found[name] = store.size(image_id)
    return found
