"""Carries out a request once, however often it is sent with the same ``Idempotency-Key``."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable

from ramet.doors.http.records import ServerRecords, StoredAnswer
from ramet.errors import InvalidArgument
from ramet.protocol.argument_errors import wrong_argument

__all__ = ["StoredAnswer", "once"]

_HEADER = "Idempotency-Key"
_KEY = re.compile(r"[!-~]{1,255}")
_FIRST_ERROR_STATUS = 400


async def once(
    records: ServerRecords,
    owner: str,
    key: str | None,
    fingerprint: bytes,
    work: Callable[[], Awaitable[StoredAnswer]],
) -> StoredAnswer:
    """Return the answer of ``work``, or the answer that the same request of this owner got before.

    ``fingerprint`` covers everything that makes it the same request. A request that comes while the first is being
    carried out waits for it. Errors are not recorded: the next request tries again. Raises InvalidArgument if the key
    was used for a different request.
    """
    if key is None:
        return await work()
    if not _KEY.fullmatch(key):
        raise wrong_argument(_HEADER, f"{_HEADER} must be 1 to 255 visible ASCII characters")
    name = (owner, key)
    # A keyed hash: a request may hold secrets, and short ones could be guessed from a plain hash.
    print_of_request = records.secret.fingerprint(fingerprint)
    # A loop: when the first request fails, several may have waited for it, and the next to run is then the first one.
    while (first := records.in_flight.get(name)) is not None:
        _check_same(first[0], print_of_request)
        await _over(first[1])
    # No await from here until the entry in `in_flight`: otherwise two requests could both find nothing and both run.
    recorded = records.recall(owner, key)
    if recorded is not None:
        _check_same(recorded.fingerprint, print_of_request)
        return recorded.answer
    done = asyncio.get_running_loop().create_future()
    records.in_flight[name] = print_of_request, done
    try:
        answer = await work()
        if answer.status < _FIRST_ERROR_STATUS:
            records.record(owner, key, print_of_request, answer)
        return answer
    finally:
        del records.in_flight[name]
        done.set_result(None)


async def _over(done: asyncio.Future[None]) -> None:
    # Shielded: a request that is cancelled must not cancel the future that other requests wait for.
    await asyncio.shield(done)


def _check_same(before: bytes, now: bytes) -> None:
    if before != now:
        raise InvalidArgument(
            f"this {_HEADER} was used for a different request before",
            hint="send the same request again, or use a new key for a new one",
            details={"argument": _HEADER, "status": 409},
        )
