"""Containers and a file store for tests, with a clock that stands still until it is told otherwise."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ramet.doors.gateway.containers.registry import Container, Containers
from ramet.doors.gateway.containers.settings import ContainerSettings
from ramet.doors.gateway.containers.store import ContainerStore
from ramet.doors.gateway.files.store import FileLimits, FileStore
from ramet.doors.gateway.running.cell_run import CallLimits, CellRequest, CellRun, ClientTool, Finished, Waiting
from ramet.errors import RametError

WAIT_SECONDS = 60
ALICE, BOB = "alice", "bob"

_numbers = itertools.count(1)


@dataclass
class Clock:
    now: float = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Place:
    """What most tests need of a gateway, without one."""

    containers: Containers
    files: FileStore
    clock: Clock

    async def container(self) -> Container:
        return await self.containers.open(ALICE)


@asynccontextmanager
async def a_place(
    folder: Path, settings: ContainerSettings | None = None, limits: FileLimits | None = None
) -> AsyncIterator[Place]:
    clock = Clock()
    files = FileStore(folder / "files", limits, clock)
    store = ContainerStore(folder / "containers.sqlite")
    containers = Containers(ContainerSettings() if settings is None else settings, files, store, clock)
    try:
        yield Place(containers, files, clock)
    finally:
        await forget_all(containers)
        await containers.close()
        store.close()
        files.close()


async def forget_all(containers: Containers) -> None:
    """Leave nothing on disk: a gateway that only ends would put all of them to sleep."""
    for container in list(containers._all.values()):
        with contextlib.suppress(RametError):
            await containers._forget(container, "the test is over")


def quick(**options: Any) -> ContainerSettings:
    """Settings with other limits for cells and calls."""
    return ContainerSettings(calls=CallLimits(**options))


def python(code: object) -> CellRequest:
    return CellRequest(f"srvtoolu_{next(_numbers)}", "code_execution", {"code": code}, "20260120")


def bash(command: object) -> CellRequest:
    return CellRequest(f"srvtoolu_{next(_numbers)}", "bash_code_execution", {"command": command}, "20250825")


def editor(**given: object) -> CellRequest:
    return CellRequest(f"srvtoolu_{next(_numbers)}", "text_editor_code_execution", given, "20250825")


async def come_next(run: CellRun, after: Sequence[str] | None = None) -> Waiting | Finished:
    return await asyncio.wait_for(run.next(after), WAIT_SECONDS)


async def carried_out(container: Container, request: CellRequest, tools: Sequence[ClientTool] = ()) -> Finished:
    """The outcome of a call that does not wait for its client."""
    outcome = await come_next(await container.start(request, tools))
    assert isinstance(outcome, Finished), outcome
    return outcome


async def waits(run: CellRun, after: Sequence[str] | None = None) -> Waiting:
    outcome = await come_next(run, after)
    assert isinstance(outcome, Waiting), outcome
    return outcome


async def ends(run: CellRun, after: Sequence[str] | None = None) -> Finished:
    outcome = await come_next(run, after)
    assert isinstance(outcome, Finished), outcome
    return outcome


def content(finished: Finished) -> Mapping[str, Any]:
    """Of the result block."""
    inner = finished.block["content"]
    assert isinstance(inner, dict)
    return inner


async def read_all(stream: AsyncIterator[bytes]) -> bytes:
    return b"".join([piece async for piece in stream])


async def pieces(*data: bytes) -> AsyncIterator[bytes]:
    for piece in data:
        yield piece
