"""Base classes of the asynchronous face: the object exists at once, its sandbox from the first ``await`` on.

``blocking_bases`` has the same names for the other face.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple, Self

from ramet.client.arguments import engine_for
from ramet.client.drivers import asynchronous
from ramet.client.handle import HandleOwner, SandboxHandle
from ramet.client.operations import sandboxes
from ramet.client.tools.tool import Toolset
from ramet.errors import SandboxClosed
from ramet.protocol.requests.sandboxes import SandboxOptions
from ramet.protocol.values.forks import ForkInfo
from ramet.protocol.values.history import MissingCell
from ramet.protocol.values.specs import SandboxSpec, ThawSpec
from ramet.transport.seam import Engine


class _Creation(NamedTuple):
    """The checked arguments of a sandbox that is to be created. ``server`` is None for one in this process."""

    template: object
    server: Engine | None
    spec: SandboxSpec | ThawSpec | SandboxOptions
    tools: Toolset


class AsyncSandboxBase:
    """The life of an AsyncSandbox. Owns its handle."""

    _handle: SandboxHandle | None = None
    _creation: _Creation
    fork_info: ForkInfo | None = None
    missing_cells: tuple[MissingCell, ...] = ()

    def _attach(self, owner: HandleOwner) -> None:
        """Make the attributes that use the handle of this owner. The face defines it."""
        raise NotImplementedError

    def _begin(
        self, template: object, server: Engine | None, spec: SandboxSpec | ThawSpec | SandboxOptions, tools: Toolset
    ) -> None:
        """Store the arguments for ``_ready``: a constructor cannot await."""
        self._creation = _Creation(template, server, spec, tools)
        self._attach(self)

    async def _ready(self) -> None:
        """Create the sandbox unless that was done, and check that it is open."""
        if self._handle is None:
            asynchronous.require_loop()
            template, server, spec, tools = self._creation
            # Starting an engine process blocks for some milliseconds.
            engine = server if server is not None else await asyncio.to_thread(engine_for, template)
            handle = await asynchronous.make(
                engine, sandboxes.create(spec), lambda sandbox_id: SandboxHandle(engine, sandbox_id)
            )
            try:
                if tools:
                    await asynchronous.give_tools(handle, tools)
                self._handle = handle
            except BaseException:
                handle.abandon()
                raise
        self._handle.open()

    @classmethod
    def _adopted(cls, handle: SandboxHandle, fork_info: ForkInfo | None = None) -> Self:
        """Return the face of a sandbox that the engine has made already."""
        sandbox = cls.__new__(cls)
        sandbox._handle = handle
        sandbox.fork_info = fork_info
        sandbox._attach(sandbox)
        return sandbox

    def _created(self) -> SandboxHandle:
        if self._handle is None:
            raise SandboxClosed(
                "this AsyncSandbox has not been created yet",
                hint="use `async with AsyncSandbox() as sandbox:` or `sandbox = await AsyncSandbox.create()`",
            )
        return self._handle

    @property
    def id(self) -> str:
        """Name of the sandbox, unique in its engine. Raises SandboxClosed before the sandbox was created."""
        return self._created().id

    def __del__(self) -> None:
        if self._handle is not None:
            self._handle.forgotten(self)


class AsyncNetworkBase:
    """The repr of an AsyncSandboxNetwork, which cannot await and so does not ask the engine."""

    def __init__(self, owner: HandleOwner) -> None:
        self._owner = owner

    def __repr__(self) -> str:
        return f"<AsyncSandboxNetwork of {self._owner!r}>"
