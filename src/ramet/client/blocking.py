"""Carries out operations in the caller's own thread, on a blocking socket: no helper thread, no loop, no hand-over."""

from __future__ import annotations

import socket
from collections.abc import Generator, Iterator
from typing import Any, TypeVar

from ramet.client.exchange import Exchange
from ramet.client.operations import PULL, Emit, Operation, Step
from ramet.transport.embedded import EmbeddedEngine

Returned = TypeVar("Returned")


def perform(engine: EmbeddedEngine, operation: Operation[Returned], source: Iterator[bytes] | None = None) -> Returned:
    """Carry out an operation that emits nothing. The loop of ``iterate`` again, without the price of a generator."""
    exchange = Exchange()
    connection = engine.connect(blocking=True)
    try:
        step = next(operation)
        while True:
            step = _take(step, engine, connection, operation, exchange, source)
    except StopIteration as stop:
        value: Returned = stop.value
        return value
    finally:
        _leave(engine, connection, operation, exchange)


def iterate(engine: EmbeddedEngine, operation: Operation[None]) -> Generator[Any, None, None]:
    """Carry out an operation and give what it emits. Giving up early closes the connection: the engine notices."""
    exchange = Exchange()
    connection = engine.connect(blocking=True)
    try:
        step = next(operation)
        while True:
            if isinstance(step, Emit):
                yield step.item
                step = next(operation)
            else:
                step = _take(step, engine, connection, operation, exchange, None)
    except StopIteration:
        return
    finally:
        _leave(engine, connection, operation, exchange)


def _take(
    step: Step,
    engine: EmbeddedEngine,
    connection: socket.socket,
    operation: Operation[Any],
    exchange: Exchange,
    source: Iterator[bytes] | None,
) -> Step:
    """Carry out one step; gives the next."""
    if isinstance(step, bytes):
        _send(engine, connection, step)
        return next(operation)
    if step is PULL:
        try:
            piece = next(source, None) if source is not None else None
        except Exception as error:
            return operation.throw(error)
        return operation.send(piece)
    while (frame := exchange.next_frame()) is None:
        exchange.feed(_receive(engine, connection, exchange.wanted_bytes))
    return operation.send(frame)


def _leave(engine: EmbeddedEngine, connection: socket.socket, operation: Operation[Any], exchange: Exchange) -> None:
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
