"""The packages of one engine: finds them in the store, or installs them once for all sandboxes that wait."""

from __future__ import annotations

import asyncio
import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from time import monotonic
from types import NoneType
from typing import Any

from ramet.engine.packages.disk_store import DiskStore
from ramet.engine.packages.indexes import why_none_answers
from ramet.engine.packages.installation import InstallFailed, MakeSandbox, install, list_base
from ramet.engine.packages.memory_store import MemoryStore
from ramet.engine.packages.requester import Requester
from ramet.engine.packages.requirements import Requirements
from ramet.engine.packages.tree_copies import TooMuch
from ramet.engine.packages.trees import About, Kept, NoRoom, OpenFolder, Store
from ramet.engine.settings import Settings
from ramet.errors import LimitReached, RametError
from ramet.isolation.files.walks import Walks
from ramet.protocol.values.specs import Interpreter

_INSTALLED_AT_ONCE = 4
_INSTALLED_FOR_AN_OWNER = 2  # installations of one owner at once
_ROOM_SECONDS = 30.0  # wait for other installations; then the sandbox runs pip itself
_BASE_SECONDS = 600.0  # then the list is read again: the interpreter's own packages may change on the host
_FAILED_SECONDS = 600.0  # a failed installation is not repeated for this long
_FAILURES_AT_MOST = 1000
_LINES_AT_MOST = 2000
_TOLD = ("Collecting ", "  Downloading ", "Downloading ")
_MEMORY_SHARE = 8  # packages may take this part of the host's memory

OnLine = Callable[[str], None]


class NotAvailable(Exception):
    """The request is left to pip, in the sandbox that asks."""


class NotAllowed(NotAvailable):
    """The sandbox's rules allow no index. The message goes to the user, because pip's own hardly explains it."""


class Busy(Exception):
    """Other installations take all the room. Nothing is wrong with the request itself."""


class Installing:
    """An installation in progress and its waiters. Cancelled when the last waiter leaves."""

    def __init__(self, on_given_up: Callable[[], None]) -> None:
        self.task: asyncio.Task[Kept] | None = None
        self._on_given_up = on_given_up
        self._lines: list[str] = []
        self._listeners: list[OnLine] = []

    def on_line(self, line: str) -> None:
        if line.startswith(_TOLD) and len(self._lines) < _LINES_AT_MOST:
            self._lines.append(line)
            for listener in self._listeners:
                listener(line)

    async def wait(self, on_line: OnLine) -> Kept:
        """Wait for the tree; ``on_line`` gets pip's progress from the beginning. Raises the error of the task."""
        assert self.task is not None
        for line in self._lines:
            on_line(line)
        self._listeners.append(on_line)
        try:
            # asyncio.wait does not cancel the task when this waiter is cancelled: others may wait for it, too.
            await asyncio.wait([self.task])
            if self.task.cancelled():
                raise NotAvailable("the engine is closing")
            return self.task.result()
        finally:
            self._listeners.remove(on_line)
            if not self._listeners and not self.task.done():
                # Forget it before the cancellation takes effect: a request that joined a task which is about to be
                # cancelled would fail for no reason of its own.
                self._on_given_up()
                self.task.cancel()


