"""Reads one answer of the upstream, event by event, into the growing message.

Calls of code execution become ``server_tool_use`` blocks, calls of the client's tools get their caller, and calls of
unknown tools are left out.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from ramet.doors.gateway.errors import ApiError
from ramet.doors.gateway.kinds import AnyBlock, client_id, is_own_result, is_own_use
from ramet.doors.gateway.requests.declarations import DeclaredTools
from ramet.doors.gateway.requests.tool_texts import PROGRAMMATIC_VERSIONS
from ramet.doors.gateway.turns.message_builder import OWN_FIELDS, MessageBuilder

Broken = Callable[[str], ApiError]
# Fields of blocks that grow, by the type of their deltas.
_GROWING = {"text_delta": "text", "thinking_delta": "thinking"}


@dataclass
class Sample:
    """The outcome of a sample."""

    cells: list[AnyBlock] = field(default_factory=list)
    """Calls of code execution, as the client sees them."""
    client_calls: int = 0
    unknown: list[str] = field(default_factory=list)
    """Names of unknown tools that were called."""
    stop: dict[str, Any] = field(default_factory=dict)

    @property
    def stop_reason(self) -> str | None:
        return self.stop.get("stop_reason")


async def read_sample(
    events: AsyncIterator[dict[str, Any]],
    message: MessageBuilder,
    tools: DeclaredTools,
    taken: set[str],
    broken: Broken,
) -> Sample:
    """Read a stream to its end. ``taken``: ids that no new cell may have; the new cells' ids are added.

    ``broken`` makes the error for an invalid stream.
    """
    return await _SampleReading(message, tools, taken, broken).read(events)


class _SampleReading:
    def __init__(self, message: MessageBuilder, tools: DeclaredTools, taken: set[str], broken: Broken) -> None:
        self._message = message
        self._tools = tools
        self._taken = taken
        self._broken = broken
        self._sample = Sample()
        self._open: dict[int, _OpenBlock] = {}
        self._started = False
        self._stopped = False

    async def read(self, events: AsyncIterator[dict[str, Any]]) -> Sample:
        async for event in events:
            self._take(event)
            if self._stopped:
                break
        if not self._started:
            raise self._broken("ended its stream before it began")
        if self._open or (not self._stopped and self._sample.stop_reason is None):
            raise self._broken("ended its stream in the middle of an answer")
        return self._sample

    def _take(self, event: dict[str, Any]) -> None:
        kind = event.get("type")
        if kind == "message_start":
            self._start(event)
        elif not self._started:
            raise self._broken(f"sent {str(kind)[:60]!r} before 'message_start'")
        elif kind == "content_block_start":
            self._open_block(event)
        elif kind == "content_block_delta":
            self._grow(event)
        elif kind == "content_block_stop":
            self._close_block(event)
        elif kind == "message_delta":
            self._change(event)
        elif kind == "message_stop":
            self._stopped = True
        # Ignore other events: later versions of the API may add some, and ask clients to skip them.

    def _start(self, event: dict[str, Any]) -> None:
        started = event.get("message")
        if self._started or not isinstance(started, dict):
            raise self._broken("sent a 'message_start' that cannot be")
        self._started = True
        self._message.usage.update(started.get("usage"))
        if self._message.begun:
            self._message.take_fields(started)
        else:
            self._message.begin(started)

    def _open_block(self, event: dict[str, Any]) -> None:
        index, block = event.get("index"), event.get("content_block")
        if not isinstance(index, int) or index in self._open or not _is_block(block):
            raise self._broken("sent a 'content_block_start' that cannot be")
        if self._tools.version is not None and is_own_result(block):
            raise self._broken("sent a result of code execution, which it does not carry out")
        shown = self._shown(block)
        opened = _OpenBlock(block if shown is None else shown)
        deltas = opened.split()
        if shown is not None:
            opened.place = self._message.open(dict(opened.block))
        self._open[index] = opened
        for delta in deltas:
            self._add(opened, delta)

    def _shown(self, block: AnyBlock) -> AnyBlock | None:
        """The block as the client sees it; None: the client does not see it."""
        if block["type"] != "tool_use" and not is_own_use(block):
            return dict(block)
        name, version = block.get("name"), self._tools.version
        # Since these versions blocks name their caller.
        caller = {"caller": {"type": "direct"}} if version in PROGRAMMATIC_VERSIONS else {}
        if name in self._tools.own_names:
            own = {"type": "server_tool_use", "id": self._own_id(block.get("id")), "name": name}
            return {**own, "input": block.get("input"), **caller}
        if block["type"] != "tool_use":
            return dict(block)
        if version is None or self._tools.knows(name):
            self._sample.client_calls += 1
            return {**block, **caller}
        self._sample.unknown.append(str(name)[:64])
        return None

    def _own_id(self, upstream_id: object) -> str:
        """An id that no other cell of the conversation has: results and clients find a cell by it."""
        own_id = client_id(upstream_id)
        if own_id in self._taken:
            own_id = client_id(None)
        self._taken.add(own_id)
        return own_id

    def _grow(self, event: dict[str, Any]) -> None:
        opened, delta = self._open.get(_index(event)), event.get("delta")
        if opened is None or not isinstance(delta, dict) or not isinstance(delta.get("type"), str):
            raise self._broken("sent a 'content_block_delta' that belongs to no block")
        self._add(opened, delta)

    def _add(self, opened: _OpenBlock, delta: dict[str, Any]) -> None:
        opened.grow(delta)
        if opened.place is not None:
            self._message.delta(opened.place, delta)

    def _close_block(self, event: dict[str, Any]) -> None:
        opened = self._open.pop(_index(event), None)
        if opened is None:
            raise self._broken("sent a 'content_block_stop' that belongs to no block")
        block = opened.finished()
        if opened.place is not None:
            self._message.close(opened.place, block)
        if block["type"] == "server_tool_use" and block.get("name") in self._tools.own_names:
            self._sample.cells.append(block)

    def _change(self, event: dict[str, Any]) -> None:
        delta = event.get("delta")
        if isinstance(delta, dict):
            if not isinstance(delta.get("stop_reason"), str | None):
                raise self._broken("sent a 'message_delta' that cannot be")
            self._sample.stop.update(_of_others(delta))
        self._message.usage.update(event.get("usage"))
        self._message.late_fields.update(_of_others(event))


class _OpenBlock:
    """An incomplete block. Its pieces are joined once, at its end."""

    def __init__(self, block: AnyBlock) -> None:
        self.block = block
        self.place: int | None = None
        """Its index in the message; None: the client does not see it."""
        self._pieces: dict[str, list[str]] = {}
        self._citations: list[Any] = []

    def split(self) -> list[dict[str, Any]]:
        """Turn content that came with the start of a block into deltas, because clients read text from deltas only."""
        deltas: list[dict[str, Any]] = []
        for kind, name in _GROWING.items():
            if self.block["type"] == name and self.block.get(name):
                deltas.append({"type": kind, name: self.block[name]})
                self.block[name] = ""
        if self.block["type"] in ("tool_use", "server_tool_use"):
            if given := self.block.get("input"):
                deltas.append({"type": "input_json_delta", "partial_json": json.dumps(given, ensure_ascii=False)})
            self.block["input"] = {}
        return deltas

    def grow(self, delta: dict[str, Any]) -> None:
        kind = delta.get("type")
        if kind == "input_json_delta":
            self._piece("input", delta.get("partial_json"))
        elif kind in _GROWING:
            self._piece(_GROWING[kind], delta.get(_GROWING[kind]))
        elif kind == "signature_delta":
            self.block["signature"] = delta.get("signature")
        elif kind == "citations_delta":
            self._citations.append(delta.get("citation"))

    def _piece(self, name: str, text: object) -> None:
        if isinstance(text, str):
            self._pieces.setdefault(name, []).append(text)

    def finished(self) -> AnyBlock:
        for name, pieces in self._pieces.items():
            text = "".join(pieces)
            self.block[name] = _input(text) if name == "input" else str(self.block.get(name) or "") + text
        if self._citations:
            before = self.block.get("citations")
            self.block["citations"] = [*(before if isinstance(before, list) else ()), *self._citations]
        return self.block


def _is_block(block: object) -> TypeGuard[AnyBlock]:
    """Whether it is a valid block, as far as it is read here."""
    if not isinstance(block, dict) or not isinstance(block.get("type"), str):
        return False
    return block["type"] not in ("tool_use", "server_tool_use") or isinstance(block.get("name"), str | None)


def _index(event: dict[str, Any]) -> int:
    index = event.get("index")
    return index if isinstance(index, int) else -1


def _of_others(fields: dict[str, Any]) -> dict[str, Any]:
    """The block without fields that only the gateway sets."""
    return {name: value for name, value in fields.items() if name not in OWN_FIELDS and name != "delta"}


def _input(text: str) -> dict[str, Any]:
    """A model's input for a tool. If it is not an object, it counts as empty, and the tool reports what is missing."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
