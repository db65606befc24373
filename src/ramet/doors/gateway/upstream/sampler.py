"""Samples the upstream, and retries where a retry costs less than a failure."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from ramet.doors.gateway.errors import ApiError
from ramet.doors.gateway.requests.declarations import DeclaredTools
from ramet.doors.gateway.services import Services
from ramet.doors.gateway.turns.message_builder import MessageBuilder
from ramet.doors.gateway.upstream.client import Said, whole_as_events
from ramet.doors.gateway.upstream.credentials import UpstreamCaller
from ramet.doors.gateway.upstream.sample_reader import Sample, read_sample

_TRY_AGAIN = frozenset((408, 409, 429, 500, 502, 503, 504, 529))
_LONGEST_WAIT_SECONDS = 30.0


class Sampler:
    """Writes samples into a message. Owns only the facts of the upstream's last answer."""

    def __init__(
        self,
        services: Services,
        caller: UpstreamCaller,
        message: MessageBuilder,
        tools: DeclaredTools,
        cell_ids: set[str],
    ) -> None:
        """``cell_ids``: ids of cells that the conversation already has."""
        self._services = services
        self._caller = caller
        self._message = message
        self._tools = tools
        self._cell_ids = cell_ids
        self.said = Said()

    async def sample(self, body: dict[str, Any], *, patient: bool) -> Sample:
        """Sample once. Raises ApiError.

        ``patient``: code has run in this turn. If we gave up, a repeated request would run it again; so we retry.
        """
        waits = list(self._services.settings.retry_seconds) if patient else []
        while True:
            before = self._message.mark()
            try:
                return await self._once(body)
            except ApiError as error:
                self._services.metrics.sample_ended(None)
                told = self._message.mark() != before  # the client has a part of it, which cannot be taken back
                if not waits or told or error.status not in _TRY_AGAIN:
                    raise self._explained(error) from None
                self._message.usage.drop_sample()
                await asyncio.sleep(min(max(waits.pop(0), _retry_after(error)), _LONGEST_WAIT_SECONDS))

    async def _once(self, body: dict[str, Any]) -> Sample:
        upstream = self._services.upstream
        if body["stream"]:
            async with aclosing(upstream.stream(body, self._caller, self.said)) as events:
                sample = await self._read(events)
        else:
            sample = await self._read(_each(whole_as_events(await upstream.create(body, self._caller, self.said))))
        self._services.metrics.sample_ended(self._message.usage.end_sample())
        return sample

    async def _read(self, events: AsyncIterator[dict[str, Any]]) -> Sample:
        broken = self._services.upstream.errors.broken
        return await read_sample(events, self._message, self._tools, self._cell_ids, broken)

    def _explained(self, error: ApiError) -> ApiError:
        """Add a hint to a refusal of something that only some upstreams support."""
        if error.status in (400, 404, 422) and self._tools.others:
            error.message += (
                f" (the request has server tools that only the upstream can carry out: {', '.join(self._tools.others)})"
            )
        return error


def _retry_after(error: ApiError) -> float:
    try:
        if "retry-after-ms" in error.headers:
            return float(error.headers["retry-after-ms"]) / 1000
        return float(error.headers.get("retry-after", 0))
    except ValueError:
        return 0.0  # a date, which depends on the upstream's clock


async def _each(events: list[dict[str, Any]]) -> AsyncIterator[dict[str, Any]]:
    for event in events:
        yield event
