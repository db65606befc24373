"""Carries out operations in the caller's own thread."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any, TypeVar

from ramet.client.open_streams import Reading
from ramet.client.operations import RECEIVE, Emit, Operation, Step, ToolCalled, ToolCancelled
from ramet.client.tools.attending import Answering, Attendance
from ramet.transport.seam import Engine, Link

Returned = TypeVar("Returned")
Made = TypeVar("Made")
Kept = TypeVar("Kept")


def perform(
    engine: Engine,
    operation: Operation[Returned],
    source: Iterator[bytes] | None = None,
    answering: Answering | None = None,
) -> Returned:
    """Carry out an operation that emits nothing. The loop of ``iterate`` again, without the price of a generator."""
    link = engine.link()
    attended = False
    try:
        step = next(operation)
        while True:
            if answering is not None and isinstance(step, ToolCalled) and not engine.remote:
                attended = True
                attended_value: Returned = Attendance(link, operation, answering).result(step)
                return attended_value
            step = _take(step, link, operation, source, answering)
    except StopIteration as stop:
        value: Returned = stop.value
        return value
    finally:
        if answering is not None:
            answering.end()
        if not attended:  # else a thread that does not know yet that it is given up may be in it
            operation.close()
        link.leave()


def make(engine: Engine, operation: Operation[Made], keep: Callable[[Made], Kept]) -> Kept:
    """Carry out an operation that makes something; ``keep`` puts that where it will be closed from.

    An exception at any moment, of a signal handler for instance, leaves nothing behind: before the word ``taken`` it is
    the engine that closes what was made, and after it the handle.
    """
    link = engine.link()
    try:
        step = next(operation)
        while True:
            step = _take(step, link, operation, None, None)
    except StopIteration as stop:
        kept = keep(stop.value)
        link.taken()
        return kept
    finally:
        operation.close()
        link.leave()


def iterate(
    engine: Engine,
    operation: Operation[None],
    answering: Answering | None = None,
    reading: Reading | None = None,
) -> Generator[Any, None, None]:
    """Carry out an operation and give what it emits. Giving up early gives up the call."""
    if reading is not None:
        reading.begin()
    link = engine.link()
    try:
        step = next(operation)
        while True:
            if isinstance(step, Emit):
                if reading is not None:
                    reading.gives(step.item)
                yield step.item
                step = next(operation)
            else:
                step = _take(step, link, operation, None, answering)
    except StopIteration:
        return
    finally:
        if reading is not None:
            reading.end()
        if answering is not None:
            answering.end()
        operation.close()
        link.leave()


def _take(
    step: Step,
    link: Link,
    operation: Operation[Any],
    source: Iterator[bytes] | None,
    answering: Answering | None,
) -> Step:
    """Carry out one step; gives the next."""
    if isinstance(step, bytes):
        link.send(step)
        return next(operation)
    if step is RECEIVE:
        return operation.send(link.receive())
    if isinstance(step, ToolCalled | ToolCancelled):
        assert answering is not None
        answering.take(step)
        return next(operation)
    try:
        piece = next(source, None) if source is not None else None
    except Exception as error:
        return operation.throw(error)
    return operation.send(piece)
