"""Calls about the network of a sandbox: its rules and log, and ports that it shows."""

from __future__ import annotations

from ramet.engine.calls.call import ClientCall
from ramet.engine.cells.sandbox import Sandbox
from ramet.engine.network import calls as network_calls
from ramet.protocol import calls
from ramet.protocol.frames import encode


class NetworkCall(ClientCall):
    """Its answer may bring a descriptor: a connection into the sandbox."""

    def begin(self) -> None:
        self.peer.perform(self._serve(self.find_sandbox()))

    async def _serve(self, sandbox: Sandbox) -> None:
        answer, brought = await network_calls.serve(self.frame, sandbox)
        if brought is None:
            self.peer.answer(answer)
            return
        with brought:
            # With the first byte of the answer: nothing else waits to be sent, as there is one call at a time.
            self.peer.channel.send_with(encode(calls.ANSWER, answer), brought.fileno())
            self.peer.finish(None)
