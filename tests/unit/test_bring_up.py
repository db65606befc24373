"""The bring-up of sandboxes: whatever fails, each body is closed once, by its owner of that moment."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from ramet.engine.making.bring_up import bring_up
from ramet.engine.seams import Body
from ramet.errors import ForkFailed
from tests.unit.scripted import ScriptedBody


class Scene:
    """A source of two bodies and two destinations, which fail at one step."""

    def __init__(self, root: Path, failing: str = "") -> None:
        self._root = root
        self._failing = failing
        self.made: list[ScriptedBody] = []
        self.given_up: list[str] = []

    def step(self, name: str) -> None:
        if name == self._failing:
            raise ForkFailed(f"scripted to fail at {name}")

    async def bodies(self) -> Sequence[Body]:
        self.step("bodies")
        self.made = [ScriptedBody(self._root), ScriptedBody(self._root)]
        return self.made

    async def settle(self, sandboxes: Sequence[str]) -> None:
        assert sandboxes == ["one", "two"]
        self.step("settle")

    async def run(self) -> None:
        async with AsyncExitStack() as undo:
            await bring_up(self, [_Destination(self, "one"), _Destination(self, "two")], undo)
            self.step("add")
            undo.pop_all()


class _Destination:
    def __init__(self, scene: Scene, name: str) -> None:
        self._scene = scene
        self._name = name
        self._body: ScriptedBody | None = None

    def take(self, body: Body) -> str:
        self._scene.step(f"take {self._name}")
        assert isinstance(body, ScriptedBody)
        self._body = body
        return self._name

    async def give_up(self) -> None:
        self._scene.given_up.append(self._name)
        if self._body is not None:
            assert not self._body.closed  # a sandbox lets go of its body's descriptors before these are closed
            await self._body.close()


async def test_sandboxes_that_were_brought_up_stay_open(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    await scene.run()
    assert scene.given_up == []
    assert [body.closed for body in scene.made] == [False, False]
    for body in scene.made:
        await body.close()


@pytest.mark.parametrize("failing", ["bodies", "take one", "take two", "settle", "add"])
async def test_a_bring_up_that_fails_leaves_nothing_open(tmp_path: Path, failing: str) -> None:
    scene = Scene(tmp_path, failing)
    with pytest.raises(ForkFailed, match=failing):
        await scene.run()
    assert sorted(scene.given_up) == ["one", "two"]
    assert all(body.closed for body in scene.made)
