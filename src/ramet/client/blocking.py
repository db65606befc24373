"""Carries out operations in the caller's own thread, on a blocking socket: no helper thread, no loop, no hand-over."""

from __future__ import annotations

import socket
from collections.abc import Generator, Iterator
from typing import Any, TypeVar

from ramet.client.exchange import Exchange
from ramet.client.operations import PULL, Emit, Operation
from ramet.transport.embedded import EmbeddedEngine

Returned = TypeVar("Returned")


def perform(engine: EmbeddedEngine, operation: Operation[Returned], source: Iterator[bytes] | None = None) -> Returned:
    """Carry out an operation that emits nothing."""
    steps = iterate(engine, operation, source)
    try:
        while True:
            next(steps)
    except StopIteration as stop:
        returned: Returned = stop.value
        return returned


def iterate(
    engine: EmbeddedEngine, operation: Operation[Returned], source: Iterator[bytes] | None = None
) -> Generator[Any, None, Returned]:
    """Carry out an operation and give what it emits. Giving up early closes the connection: the engine notices."""
    exchange = Exchange()
    connection = engine.connect(blocking=True)
    try:
        step = next(operation)
        while True:
            if isinstance(step, bytes):
                _send(engine, connection, step)
                step = next(operation)
            elif isinstance(step, Emit):
                yield step.item
                step = next(operation)
            elif step is PULL:
                step = operation.send(next(source, None) if source is not None else None)
            else:
                while (frame := exchange.next_frame()) is None:
                    exchange.feed(_receive(engine, connection, exchange.wanted_bytes))
                step = operation.send(frame)
    except StopIteration as stop:
        value: Returned = stop.value
        return value
    finally:
        operation.close()
        if exchange.over:
            engine.give_back(connection, blocking=True)
        else:
            connection.close()


def _send(engine: EmbeddedEngine, connection: socket.socket, data: bytes) -> None:
    try:
        connection.sendall(data)
    except OSError as error:
        raise engine.lost() from error


def _receive(engine: EmbeddedEngine, connection: socket.socket, count: int) -> bytes:
    try:
        data = connection.recv(count)
    except OSError as error:
        raise engine.lost() from error
    if not data:
        raise engine.lost()
    return data
