"""Images of one sandbox are written in the order of its states, and read whole while others replace them."""

from __future__ import annotations

import asyncio
import contextlib
from types import SimpleNamespace
from typing import Any

import pytest

from ramet.freezing.images.images import Images
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


class _Open(contextlib.nullcontext[None]):
    def __init__(self, image_id: str) -> None:
        super().__init__()
        self.manifest = SimpleNamespace(id=image_id)


class _Replaced(Images):
    """Has one image after another: each is replaced when somebody begins to use it, until ``last``."""

    def __init__(self, last: int, gone: bool = False) -> None:
        self.now = 1
        self.last = last
        self.gone = gone

    async def open(self, name: str) -> Any:
        if self.gone and self.now > self.last:
            return None
        return _Open(f"img_{self.now}")

    async def image_id(self, name: str) -> str | None:
        return f"img_{self.now}"

    async def work(self, _: Any) -> int:
        if self.now <= self.last:
            self.now += 1
            raise FileNotFoundError("vdso")
        return self.now


@pytest.mark.parametrize("last", [0, 1, 4])
async def test_an_image_that_another_engine_replaces_is_not_missed(last: int) -> None:
    images = _Replaced(last)
    assert await images.used("ours", images.work) == last + 1


async def test_an_image_that_is_removed_meanwhile_is_none_and_a_broken_one_is_told() -> None:
    removed = _Replaced(1, gone=True)
    assert await removed.used("ours", removed.work) is None

    async def broken(_: Any) -> int:
        raise FileNotFoundError("vdso")

    with pytest.raises(FileNotFoundError):
        await _Replaced(0).used("ours", broken)
