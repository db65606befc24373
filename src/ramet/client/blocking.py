"""Carries out operations in the caller's own thread."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any, TypeVar

from ramet.client.operations import RECEIVE, Emit, Operation, Step
from ramet.transport.seam import Engine, Link

Returned = TypeVar("Returned")


def perform(engine: Engine, operation: Operation[Returned], source: Iterator[bytes] | None = None) -> Returned:
    """Carry out an operation that emits nothing. The loop of ``iterate`` again, without the price of a generator."""
    link = engine.link()
    try:
        step = next(operation)
        while True:
            step = _take(step, link, operation, source)
    except StopIteration as stop:
        value: Returned = stop.value
        return value
    finally:
        operation.close()
        link.leave()


def iterate(engine: Engine, operation: Operation[None]) -> Generator[Any, None, None]:
    """Carry out an operation and give what it emits. Giving up early gives up the call."""
    link = engine.link()
    try:
        step = next(operation)
        while True:
            if isinstance(step, Emit):
                yield step.item
                step = next(operation)
            else:
                step = _take(step, link, operation, None)
    except StopIteration:
        return
    finally:
        operation.close()
        link.leave()


def _take(step: Step, link: Link, operation: Operation[Any], source: Iterator[bytes] | None) -> Step:
    """Carry out one step; gives the next."""
    if isinstance(step, bytes):
        link.send(step)
        return next(operation)
    if step is RECEIVE:
        return operation.send(link.receive())
    try:
        piece = next(source, None) if source is not None else None
    except Exception as error:
        return operation.throw(error)
    return operation.send(piece)
