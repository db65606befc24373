"""One connection of a client: takes a request, gives its answers, and notices when the client disconnects."""

from __future__ import annotations

import asyncio
import socket
import sys
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence

from ramet.engine.calls import (
    cells,
    files,
    forks,
    history,
    images,
    network,
    sandboxes,
    server,
    sleepers,
    terminals,
    tools,
    values,
)
from ramet.engine.calls.call import ClientCall, Peer, RefusedUpload, is_upload, queued
from ramet.engine.frame_channel import FrameChannel
from ramet.engine.registry import Registry
from ramet.engine.tools import calls as tool_calls
from ramet.errors import NO_ROOM_ERRNOS, LimitReached, ProtocolError, RametError
from ramet.protocol import calls
from ramet.protocol.frames import TO_ENGINE, Frame, encode

_NO_ROOM_HINT = "close some sandboxes, or raise the limits of this machine (ulimit -n, memory)"

_KINDS: dict[int, Callable[[Peer, Frame], ClientCall]] = {
    calls.RUN: cells.RunCall,
    calls.FETCH: cells.FetchCall,
    calls.INTERRUPT: cells.InterruptCall,
    calls.CREATE: sandboxes.CreateCall,
    calls.INFO: sandboxes.InfoCall,
    calls.FACTS: sandboxes.FactsCall,
    calls.CLOSE: sandboxes.CloseCall,
    calls.WATCH: server.WatchCall,
    calls.EXPORT: images.ExportCall,
    calls.IMPORT: images.ImportCall,
    calls.SET_TOOLS: tools.GiveToolsCall,
    calls.TOOL_ANSWER: tools.ToolAnswerCall,
    calls.TOOLS_GONE: tools.ToolsGoneCall,
    **dict.fromkeys(calls.FILE_CALLS, files.FileCall),
    **dict.fromkeys(calls.VALUE_CALLS, values.ValueCall),
    **dict.fromkeys(calls.TERMINAL_CALLS, terminals.TerminalCall),
    **dict.fromkeys(calls.NETWORK_CALLS, network.NetworkCall),
    **dict.fromkeys(calls.FORK_CALLS, queued(forks.begin)),
    **dict.fromkeys(calls.HISTORY_CALLS, queued(history.begin)),
    **dict.fromkeys(calls.SLEEP_CALLS, queued(sleepers.begin)),
    **dict.fromkeys(calls.SERVER_CALLS, queued(server.begin)),
}


class ClientConnection:
    """Owns its socket, and the call in hand. One call at a time."""

    def __init__(self, sock: socket.socket, registry: Registry) -> None:
        sock.setblocking(False)
        self._socket = sock
        self.registry = registry
        self.settings = registry.settings
        self._call: ClientCall | None = None
        # Ids in the last answer, until the next request or the word TAKEN shows that the client has read it.
        self._unread: Sequence[str] = ()
        self._claims = False  # the client will say TAKEN: ids that it has not taken are closed
        self._tasks: set[asyncio.Task[None]] = set()
        self.channel = FrameChannel(sock, TO_ENGINE, self._on_frame, self._on_end)

    def __repr__(self) -> str:
        return f"<ClientConnection {type(self._call).__name__ if self._call is not None else 'idle'}>"

    def close(self) -> None:
        """Give up the call in hand, if any, as if the client had disconnected."""
        self._on_end(None)

    def _on_frame(self, frame: Frame) -> None:
        call = self._call
        if frame.kind in (calls.CHUNK, calls.END, calls.ABORT):
            if call is None:
                raise ProtocolError("data for a file that is not being written, or an answer that is not being given")
            call.received(frame)
            return
        if call is not None and not call.answered:
            if frame.kind == calls.TOOL_ANSWER and frame.header.get("quiet") is True:
                tool_calls.answer_quietly(frame, self.registry)
                return
            raise ProtocolError("a request before the answer to the one before")
        self._unread = ()
        if frame.kind in (calls.CLAIM, calls.TAKEN):
            self._claims = frame.kind == calls.CLAIM
            return
        waiting = sleepers.before(frame, self.registry)
        if waiting is None:
            self._begin(frame)
        else:
            # What the client sends next is read when the call has begun.
            self.channel.pause()
            self.perform(self._begin_after(waiting, frame))

    async def _begin_after(self, waiting: Awaitable[None], frame: Frame) -> None:
        try:
            await waiting
        except RametError as error:
            self._refuse(frame, error)
        else:
            if not self.channel.detached:
                try:
                    self._begin(frame)
                except ProtocolError as error:
                    self._on_end(error)
        finally:
            self.channel.resume()

    def _refuse(self, frame: Frame, error: RametError) -> None:
        self.fail(error)
        if is_upload(frame):
            # Without what the first frame carried, which nobody needs any more.
            self._call = RefusedUpload(self, Frame(frame.kind, {}, b""))

    def _begin(self, frame: Frame) -> None:
        kind = _KINDS.get(frame.kind)
        if kind is None:
            raise ProtocolError(f"a request of unknown kind {frame.kind}")
        try:
            # In place before it begins: it may end before ``begin`` returns.
            call = self._call = kind(self, frame)
            call.begin()
        except ProtocolError:
            raise
        except RametError as error:
            self._refuse(frame, error)

    # What ends a call

    def answer(self, header: Mapping[str, object], made: Sequence[str] = ()) -> None:
        self._unread = made
        self.finish(encode(calls.ANSWER, header))

    def fail(self, error: RametError) -> None:
        self.finish(calls.encode_error(error))

    def finish(self, frame: bytes | None) -> None:
        self._call = None
        if frame is not None:
            self.channel.send(frame)

    def perform(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(self._guard(work))
        self._tasks.add(task)  # the loop itself keeps only a weak reference
        task.add_done_callback(self._tasks.discard)
        return task

    async def _guard(self, work: Coroutine[object, object, None]) -> None:
        try:
            await work
        except RametError as error:
            self.fail(error)
        except Exception as error:
            if isinstance(error, OSError) and error.errno in NO_ROOM_ERRNOS:
                self.fail(
                    LimitReached(f"the engine is out of resources for this call: {error.strerror}", hint=_NO_ROOM_HINT)
                )
                return
            traceback.print_exc(file=sys.stderr)
            self.fail(RametError(f"the engine failed at this call: {type(error).__name__}: {error}"))

    async def forget(self, made: Sequence[str]) -> None:
        for some_id in made:
            await self.registry.forget(some_id)

    def _on_end(self, error: ProtocolError | None) -> None:
        if error is not None:
            # Last words to a client that is out of step; nothing it says afterwards would be understood.
            try:
                self._socket.send(calls.encode_error(error))
            except OSError:
                pass
        self.channel.detach()
        call, self._call = self._call, None
        if call is not None:
            call.client_left()
        if self._unread and (self._claims or self.channel.reset):
            # It closed without having taken or read the answer: no client knows the ids, so none could ever close them.
            self.perform(self.forget(self._unread))
        self._socket.close()
