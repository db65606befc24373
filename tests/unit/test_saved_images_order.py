"""Images of one sandbox are written in the order of its states, however long each of them takes."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from ramet.freezing.images.sandboxes import SandboxImages
from ramet.freezing.live import SandboxRecipes
from ramet.isolation.named_locks import NamedLocks


class _Slow(SandboxImages):
    """Its first write takes until the second one could have passed it."""

    def __init__(self) -> None:
        self._images: Any = SimpleNamespace(of_name=NamedLocks())
        self.written: list[object] = []

    async def _save(self, frozen: Any, recipes: Any, name: str, about: Any, point: Any) -> int:
        for _ in range(5 if about == {"state": 1} else 0):
            await asyncio.sleep(0)
        self.written.append(about["state"])
        return 1


async def test_a_checkpoint_of_a_state_that_has_passed_never_replaces_a_later_one() -> None:
    images = _Slow()
    frozen: Any = SimpleNamespace(recipes=object.__new__(SandboxRecipes))
    await asyncio.gather(*(images.save(frozen, "space-x", {"state": number}) for number in (1, 2)))
    assert images.written == [1, 2]
