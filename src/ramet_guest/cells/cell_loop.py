"""Gives the cells' event loop to asyncio functions called in cells that do not await, as in a notebook.

In a notebook the loop runs all the time. Here it runs while a cell awaits, and between cells, so that `asyncio.run`
works in cells. In a cell that does not await, `get_running_loop` therefore raises, but `get_event_loop` and
`create_task` work.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

_MODULE = "asyncio"


class Watch:
    """Import hook that patches asyncio when it is first imported. Most sandboxes never load it."""

    def __init__(self, change: Callable[[Any], None]) -> None:
        self._change = change

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != _MODULE:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = ChangingLoader(spec.loader, self._change)  # type: ignore[assignment]
        return spec


class ChangingLoader:
    """Loads a module through another loader, then patches it."""

    def __init__(self, loader: Any, change: Callable[[Any], None]) -> None:
        self._loader = loader
        self._change = change

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._change(module)


def install(open_loop: Callable[[], Any], is_copy: Callable[[], bool]) -> None:
    """Patches asyncio now, or when it is imported.

    `open_loop` returns the loop of the cells. `is_copy` returns whether this process is a child of the REPL, which runs
    no cells.
    """

    def change(asyncio: Any) -> None:
        teach(asyncio, open_loop, is_copy)

    if _MODULE in sys.modules:
        change(sys.modules[_MODULE])
    else:
        sys.meta_path.insert(0, Watch(change))


def teach(asyncio: Any, open_loop: Callable[[], Any], is_copy: Callable[[], bool]) -> None:
    def outside_of_loops() -> bool:
        return (
            asyncio._get_running_loop() is None
            and threading.get_ident() == threading.main_thread().ident
            and not is_copy()
        )

    policy = asyncio.DefaultEventLoopPolicy
    plain_get, plain_create = policy.get_event_loop, asyncio.create_task

    @functools.wraps(plain_get)
    def get_event_loop(self: Any) -> Any:
        loop = self._local._loop
        if (loop is None or loop.is_closed()) and outside_of_loops():
            open_loop()
        return plain_get(self)

    @functools.wraps(plain_create)
    def create_task(coro: Any, **options: Any) -> Any:
        if outside_of_loops():
            # The task starts when the cell ends or awaits.
            return open_loop().create_task(coro, **options)
        return plain_create(coro, **options)

    policy.get_event_loop = get_event_loop
    asyncio.create_task = asyncio.tasks.create_task = create_task
