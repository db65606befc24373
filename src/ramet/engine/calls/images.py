"""Calls about snapshots as files: export and import."""

from __future__ import annotations

from contextlib import aclosing

from ramet.engine.calls.call import ClientCall, Peer
from ramet.engine.files.transfer import Transfer
from ramet.engine.images.snapshot_files import exported, import_snapshot
from ramet.engine.making.snapshots import Snapshot
from ramet.protocol import calls, fields
from ramet.protocol.frames import Frame, encode
from ramet.protocol.values.allowances import Allowance
from ramet.protocol.values.specs import SandboxSpec


class _FileOfSnapshot(ClientCall):
    """When its client disconnects, the work learns of it at its next step."""

    def __init__(self, peer: Peer, frame: Frame) -> None:
        super().__init__(peer, frame)
        self._owner = fields.optional_text(frame.header, "owner")
        registry = peer.registry
        self._transfer = Transfer(peer.channel, registry.executor, registry.walks, self._owner or "", peer.settings)

    def received(self, frame: Frame) -> None:
        self._transfer.received(frame)

    def client_left(self) -> None:
        self._transfer.abandon()


class ExportCall(_FileOfSnapshot):
    """Sends a snapshot as one file."""

    def begin(self) -> None:
        found = self.peer.registry.snapshots.find(fields.text(self.frame.header, "snapshot"), self._owner)
        found.hold()  # a client may close it meanwhile
        self.peer.perform(self._serve(found))

    async def _serve(self, found: Snapshot) -> None:
        total = 0
        try:
            async with aclosing(exported(self.peer.registry, found)) as pieces:
                async for piece in pieces:
                    total += len(piece)
                    await self._transfer.send(encode(calls.CHUNK, {}, piece))
        finally:
            await found.let_go()
        self.peer.answer({"size_bytes": total})


class ImportCall(_FileOfSnapshot):
    """Takes such a file, and makes a snapshot of it. Its client sends to the end before it listens."""

    def begin(self) -> None:
        spec = SandboxSpec.read(self.frame.header)
        allowance = Allowance.read(self.frame.header)
        self.peer.registry.snapshots.check_room(spec.owner)
        self.peer.perform(self._serve(spec, allowance))

    async def _serve(self, spec: SandboxSpec, allowance: Allowance) -> None:
        ended = False

        async def receive() -> bytes | None:
            nonlocal ended
            piece = await self._transfer.receive()
            ended = piece is None
            return piece

        try:
            made = await import_snapshot(self.peer.registry, receive, spec, allowance)
        except Exception:
            while not ended:
                await receive()
            raise
        if self.peer.channel.detached:
            await self.peer.forget([made.id])
            return
        self.peer.answer({"id": made.id}, [made.id])
