"""Calls about tools: give them to a sandbox, answer calls of them, say that the client has stopped answering."""

from __future__ import annotations

from ramet.engine.calls.call import Answer, ClientCall, Peer, TaskCall
from ramet.engine.tools import calls as tool_calls
from ramet.errors import ProtocolError
from ramet.protocol.frames import Frame


class GiveToolsCall(TaskCall):
    """Gives a sandbox its tools."""

    def work(self) -> Answer:
        return tool_calls.give(self.frame, self.find_sandbox())


class ToolAnswerCall(ClientCall):
    """Answers a call of a tool, in one piece or in parts."""

    def __init__(self, peer: Peer, frame: Frame) -> None:
        super().__init__(peer, frame)
        self._parts: tool_calls.ToolAnswerUpload | None = None

    def begin(self) -> None:
        if self.frame.header.get("quiet") is True:
            tool_calls.answer_quietly(self.frame, self.peer.registry)
            self.peer.finish(None)
        else:
            self._parts = tool_calls.answer(self.frame, self.peer.registry, self.peer.channel, self._over)

    def _over(self, taken: bool) -> None:
        self.peer.finish(tool_calls.TAKEN if taken else tool_calls.NOT_TAKEN)

    def received(self, frame: Frame) -> None:
        if self._parts is None:
            raise ProtocolError("a part of a tool's answer that is not given in parts")
        self._parts.received(frame)

    def client_left(self) -> None:
        if self._parts is not None:
            self._parts.abandon()


class ToolsGoneCall(ClientCall):
    """The client has stopped answering the tool calls of an execution."""

    def begin(self) -> None:
        tool_calls.gone(self.frame, self.peer.registry)
        self.peer.answer({})
