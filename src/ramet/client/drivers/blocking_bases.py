"""Base classes of the blocking face: the constructor makes the sandbox.

``async_bases`` has the same names for the other face.
"""

from __future__ import annotations

from typing import Self

from ramet.client.arguments import engine_for
from ramet.client.drivers import blocking
from ramet.client.handle import HandleOwner, SandboxHandle
from ramet.client.operations import sandboxes
from ramet.client.operations.network import network_state
from ramet.client.tools.tool import Toolset
from ramet.errors import RametError, SandboxClosed
from ramet.protocol.requests.sandboxes import SandboxOptions
from ramet.protocol.values.forks import ForkInfo
from ramet.protocol.values.history import MissingCell
from ramet.protocol.values.specs import SandboxSpec, ThawSpec
from ramet.transport.seam import Engine


class SandboxBase:
    """The life of a Sandbox. Owns its handle."""

    _handle: SandboxHandle | None = None  # a constructor that failed leaves nothing to close
    id: str
    fork_info: ForkInfo | None
    missing_cells: tuple[MissingCell, ...] = ()

    def _attach(self, owner: HandleOwner) -> None:
        """Make the attributes that use the handle of this owner. The face defines it."""
        raise NotImplementedError

    def _begin(
        self, template: object, server: Engine | None, spec: SandboxSpec | ThawSpec | SandboxOptions, tools: Toolset
    ) -> None:
        """Create the sandbox. ``server`` is None for one in this process."""
        engine = server or engine_for(template)
        try:
            blocking.make(
                engine, sandboxes.create(spec), lambda sandbox_id: self._adopt(SandboxHandle(engine, sandbox_id))
            )
            if tools:
                blocking.give_tools(self._created(), tools)
        except BaseException as error:
            if self._handle is not None:
                self._handle.abandon()
                self._handle = None
            if isinstance(error, KeyboardInterrupt):
                # Where in Ramet it struck says nothing to the person who pressed Ctrl-C.
                raise error.with_traceback(None) from None
            raise

    def _ready(self) -> None:
        """Check that the sandbox is open."""
        self._created().open()

    def _adopt(self, handle: SandboxHandle, fork_info: ForkInfo | None = None) -> None:
        self._handle = handle
        self.id = handle.id
        self.fork_info = fork_info
        # The attributes get the handle and not this object: a ring of references would keep a forgotten sandbox alive
        # until the garbage collector runs.
        self._attach(handle)

    @classmethod
    def _adopted(cls, handle: SandboxHandle, fork_info: ForkInfo | None = None) -> Self:
        """Return the face of a sandbox that the engine has made already."""
        sandbox = cls.__new__(cls)
        sandbox._adopt(handle, fork_info)
        return sandbox

    def _created(self) -> SandboxHandle:
        if self._handle is None:
            raise SandboxClosed("this Sandbox was never created")
        return self._handle

    def __del__(self) -> None:
        if self._handle is not None:
            self._handle.forgotten(self)


class NetworkBase:
    """The repr of a SandboxNetwork, which asks the engine for the rules."""

    def __init__(self, owner: HandleOwner) -> None:
        self._owner = owner

    def __repr__(self) -> str:
        handle = self._owner._created()
        try:
            state = blocking.perform(handle.engine, network_state(handle.open()))
        except RametError as error:  # it is closed, or was made without a network
            return f"<SandboxNetwork of {handle.id}, {error.message}>"
        allowed = ", ".join(state.rules) or "nothing"
        denied = f", denied {', '.join(state.denied)}" if state.denied else ""
        return f"<SandboxNetwork of {handle.id}, allowed {allowed}{denied}, {len(state.log)} in its log>"
