"""The next engine of a server finds the sandboxes of one that was killed, also if that has not ended yet."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from ramet.engine.sleeping.sleepers import Sleepers
from ramet.isolation.files.cache_folders import space_image_name
from ramet.isolation.files.journals import JournalLines

_NAME = space_image_name("me", "sbx_1")


class SlowlyEnding:
    """A machine in whose store an engine that was killed holds a journal until somebody has looked a few times."""

    def __init__(self, looks: int) -> None:
        self._looks = looks

    async def journals(self) -> list[tuple[str, JournalLines, bool]]:
        lines = JournalLines({"id": "sbx_1", "owner": "me", "server": "s"}, (), (), False)
        self._looks -= 1
        return [(_NAME, lines, self._looks > 0)]

    async def image_names(self, _prefix: str) -> list[str]:
        return [_NAME]


async def test_sandboxes_of_an_engine_that_still_ends_are_waited_for() -> None:
    machine = SlowlyEnding(looks=3)

    async def started() -> SlowlyEnding:
        return machine

    workshop: Any = SimpleNamespace(machine=started)
    nothing: Any = None
    sleepers = Sleepers(workshop, nothing, asyncio.create_task, server="s")
    await sleepers.find()
    assert (sleepers.found, list(sleepers.dormant)) == (True, ["sbx_1"])
