"""Cells of a client that asked to be told of progress, and of one that did not."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace

from ramet import AsyncSandbox, ClearEvent, ExitEvent, Language, OutputEvent, Result, ResultEvent, RichResult
from ramet.integrations.bounding import Bounded
from ramet.integrations.results import OTHER_CHARACTERS, PRINTED_CHARACTERS, Shown, show

# How much was printed so far, and what was printed since the last report.
Report = Callable[[float, str], Awaitable[None]]

_log = logging.getLogger(__name__)
_REPORT_SECONDS = 0.1  # at least between two reports, so that a chatty cell does not flood its client
_REPORT_CHARACTERS = 4_000  # of one report, its end


async def run_cell(
    sandbox: AsyncSandbox, code: str, language: Language, timeout_seconds: float, report: Report | None
) -> Shown:
    """Run it. Cancelling what awaits this interrupts the cell."""
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
    """Gathers what is printed, and reports it at a pace that a client can follow."""

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
            self._something.clear()
            text, self._text = self._text, ""
            try:
                await self._report(float(self._count), text)
            except Exception:
                _log.debug("a report of progress did not arrive", exc_info=True)  # the result will
            await asyncio.sleep(_REPORT_SECONDS)
