"""One answer: samples the model, runs its code, samples again with the results, until it is the client's turn.

open cells of the request --> run --> sample --> run its cells --> sample ...
                               |         |
                               |         +-- no calls: the model's stop reason
                               |         +-- a client's tool: tool_use; cells beside it wait for the next request
                               |         +-- ten samples: pause_turn
                               +-- code waits for a client's tool: tool_use

A turn that failed half-way can be continued: cells that have run are not run again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from ramet.doors.gateway.errors import ApiError, invalid
from ramet.doors.gateway.kinds import CALLER_TYPE, AnyBlock, Message, is_own_result, is_own_use
from ramet.doors.gateway.requests.declarations import upstream_choice
from ramet.doors.gateway.requests.request import MessagesRequest
from ramet.doors.gateway.running.cell_run import PendingToolCall, Waiting
from ramet.doors.gateway.services import Services
from ramet.doors.gateway.turns.cells import TurnCells
from ramet.doors.gateway.turns.message_builder import MessageBuilder
from ramet.doors.gateway.upstream.cell_texts import CellTexts
from ramet.doors.gateway.upstream.client import Said
from ramet.doors.gateway.upstream.credentials import UpstreamCaller
from ramet.doors.gateway.upstream.inlining import inlined
from ramet.doors.gateway.upstream.sample_reader import Sample
from ramet.doors.gateway.upstream.sampler import Sampler
from ramet.doors.gateway.upstream.translation import translate
from ramet.errors import RametError

# Stop reasons after which the model's turn has ended, whatever it has called.
_FINAL = frozenset(
    ("max_tokens", "stop_sequence", "refusal", "pause_turn", "model_context_window_exceeded", "compaction")
)
_CONFUSED_SAMPLES = 3


class ModelTurn:
    """Owns the answer that it makes. A task runs it, and may run it again if it failed."""

    def __init__(self, services: Services, request: MessagesRequest, owner: str, caller: UpstreamCaller) -> None:
        self._services = services
        self._request = request
        self._owner = owner
        self.message = MessageBuilder(request.model, with_code=request.tools.version is not None)
        self.failed = False
        self._sampler = Sampler(services, caller, self.message, request.tools, request.cell_ids)
        self._texts = CellTexts(services.rooms.files, owner)
        self._cells = TurnCells(services, request, owner, self._texts)
        self._open: deque[AnyBlock] = deque(request.calls.cells)
        self._history: tuple[Message, ...] | None = None
        self._samples = 0
        self._confused = 0
        self._notes: list[str] = []

    @property
    def said(self) -> Said:
        """Facts from the upstream's last answer besides its body."""
        return self._sampler.said

    def size_bytes(self) -> int:
        """The approximate size of the request and of the answer so far."""
        return self._request.size_bytes + self.message.size_bytes()

    @property
    def has_run_code(self) -> bool:
        """Whether a new start would run code again."""
        return any(is_own_result(block) for block in self.message.content)

    def carry_on(self, request: MessagesRequest, caller: UpstreamCaller) -> None:
        """Prepare a failed turn to be run again, for a repeated request that may differ in what caused the failure."""
        self.failed, self._confused = False, 0
        self._request, self._history = request, None
        self._cells.request = request
        cell_ids = request.cell_ids | {str(block.get("id")) for block in self.message.content if is_own_use(block)}
        self._sampler = Sampler(self._services, caller, self.message, request.tools, cell_ids)

    async def run(self) -> None:
        """Run the turn to its end. The result is in the recording that exists when this begins."""
        recording = self.message.recording
        mark = self.message.mark()
        try:
            with ExitStack() as stack:
                await self._cells.prepare(stack)
                self.message.container = self._cells.container_shown
                while not await self._step():
                    mark = self.message.mark()
            self._keep()
            recording.end()
            self._services.metrics.turn_ended(self.message.stop_reason or "")
        except BaseException as error:
            self.failed = True
            self.message.rewind(mark)
            self._services.metrics.turn_ended("error")
            recording.end(self._told(error))
            if not isinstance(error, Exception):
                self._cells.give_up()
                raise

    def _told(self, error: BaseException) -> ApiError:
        if isinstance(error, ApiError):
            return error
        if isinstance(error, RametError):
            self._services.failed("sandbox", error)
            return ApiError(500, f"the gateway could not use a sandbox: {error.message}")
        if isinstance(error, asyncio.CancelledError):
            return ApiError(529, "the gateway is stopping")
        if isinstance(error, RecursionError):
            return invalid("the request, or the answer to it, is nested too deeply")
        self._services.failed("turn", error)
        return ApiError(500, "the gateway failed at this request")

    async def _step(self) -> bool:
        """Do the next step. Returns whether it was the last."""
        if self._open:
            return await self._run_cell(self._open[0])
        if self._samples >= self._services.settings.iterations:
            return self._finish({"stop_reason": "pause_turn"})
        return self._follow(await self._sample())

    # Cells

    async def _run_cell(self, cell: AnyBlock) -> bool:
        if not self.message.begun:
            self.message.begin()  # code may run for long, and a client that streams should see that something happens
        outcome = await self._cells.outcome(cell)
        if isinstance(outcome, Waiting):
            for call in outcome.calls:
                self.message.add(_programmatic_use(call, cell))
            self._services.metrics.called(len(outcome.calls))
            return self._finish({"stop_reason": "tool_use"})
        self._open.popleft()
        self.message.container = self._cells.container_shown
        self.message.add(outcome.block)
        self._services.metrics.cell_ended(str(cell.get("name")), outcome.block)
        return False

    # Samples

    async def _sample(self) -> Sample:
        if self._history is None:
            self._history = await inlined(self._request.messages, self._services.rooms.files, self._owner)
        code_has_run = self._samples > 0 or bool(self._request.calls.cells)
        sample = await self._sampler.sample(self._body(self._history), patient=code_has_run)
        self._samples += 1
        self._notes.clear()
        return sample

    def _follow(self, sample: Sample) -> bool:
        """Act on a sample: run its cells, or end the turn."""
        stop, reason = sample.stop, sample.stop_reason
        if self._request.tools.version is None or reason in _FINAL:
            return self._finish(stop)
        if sample.client_calls:
            return self._finish({**stop, "stop_reason": "tool_use"})
        if sample.unknown:
            self._note_unknown(sample)
        if sample.cells or sample.unknown:
            self._open.extend(sample.cells)
            return False
        return self._finish({**stop, "stop_reason": "end_turn" if reason in (None, "tool_use") else reason})

    def _note_unknown(self, sample: Sample) -> None:
        """Tell the model that a tool does not exist. The client does not see such calls."""
        self._confused = 0 if sample.cells else self._confused + 1
        names = ", ".join(sorted(set(sample.unknown)))
        if self._confused >= _CONFUSED_SAMPLES:
            raise ApiError(502, f"the upstream's model keeps calling tools that do not exist: {names}")
        known = [str(tool.get("name")) for tool in self._request.tools.for_upstream if tool.get("name")]
        self._notes.append(f"[There is no tool named {names}. The tools are: {', '.join(known)}.]")

    def _body(self, messages: Sequence[Message]) -> dict[str, Any]:
        """The body of the request to the upstream."""
        request, tools = self._request, self._request.tools
        history = list(messages)
        if self.message.content:
            history.append({"role": "assistant", "content": self.message.content})
        if self._notes:
            history.append({"role": "user", "content": [{"type": "text", "text": note} for note in self._notes]})
        told = translate(history, self._texts.tell, self._texts.tell_upload)
        body = {**request.fields, "messages": told, "stream": request.stream}
        if tools.for_upstream:
            body["tools"] = list(tools.for_upstream)
            begins = not self._samples and not request.calls.cells and request.messages[-1].get("role") != "assistant"
            choice = upstream_choice(request.tool_choice, tools, first=begins)
            if choice is not None:
                body["tool_choice"] = choice
        return body

    # The end

    def _finish(self, stop: Mapping[str, Any]) -> bool:
        self.message.container = self._cells.container_shown
        self.message.finish(stop)
        return True

    def _keep(self) -> None:
        thread = self._request.thread
        if thread is not None:
            kept = thread.with_answer(self.message.content, self._cells.container_id)
            self._services.threads.keep(self._owner, self.message.id, kept)


def _programmatic_use(call: PendingToolCall, cell: AnyBlock) -> AnyBlock:
    caller = {"type": CALLER_TYPE, "tool_id": cell.get("id")}
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": dict(call.input), "caller": caller}