class Packages:
    """Owns the store. ``make_sandbox`` makes a sandbox that is in no list; the caller closes it."""

    def __init__(
        self, make_sandbox: MakeSandbox, open_folder: OpenFolder, settings: Settings, walks: Walks | None = None
    ) -> None:
        self._walks = walks or Walks()
        self._make_sandbox = make_sandbox
        self._open_folder = open_folder
        self._settings = settings
        self._store: asyncio.Task[Store] | None = None
        self._bases: dict[tuple[str, Interpreter], tuple[float, asyncio.Task[About]]] = {}
        self._installing: dict[str, Installing] = {}
        self._failed: dict[str, float] = {}
        self._owners: Counter[str] = Counter()  # installations in progress, by owner
        self._changed = asyncio.Condition()

    def __repr__(self) -> str:
        return f"<Packages {len(self._installing)} being installed>"

    async def get(
        self, requester: Requester, wanted: Requirements, on_line: OnLine, may_install: Callable[[], bool]
    ) -> Kept:
        """The tree with the requested packages. Raises NotAvailable: then the sandbox runs pip itself."""
        try:
            return await self._get(requester, wanted, on_line, may_install)
        except (InstallFailed, TooMuch, NoRoom, Busy, RametError, OSError) as error:
            raise NotAvailable(str(error)) from None

    async def _get(
        self, requester: Requester, wanted: Requirements, on_line: OnLine, may_install: Callable[[], bool]
    ) -> Kept:
        about = await self._base(requester)
        refused = why_none_answers(requester.network, requester.indexes(about.index))
        if refused is not None:
            raise NotAllowed(refused)
        if not requester.network.open and not requester.network.allow:
            raise NotAvailable("this sandbox may reach no host")
        key = requester.key(wanted, about.base, time.time())
        store = await self._opened()
        while key not in self._installing:
            kept = await store.find(key)
            if kept is not None:
                return kept
            if monotonic() - self._failed.get(key, -_FAILED_SECONDS) < _FAILED_SECONDS:
                raise NotAvailable("the same installation failed a moment ago")
            # Checked again: another request may have begun the same installation during `store.find`.
            if key not in self._installing:
                if not may_install():
                    raise NotAvailable("this sandbox has used up its installations")
                self._begin(key, store, requester, wanted)
        return await self._installing[key].wait(on_line)

    def _begin(self, key: str, store: Store, requester: Requester, wanted: Requirements) -> None:
        installing = self._installing[key] = Installing(lambda: self._forget(key, installing))
        installing.task = asyncio.create_task(self._install(key, store, requester, wanted, installing))
        installing.task.add_done_callback(lambda done: self._on_done(key, installing, done))

    def _on_done(self, key: str, installing: Installing, done: asyncio.Task[Kept]) -> None:
        self._forget(key, installing)
        if done.cancelled() or isinstance(done.exception(), Busy | NoRoom | LimitReached | NoneType):
            return  # it succeeded, or nothing is wrong with the request: the next one may try again
        self._failed[key] = monotonic()
        if len(self._failed) > _FAILURES_AT_MOST:
            del self._failed[next(iter(self._failed))]

    def _forget(self, key: str, installing: Installing) -> None:
        # Compared: after a cancellation another installation may already run under the same key.
        if self._installing.get(key) is installing:
            del self._installing[key]

    async def _install(
        self, key: str, store: Store, requester: Requester, wanted: Requirements, installing: Installing
    ) -> Kept:
        # Room is taken inside the task: waiting for it must not depend on the first request, which may give up.
        async with self._room_for(requester.owner):
            seconds = self._settings.install_seconds
            made = await install(self._make_sandbox, requester, wanted, installing.on_line, seconds)
            try:
                # The sandbox stays open until the copy is complete: the tree lives in its memory.
                return await store.keep(key, made.tree, made.about, requester.owner)
            finally:
                os.close(made.tree)
                await made.sandbox.close()

    @asynccontextmanager
    async def _room_for(self, owner: str) -> AsyncIterator[None]:
        """Bound installations, together and for one owner, so that none makes others wait for long. Raises Busy."""
        try:
            async with asyncio.timeout(_ROOM_SECONDS), self._changed:
                await self._changed.wait_for(lambda: self._has_room(owner))
                self._owners[owner] += 1
        except TimeoutError:
            raise Busy("other sandboxes are installing packages at the moment") from None
        try:
            yield
        finally:
            # Counted down before the lock is waited for: a cancellation there must not cost the room for ever.
            self._owners[owner] -= 1
            async with self._changed:
                self._changed.notify_all()

    def _has_room(self, owner: str) -> bool:
        return self._owners.total() < _INSTALLED_AT_ONCE and self._owners[owner] < _INSTALLED_FOR_AN_OWNER

    async def _base(self, requester: Requester) -> About:
        """The packages that a fresh sandbox has, cached for each owner and interpreter.

        Not shared between owners: the listing sandbox counts against the limits of one owner and may have to wait.
        """
        kind = requester.owner, requester.template.interpreter
        since, task = self._bases.get(kind, (0.0, None))
        if task is None or monotonic() - since > _BASE_SECONDS or (task.done() and _failed(task)):
            task = asyncio.create_task(list_base(self._make_sandbox, requester, self._settings.install_seconds))
            self._bases[kind] = (monotonic(), task)
        # Shielded: requests share the task, and one that is cancelled must not cancel it for the others.
        return await asyncio.shield(task)

    async def _opened(self) -> Store:
        if self._store is None or (self._store.done() and _failed(self._store)):
            self._store = asyncio.create_task(self._open())
        return await asyncio.shield(self._store)

    async def _open(self) -> Store:
        path = self._settings.packages_folder
        if path is not None:
            try:
                return await DiskStore.open(path, self._open_folder, self._settings.packages_bytes, self._walks)
            except (OSError, RametError):
                pass  # missing or not writable: keep packages in the engine's memory
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return MemoryStore(min(self._settings.packages_memory_bytes, memory // _MEMORY_SHARE), self._walks)

    async def close(self) -> None:
        """Cancel all installations, wait until their sandboxes are closed, then close the store."""
        tasks: list[asyncio.Task[Any]] = [task for _, task in self._bases.values()]
        tasks += [installing.task for installing in self._installing.values() if installing.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._store is not None:
            with suppress(Exception):
                (await self._store).close()


def _failed(task: asyncio.Task[object]) -> bool:
    return task.cancelled() or task.exception() is not None


def report(error: BaseException) -> None:
    """Print an unexpected error on the engine's standard error."""
    traceback.print_exception(error, file=sys.stderr)
