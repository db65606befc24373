"""Programs that begin to say something and never come to its end are waited for, but not for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

import pytest
import uvloop

from ramet.network.listeners import first_bytes, socks
from ramet.network.listeners.client_hello import MalformedHello
from ramet.network.streams.stream import Stream
from tests.network.hellos import hello
from tests.network.proxies import WAIT_SECONDS


class Halting(Stream):
    """Somebody who says this, a byte at a time, and then nothing more."""

    def __init__(self, said: bytes) -> None:
        super().__init__()
        self._pieces.extend(said[at : at + 1] for at in range(len(said)))
        self.heard = b""

    async def read(self) -> bytes:
        if not self._pieces:
            await asyncio.get_running_loop().create_future()
        return self._pieces.popleft()

    def write(self, data: bytes) -> None:
        self.heard += data


def run(work: Coroutine[None, None, object]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(WAIT_SECONDS):
            await work

    uvloop.run(bounded())


@pytest.fixture(autouse=True)
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socks, "_SECONDS", 0.01)
    monkeypatch.setattr(first_bytes, "_HELLO_SECONDS", 0.01)


@pytest.mark.parametrize("said", [b"\x05", b"\x05\xff" + b"\x01" * 100, b"\x05\x01\x00\x05\x01\x00\x03\xffdata"])
def test_a_handshake_of_socks_without_an_end(said: bytes) -> None:
    with pytest.raises(TimeoutError):
        run(socks.hear_request(Halting(said)))


def test_a_hello_without_an_end() -> None:
    with pytest.raises(MalformedHello, match="did not come to its end"):
        run(first_bytes.hear_hello(Halting(hello("data.example")[1:-1]), b"\x16"))


def test_a_hello_that_is_longer_than_any() -> None:
    record = b"\x16\x03\x01\x40\x00" + b"\x01\x00\xff\xff" + bytes(0x4000 - 4)
    with pytest.raises(MalformedHello):
        run(first_bytes.hear_hello(Halting(b""), record + (b"\x16\x03\x01\x40\x00" + bytes(0x4000)) * 5))
