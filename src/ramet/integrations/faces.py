"""One interface to a Sandbox or an AsyncSandbox, for frameworks that block and for frameworks that await.

Tools are written once, with ``await``. In a blocking framework nothing that they await ever suspends, and ``finished``
takes the value out of the coroutine without an event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import aclosing, closing
from typing import Any, ParamSpec, Protocol, TypeVar

from ramet import AsyncSandbox, FileInfo, InvalidArgument, Language, Result, Sandbox

Parameters = ParamSpec("Parameters")
Returned = TypeVar("Returned")
AnySandbox = Sandbox | AsyncSandbox


class Face(Protocol):
    """The operations that tools need of a sandbox."""

    async def run(self, code: str, language: Language, timeout_seconds: float | None) -> Result: ...
    async def stat(self, path: str) -> FileInfo: ...
    async def read(self, path: str, limit_bytes: int) -> bytes:
        """The file, or its first ``limit_bytes`` bytes."""
        ...

    async def write(self, path: str, data: bytes) -> None: ...
    async def list(self, path: str) -> list[FileInfo]: ...


class AsyncFace:
    """Uses an AsyncSandbox. Cancelling ``run`` interrupts the cell."""

    def __init__(self, sandbox: AsyncSandbox) -> None:
        self._sandbox = sandbox

    async def run(self, code: str, language: Language, timeout_seconds: float | None) -> Result:
        return await self._sandbox.run_code(code, language, timeout_seconds)

    async def stat(self, path: str) -> FileInfo:
        return await self._sandbox.files.stat(path)

    async def read(self, path: str, limit_bytes: int) -> bytes:
        data = bytearray()
        async with aclosing(self._sandbox.files.read_stream(path)) as pieces:
            async for piece in pieces:
                data += piece
                if len(data) >= limit_bytes:
                    break
        return bytes(data[:limit_bytes])

    async def write(self, path: str, data: bytes) -> None:
        await self._sandbox.files.write(path, data)

    async def list(self, path: str) -> list[FileInfo]:
        return await self._sandbox.files.list(path)


class BlockingCall(Protocol):
    """A way to call a blocking function: at once, or in a thread."""

    def __call__(
        self, function: Callable[Parameters, Returned], /, *arguments: Parameters.args, **named: Parameters.kwargs
    ) -> Awaitable[Returned]: ...


class SyncFace:
    """Uses a Sandbox, whose methods block."""

    def __init__(self, sandbox: Sandbox, call: BlockingCall) -> None:
        self._sandbox = sandbox
        self._call = call

    async def run(self, code: str, language: Language, timeout_seconds: float | None) -> Result:
        try:
            return await self._call(self._sandbox.run_code, code, language, timeout_seconds)
        except asyncio.CancelledError:
            # The thread cannot be cancelled, and its cell would go on without a receiver: interrupt it. In another
            # thread, because interrupt() blocks and this is the loop's thread.
            asyncio.get_running_loop().run_in_executor(None, self._sandbox.interrupt)
            raise

    async def stat(self, path: str) -> FileInfo:
        return await self._call(self._sandbox.files.stat, path)

    async def read(self, path: str, limit_bytes: int) -> bytes:
        return await self._call(self._read, path, limit_bytes)

    def _read(self, path: str, limit_bytes: int) -> bytes:
        data = bytearray()
        with closing(self._sandbox.files.read_stream(path)) as pieces:
            for piece in pieces:
                data += piece
                if len(data) >= limit_bytes:
                    break
        return bytes(data[:limit_bytes])

    async def write(self, path: str, data: bytes) -> None:
        await self._call(self._sandbox.files.write, path, data)

    async def list(self, path: str) -> list[FileInfo]:
        return await self._call(self._sandbox.files.list, path)


async def _at_once(
    function: Callable[Parameters, Returned], /, *arguments: Parameters.args, **named: Parameters.kwargs
) -> Returned:
    return function(*arguments, **named)


def waiting_face(sandbox: AnySandbox) -> Face:
    """The interface for a framework that blocks. Raises InvalidArgument for an AsyncSandbox."""
    if not isinstance(sandbox, Sandbox):
        raise InvalidArgument(
            f"sandbox must be a Sandbox, got {type(sandbox).__name__}; an AsyncSandbox needs the tool's async call"
        )
    return SyncFace(sandbox, _at_once)


def awaiting_face(sandbox: AnySandbox) -> Face:
    """The interface for a framework on an event loop."""
    return SyncFace(sandbox, asyncio.to_thread) if isinstance(sandbox, Sandbox) else AsyncFace(sandbox)


def finished(coroutine: Coroutine[Any, Any, Returned]) -> Returned:
    """Run a coroutine that never suspends, and return its value."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        returned: Returned = stop.value
        return returned
    coroutine.close()
    raise AssertionError("something that was to be done at once waited for an event loop")
