"""Calls about sandboxes as such: make one, describe one, close one; and facts about the engine."""

from __future__ import annotations

import asyncio

from ramet.engine.calls.call import Answer, ClientCall, MakingCall, TaskCall
from ramet.engine.cells import descriptions
from ramet.engine.cells.sandbox import Sandbox
from ramet.engine.making.create import create
from ramet.engine.registry import Registry
from ramet.engine.sleeping.sleepers import Dormant
from ramet.protocol import fields
from ramet.protocol.values.allowances import Allowance
from ramet.protocol.values.specs import SandboxSpec


class CreateCall(MakingCall):
    """Makes a sandbox from a template."""

    def work(self) -> Answer:
        header = self.frame.header
        return _create(self.peer.registry, SandboxSpec.read(header), Allowance.read(header))


class InfoCall(TaskCall):
    """Describes a sandbox."""

    def work(self) -> Answer:
        header = self.frame.header
        sandbox_id, owner = fields.text(header, "sandbox"), fields.optional_text(header, "owner")
        dormant = self.peer.registry.sleepers.find_dormant(sandbox_id, owner)
        return _info(self.find_sandbox()) if dormant is None else _dormant_info(dormant)


class FactsCall(TaskCall):
    """Tells about the host and the pools."""

    def work(self) -> Answer:
        return self.peer.registry.facts()


class CloseCall(ClientCall):
    """Closes a sandbox, and waits for it unless the client does not want to."""

    def begin(self) -> None:
        header = self.frame.header
        sandbox_id, owner = fields.text(header, "sandbox"), fields.optional_text(header, "owner")
        if header.get("wait") is not False:
            self.peer.perform(self._close(sandbox_id, owner))
        else:
            self.peer.registry.close_soon(sandbox_id, owner)
            self.peer.answer({})

    async def _close(self, sandbox_id: str, owner: str | None) -> None:
        await self.peer.registry.close_sandbox(sandbox_id, owner)
        self.peer.answer({})


async def _create(registry: Registry, spec: SandboxSpec, allowance: Allowance) -> dict[str, object]:
    sandbox = await create(registry, spec, allowance)
    return {"id": sandbox.id, "pid": sandbox.body.pid}


async def _dormant_info(one: Dormant) -> dict[str, object]:
    told = {name: value for name, value in one.about.items() if name not in ("allowance", "server")}
    return {"pid": 0, "usage": {}, "walls": {}, **told}


async def _info(sandbox: Sandbox) -> dict[str, object]:
    while True:
        body = sandbox.body
        try:
            # In a thread: with many mappings the kernel takes long to add up a sandbox's memory.
            return await asyncio.to_thread(descriptions.info, sandbox)
        except OSError:
            if body is sandbox.body:
                raise
            # Another body took its place while the thread read: read again.
