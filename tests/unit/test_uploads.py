"""Uploads that are refused: the client has not heard of it yet and sends on."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ramet.errors import SandboxClosed
from ramet.protocol import calls
from tests.unit.scripted_client import Client


@pytest.mark.parametrize("end", [calls.END, calls.ABORT])
async def test_the_data_of_a_refused_upload_is_thrown_away(connect: Callable[[], Client], end: int) -> None:
    client = connect()
    client.send(calls.WRITE, sandbox="sbx_unknown", path="/root/file", more=True)
    for _ in range(3):
        client.send(calls.CHUNK)
    client.send(end)
    with pytest.raises(SandboxClosed):
        await client.answer()
    # The connection is as good as before.
    assert (await client.ask(calls.SANDBOXES)).header["sandboxes"] == []


async def test_data_for_no_upload_at_all_is_a_breach(connect: Callable[[], Client]) -> None:
    client = connect()
    client.send(calls.CHUNK)
    with pytest.raises(Exception, match="not being written"):
        await client.answer()
