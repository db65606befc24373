"""Operations of the client, carried out without any I/O."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ramet.client.operations.steps import RECEIVE, Emit, Operation
from ramet.protocol.frames import FROM_ENGINE, FrameDecoder


def play(operation: Operation[Any], *answers: bytes, pulls: Iterable[bytes] = ()) -> tuple[object, list[Any], bytes]:
    """Carry out an operation against given answers: what it returned, emitted and sent."""
    frames = FrameDecoder(FROM_ENGINE).feed(b"".join(answers))
    source = iter(pulls)
    emitted, sent = [], b""
    try:
        step = next(operation)
        while True:
            if isinstance(step, bytes):
                sent += step
                step = next(operation)
            elif isinstance(step, Emit):
                emitted.append(step.item)
                step = next(operation)
            else:
                step = operation.send(next(frames) if step is RECEIVE else next(source, None))
    except StopIteration as stop:
        return stop.value, emitted, sent
