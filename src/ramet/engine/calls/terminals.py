"""Calls about terminals: open one, follow one, write to one, end one."""

from __future__ import annotations

import asyncio

from ramet.engine.calls.call import Answer, Peer, TaskCall
from ramet.engine.terminals import terminals
from ramet.protocol.frames import Frame


class TerminalCall(TaskCall):
    """May last as long as the terminal: it is cancelled when the client disconnects."""

    def __init__(self, peer: Peer, frame: Frame) -> None:
        super().__init__(peer, frame)
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        self._task = self.peer.perform(self._serve(self.work()))

    def work(self) -> Answer:
        return terminals.begin(self.frame, self.find_sandbox(), self.peer.channel, self.peer.settings)

    def client_left(self) -> None:
        if self._task is not None:
            self._task.cancel()
