"""Runs cells, with reports of progress for clients that asked for them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace

from ramet import AsyncSandbox, ClearEvent, ExitEvent, Language, OutputEvent, Result, ResultEvent, RichResult
from ramet.integrations.bounding import Bounded
from ramet.integrations.results import OTHER_CHARACTERS, PRINTED_CHARACTERS, Shown, show

# Called with the number of characters printed so far and the text printed since the last report.
Report = Callable[[float, str], Awaitable[None]]

_log = logging.getLogger(__name__)
_REPORT_SECONDS = 0.1  # the least time between two reports, so that a chatty cell does not flood its client
_REPORT_CHARACTERS = 4_000  # a longer report keeps its end


async def run_cell(
    sandbox: AsyncSandbox, code: str, language: Language, timeout_seconds: float, report: Report | None
) -> Shown:
    """Run a cell and show its result. Cancelling this coroutine interrupts the cell. Raises RametError."""
    if report is None:
        return show(await sandbox.run_code(code, language, timeout_seconds, on_disconnect="interrupt"))
    stdout, stderr = Bounded(PRINTED_CHARACTERS), Bounded(OTHER_CHARACTERS)
    displayed: list[RichResult] = []
    result: Result | None = None
    clears_next = False
    reporter = _Reporter(report)
    reporting = asyncio.create_task(reporter.run())
    try:
        events = sandbox.run_code_stream(code, language, timeout_seconds, on_disconnect="interrupt")
        async with aclosing(events):
            async for event in events:
                if isinstance(event, ClearEvent) and event.wait:
                    clears_next = True
                    continue
                if isinstance(event, ClearEvent) or (clears_next and not isinstance(event, ExitEvent)):
                    stdout, stderr = Bounded(PRINTED_CHARACTERS), Bounded(OTHER_CHARACTERS)
                    displayed.clear()
                    clears_next = False
                if isinstance(event, OutputEvent):
                    (stdout if event.type == "stdout" else stderr).add(event.data)
                    reporter.add(event.data)
                elif isinstance(event, ResultEvent):
                    displayed.append(event.result)
                elif isinstance(event, ExitEvent):
                    result = replace(event.result, results=(*displayed, *event.result.results))
    finally:
        reporting.cancel()
    assert result is not None, "a stream of events ends with an exit"
    return show(result, stdout.text(), stderr.text())


class _Reporter:
    """Collects output and reports it at a pace that a client can follow."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._something = asyncio.Event()
        self._text = ""
        self._count = 0

    def add(self, text: str) -> None:
        self._count += len(text)
        self._text = (self._text + text)[-_REPORT_CHARACTERS:]
        self._something.set()

    async def run(self) -> None:
        while True:
            await self._something.wait()
            # Cleared before the text is taken: output that arrives during the await below sets the event again.
            self._something.clear()
            text, self._text = self._text, ""
            try:
                await self._report(float(self._count), text)
            except Exception:
                # Not an error of the cell: its result will still arrive.
                _log.debug("a report of progress did not arrive", exc_info=True)
            await asyncio.sleep(_REPORT_SECONDS)
