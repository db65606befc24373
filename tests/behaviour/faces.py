"""Two faces, one behaviour: AsyncSandbox with the calls of Sandbox, so that one test runs over both."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import Future
from os import PathLike
from typing import Any, TypeVar, overload

from ramet import (
    AsyncExposed,
    AsyncSandbox,
    Connection,
    Copied,
    Event,
    Exposed,
    FileInfo,
    History,
    Language,
    Point,
    ReplayEvent,
    Result,
    Sandbox,
    SandboxInfo,
    Undone,
)

Returned = TypeVar("Returned")

# No call of these tests takes longer by itself; a call that does is a failure, not a hanging run.
CALL_SECONDS = 90


class LoopThread:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="loop of the tests")
        self._thread.start()

    def submit(self, coroutine: Coroutine[Any, Any, Returned]) -> Future[Returned]:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def call(self, coroutine: Coroutine[Any, Any, Returned]) -> Returned:
        return self.submit(coroutine).result(CALL_SECONDS)

    def iterate(self, source: AsyncIterator[Returned]) -> Iterator[Returned]:
        """Closing this closes the source, as `async with aclosing(...)` does."""
        try:
            while True:
                try:
                    item = self.call(_next(source))
                except StopAsyncIteration:
                    return
                yield item
        finally:
            self.call(_close(source))

    def close(self) -> None:
        self.call(self._loop.shutdown_default_executor())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _next(source: AsyncIterator[Returned]) -> Returned:
    return await anext(source)


async def _close(source: AsyncIterator[Any]) -> None:
    close: Callable[[], Coroutine[Any, Any, None]] | None = getattr(source, "aclose", None)
    if close is not None:
        await close()


class AwaitedSandbox:
    """An AsyncSandbox whose calls are awaited on a loop in another thread."""

    def __init__(self, loop: LoopThread, *arguments: Any, **options: Any) -> None:
        self._adopt(loop, loop.call(AsyncSandbox.create(*arguments, **options)))

    def _adopt(self, loop: LoopThread, awaited: AsyncSandbox) -> AwaitedSandbox:
        self._loop = loop
        self.awaited = awaited
        self.files = AwaitedFiles(loop, awaited)
        self.network = AwaitedNetwork(loop, awaited)
        return self

    @property
    def id(self) -> str:
        return self.awaited.id

    def run_code(self, code: str, language: Language = "python", timeout: float | None = None) -> Result:
        return self._loop.call(self.awaited.run_code(code, language=language, timeout=timeout))

    def run_code_stream(
        self, code: str, language: Language = "python", timeout: float | None = None
    ) -> Iterator[Event]:
        return self._loop.iterate(self.awaited.run_code_stream(code, language=language, timeout=timeout))

    def interrupt(self) -> bool:
        return self._loop.call(self.awaited.interrupt())

    def get(self, name: str) -> Any:
        return self._loop.call(self.awaited.get(name))

    def set(self, name: str, value: object) -> None:
        self._loop.call(self.awaited.set(name, value))

    def upload(self, data: str | PathLike[str] | bytes, remote_path: str) -> Copied:
        return self._loop.call(self.awaited.upload(data, remote_path))

    @overload
    def download(self, remote_path: str) -> bytes: ...
    @overload
    def download(self, remote_path: str, local_path: str | PathLike[str], max_bytes: int = ...) -> Copied: ...
    def download(
        self, remote_path: str, local_path: str | PathLike[str] | None = None, max_bytes: int = 1 << 34
    ) -> bytes | Copied:
        if local_path is None:
            return self._loop.call(self.awaited.download(remote_path))
        return self._loop.call(self.awaited.download(remote_path, local_path, max_bytes))

    def info(self) -> SandboxInfo:
        return self._loop.call(self.awaited.info())

    def extend(self, timeout_seconds: float | None = None, idle_timeout_seconds: float | None = None) -> None:
        self._loop.call(self.awaited.extend(timeout_seconds, idle_timeout_seconds))

    def replay(self) -> list[ReplayEvent]:
        return self._loop.call(self.awaited.replay())

    @property
    def tools(self) -> tuple[str, ...]:
        return self.awaited.tools

    def set_tools(self, tools: Any) -> None:
        self._loop.call(self.awaited.set_tools(tools))

    def fork(self, n: int = 1, reseed: bool = False, inherit_secrets: bool = False) -> list[AwaitedSandbox]:
        made = self._loop.call(self.awaited.fork(n, reseed, inherit_secrets))
        return [AwaitedSandbox.__new__(AwaitedSandbox)._adopt(self._loop, child) for child in made]

    def fork_at(self, point: Point | str) -> AwaitedSandbox:
        (made,) = self._loop.call(self.awaited.fork(at=point))
        return AwaitedSandbox.__new__(AwaitedSandbox)._adopt(self._loop, made)

    def history(self) -> History:
        return self._loop.call(self.awaited.history())

    def undo(self, n: int = 1) -> Undone:
        return self._loop.call(self.awaited.undo(n))

    def rewind(self, point: Point | str) -> Undone:
        return self._loop.call(self.awaited.rewind(point))

    def expose(self, port: int) -> AwaitedExposed:
        return AwaitedExposed(self._loop, self._loop.call(self.awaited.expose(port)))

    def close(self) -> None:
        self._loop.call(self.awaited.close())


class AwaitedNetwork:
    def __init__(self, loop: LoopThread, sandbox: AsyncSandbox) -> None:
        self._loop = loop
        self._network = sandbox.network

    def log(self) -> list[Connection]:
        return self._loop.call(self._network.log())

    @property
    def rules(self) -> tuple[str, ...]:
        return self._loop.call(_awaited(self._network.rules))

    @property
    def denied(self) -> tuple[str, ...]:
        return self._loop.call(_awaited(self._network.denied))

    def allow(self, *rules: str) -> None:
        self._loop.call(self._network.allow(*rules))

    def deny(self, *rules: str) -> None:
        self._loop.call(self._network.deny(*rules))


async def _awaited(value: Awaitable[Returned]) -> Returned:
    return await value


class AwaitedExposed:
    def __init__(self, loop: LoopThread, exposed: AsyncExposed) -> None:
        self._loop = loop
        self._exposed = exposed
        self.url = exposed.url
        self.port = exposed.port

    def __str__(self) -> str:
        return str(self._exposed)

    def close(self) -> None:
        self._loop.call(self._exposed.close())


class AwaitedFiles:
    def __init__(self, loop: LoopThread, sandbox: AsyncSandbox) -> None:
        self._loop = loop
        self._files = sandbox.files

    def read(self, path: str) -> bytes:
        return self._loop.call(self._files.read(path))

    def read_text(self, path: str, encoding: str = "utf-8") -> str:
        return self._loop.call(self._files.read_text(path, encoding))

    def read_stream(self, path: str, chunk: int = 65536) -> Iterator[bytes]:
        return self._loop.iterate(self._files.read_stream(path, chunk))

    def write(self, path: str, data: Any) -> None:
        self._loop.call(self._files.write(path, data))

    def stat(self, path: str) -> FileInfo:
        return self._loop.call(self._files.stat(path))

    def exists(self, path: str) -> bool:
        return self._loop.call(self._files.exists(path))

    def mkdir(self, path: str, parents: bool = True) -> None:
        self._loop.call(self._files.mkdir(path, parents))

    def remove(self, path: str, recursive: bool = False) -> None:
        self._loop.call(self._files.remove(path, recursive))

    def rename(self, path: str, new_path: str) -> None:
        self._loop.call(self._files.rename(path, new_path))

    def list(self, path: str = ".") -> list[FileInfo]:
        return self._loop.call(self._files.list(path))


AnySandbox = Sandbox | AwaitedSandbox
AnyExposed = Exposed | AwaitedExposed
MakeSandbox = Callable[..., AnySandbox]
