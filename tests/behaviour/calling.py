"""What tests of tools share: functions to be called, and code that calls them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from ramet import Language, Result
from tests.behaviour.faces import AnySandbox

InBackground = Callable[..., Future[Result]]


def ok(result: Result) -> Result:
    assert result.ok, result.stderr
    return result


def printed(sandbox: AnySandbox, code: str, language: Language = "python") -> str:
    return ok(sandbox.run_code(code, language=language)).stdout.strip()


def url_of(sandbox: AnySandbox) -> str:
    """Of the server that it is at, if any."""
    face: Any = getattr(sandbox, "awaited", sandbox)
    engine = face._handle.engine
    return str(engine.place) if engine.remote else ""


def fetch_sales_data(sku: str, days: int = 2) -> dict[str, object]:
    """Retrieve daily sales by product SKU"""
    return {"sku": sku, "days": [{"units": number + 1} for number in range(days)]}


async def fetch_slowly(sku: str) -> str:
    """The same, on an event loop."""
    await asyncio.sleep(0)
    return sku.lower()
