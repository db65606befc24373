"""Carries out operations in the caller's own thread, on a blocking socket: no helper thread, no loop, no hand-over."""

from __future__ import annotations

import os
import socket
from collections.abc import Generator, Iterator
from time import perf_counter
from typing import Any, TypeVar

from ramet.client.exchange import Exchange
from ramet.client.operations import PULL, Emit, Operation, Step
from ramet.transport.embedded import EmbeddedEngine

Returned = TypeVar("Returned")

_MOMENT_SECONDS = 0.0003
_QUICK_SECONDS = 0.001  # a call that took no longer is worth looking for the next time
_WORTH_IT = len(os.sched_getaffinity(0)) > 1  # with one processor the engine could not run while we look


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


def _look(engine: EmbeddedEngine, connection: socket.socket, count: int) -> bytes:
    """Look for the answer for a moment before sleeping: waking an idle processor costs as much as a short cell.

    Only while calls are answered that quickly; after a slow one the next waits in peace, and tells if it was quick.
    """
    began = perf_counter()
    if engine.quick:
        while perf_counter() - began < _MOMENT_SECONDS:
            try:
                return connection.recv(count, socket.MSG_DONTWAIT)
            except BlockingIOError:
                os.sched_yield()
    data = connection.recv(count)
    engine.quick = _WORTH_IT and perf_counter() - began < _QUICK_SECONDS
    return data


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
        data = _look(engine, connection, count)
    except OSError as error:
        raise engine.lost() from error
    if not data:
        raise engine.lost()
    return data
