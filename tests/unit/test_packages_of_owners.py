"""Owners of one engine do not wait for each other's packages."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from ramet.engine.cells.sandbox import Sandbox
from ramet.engine.packages.packages import NotAvailable, Packages
from ramet.engine.packages.requester import Requester
from ramet.engine.packages.requirements import Requirements
from ramet.engine.settings import Settings
from ramet.errors import LimitReached, SandboxLost
from ramet.protocol.network.specs import NetworkSpec
from ramet.protocol.values.specs import Interpreter, Limits, SandboxSpec, TemplateSpec

SPEC = SandboxSpec(
    TemplateSpec("python", Interpreter("/usr/bin/python3", "3.12.1", (), (), None), (), True),
    Limits(1 << 30, 100, 1.0, 1 << 30),
    network=NetworkSpec(open=True),
)
WANTED = Requirements(("thing",))


async def _no_folder(path: str, writable: bool) -> int:
    raise AssertionError("nothing is kept here")


def test_no_owner_waits_for_what_a_sandbox_of_another_one_tells() -> None:
    """Which packages there are to begin with is told by a sandbox of whoever asks first."""

    async def whole() -> None:
        others = asyncio.Event()

        async def make(spec: SandboxSpec) -> Sandbox:
            if spec.owner == "somebody else":
                others.set()
                await asyncio.Event().wait()
            raise SandboxLost("this owner's own was asked")

        packages = Packages(make, _no_folder, Settings())
        other = Requester.of(replace(SPEC, owner="somebody else"))
        waiting = asyncio.create_task(packages.get(other, WANTED, print, lambda: True))
        async with asyncio.timeout(10):
            await others.wait()
            with pytest.raises(NotAvailable, match="own was asked"):
                await packages.get(Requester.of(SPEC), WANTED, print, lambda: True)
        waiting.cancel()
        await packages.close()

    asyncio.run(whole())


def test_what_many_wait_for_is_not_told_with_a_hundredth_of_a_processor() -> None:
    async def whole() -> None:
        made: list[SandboxSpec] = []

        async def make(spec: SandboxSpec) -> Sandbox:
            made.append(spec)
            raise SandboxLost("none is needed")

        packages = Packages(make, _no_folder, Settings())
        slow = replace(SPEC, limits=replace(SPEC.limits, cpus=0.01))
        with pytest.raises(NotAvailable):
            await packages.get(Requester.of(slow), WANTED, print, lambda: True)
        assert [spec.limits for spec in made] == [SPEC.limits]
        await packages.close()

    asyncio.run(whole())


def test_what_an_owner_has_no_room_for_is_left_to_pip_and_asked_for_again() -> None:
    async def whole() -> None:
        asked = 0

        async def make(spec: SandboxSpec) -> Sandbox:
            nonlocal asked
            asked += 1
            raise LimitReached("this key has 2 sandboxes; its limit is 2")

        packages = Packages(make, _no_folder, Settings())
        for _ in range(3):
            with pytest.raises(NotAvailable, match="its limit is 2"):
                await packages.get(Requester.of(SPEC), WANTED, print, lambda: True)
        assert asked == 3
        await packages.close()

    asyncio.run(whole())
