"""Everything that stays with the id of a sandbox when its body is replaced."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from ramet.engine.making.carried_state import CarriedState
from ramet.engine.making.lifetimes import Clock
from ramet.engine.output.executions import Executions, Shelf
from ramet.engine.output.replay import Replay
from ramet.engine.settings import Settings
from ramet.protocol.values.specs import SandboxSpec


class Identity:
    """What stays with a sandbox id when its body is replaced: spec, lifetime, executions, replay.

    Owned by the sandbox. ``parent``: the id of the sandbox that this one is a copy of, where it is known. No
    secret is in here: not in the spec, and not in the carried state, which snapshots keep.
    """

    def __init__(
        self,
        sandbox_id: str,
        spec: SandboxSpec,
        carried: CarriedState,
        parent: str | None,
        settings: Settings,
        shelf: Shelf,
        busy: Callable[[], bool],
    ) -> None:
        self.id = sandbox_id
        self.spec = replace(spec, network=None, secrets=())
        self.parent = parent
        self.carried = carried
        self.clock = Clock(spec.lifetime, busy)
        self.replay = Replay(settings)
        self.executions = Executions(settings, shelf, spec.owner)
        self.ended = f"sandbox {sandbox_id} is closed"  # the reason in errors, once it is
        self._spilling = 0  # files of output that are being written

    def __repr__(self) -> str:
        return f"<Identity {self.id} of {self.owner!r}, {self.carried.cells} cells>"

    @property
    def owner(self) -> str:
        return self.spec.owner

    def adopt(self, spec: SandboxSpec, carried: CarriedState) -> None:
        """Go on with the body of another sandbox. What belongs to the id stays: owner, lifetime and the like."""
        own = self.spec
        self.spec = replace(
            spec,
            owner=own.owner,
            lifetime=own.lifetime,
            persistent=own.persistent,
            history=own.history,
            recover=own.recover,
            checkpoint_seconds=own.checkpoint_seconds,
            hibernate_after_seconds=own.hibernate_after_seconds,
            on_idle=own.on_idle,
        )
        self.carried = self.carried.joined_by(carried)

    # Output that is too long for a result goes into files of the sandbox; ``root`` is the root of its body.

    def begin_spill(self, root: int) -> str:
        """A name for the file of an output that is too long for a result."""
        # Only before a file is begun: bytes that are being written are not in the file system yet.
        self.carried.spilled_bytes = self.spilled_bytes(root)
        self._spilling += 1
        self.carried.spills += 1
        return f"output-{self.carried.spills}"

    def spilled_bytes(self, root: int) -> int:
        """Output that the engine wrote into files of the sandbox: memory that no limit of the kernel counts.

        Not more than all files take together: files that the sandbox removed do not count, renamed ones do.
        """
        spilled_bytes = self.carried.spilled_bytes
        if spilled_bytes and not self._spilling:
            with suppress(OSError):  # its body is being closed
                found = os.fstatvfs(root)
                return min(spilled_bytes, (found.f_blocks - found.f_bfree) * found.f_frsize)
        return spilled_bytes

    def take_spill(self, size_bytes: int) -> bool:
        limits = self.spec.limits
        at_most = min(limits.memory_bytes, limits.disk_bytes)
        if self.carried.spilled_bytes + size_bytes > at_most:
            return False
        self.carried.spilled_bytes += size_bytes
        return True

    def end_spill(self, given_back_bytes: int) -> None:
        self._spilling -= 1
        self.carried.spilled_bytes = max(0, self.carried.spilled_bytes - given_back_bytes)
