"""What a guest says in headers: counted, and no faster than the engine has time for it."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from ramet.engine.cells.rate_limit import RateLimit
from ramet.engine.cells.sandbox import Sandbox
from ramet.engine.output.collecting import Collecting
from ramet.engine.settings import Settings
from ramet.protocol import guest
from ramet.protocol.frames import encode
from ramet.protocol.guest import Rich
from tests.unit.scripted import ScriptedBody
from tests.unit.scripted_engine import QUICK, SPEC, Call
from tests.waiting import until


def display(blob: bytes, name: str | None = None, what: str = "display", header_bytes: int = 0) -> Rich:
    return Rich(1, what, name, (("text/plain", "s", len(blob)),), blob, header_bytes)


def collecting(rich_bytes: int = 1_000_000) -> Collecting:
    return Collecting(replace(Settings(), rich_bytes=rich_bytes), lambda _: None)


def kept(sink: Collecting) -> list[bytes]:
    found: list[bytes] = []
    sink.collect(lambda collected: found.extend(rich.blob for rich in collected.rich))
    return found


def dropped(sink: Collecting) -> int:
    counts: list[int] = []
    sink.collect(lambda collected: counts.append(collected.truncated.results_dropped if collected.truncated else 0))
    return counts[0]


def test_headers_count_as_the_contents_of_rich_results_do() -> None:
    sink = collecting(rich_bytes=1_000_000)
    for _ in range(10):
        sink.rich(display(b"", header_bytes=60_000))
    assert (len(kept(sink)), dropped(sink)) == (2, 8)


def test_an_update_changes_every_display_of_its_id_and_no_other() -> None:
    sink = collecting()
    for blob, name in ((b"1", "a"), (b"2", "b"), (b"3", "a"), (b"4", None)):
        sink.rich(display(blob, name))
    sink.rich(display(b"A", "a", "update"))
    sink.rich(display(b"5", "a"))
    assert kept(sink) == [b"A", b"2", b"A", b"4", b"5"]
    sink.rich(display(b"AA", "a", "update"))
    for stray in ("unknown", None):
        sink.rich(display(b"nobody", stray, "update"))
    assert kept(sink) == [b"AA", b"2", b"AA", b"4", b"AA"]
    sink.rich(display(b"", None, "clear"))
    sink.rich(display(b"6", "b", "update"))
    assert kept(sink) == []


def test_an_update_that_has_no_room_is_dropped_and_counted() -> None:
    sink = collecting(rich_bytes=100)
    for _ in range(3):
        sink.rich(display(b"x" * 10, "a"))
    sink.rich(display(b"y" * 30, "a", "update"))
    assert kept(sink) == [b"y" * 30] * 3
    sink.rich(display(b"z" * 40, "a", "update"))
    assert (kept(sink), dropped(sink)) == ([b"y" * 30] * 3, 1)
    sink.rich(display(b"w", "a", "update"))
    sink.rich(display(b"v" * 90))
    assert kept(sink) == [b"w"] * 3 + [b"v" * 90]


def test_a_meter_lets_an_amount_pass_and_then_so_much_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr("ramet.engine.cells.rate_limit.monotonic", lambda: clock[0])
    meter = RateLimit(1000, 100)
    assert [meter.spend(500), meter.spend(500)] == [0.0, 0.0]
    assert meter.spend(50) == pytest.approx(0.5)
    clock[0] += 0.5
    assert meter.spend(10) == pytest.approx(0.1)
    clock[0] += 1000.0
    assert [meter.spend(1000), meter.spend(1000)] == [0.0, 0.0]
    assert meter.spend(100) == pytest.approx(1.0)


async def test_a_guest_that_says_too_much_waits_and_nothing_is_lost(tmp_path: Path) -> None:
    """No honest program is ended for it: a loop that displays something each time only becomes slower."""
    settings = replace(QUICK, guest_header_bytes=2000, guest_header_bytes_per_second=20_000)
    body = ScriptedBody(tmp_path)
    sandbox = Sandbox("sbx_test", SPEC, body, settings)
    call = Call(sandbox)
    await body.next_frame()
    for number in range(20):
        text = str(number).encode()
        header = {"id": 1, "what": "display", "mimes": [["text/plain", "s", len(text)]], "display_id": "x" * 200}
        body.send(encode(guest.RESULT, header, text))
    body.done(1)
    await until(lambda: sandbox.repl._resting)
    assert not call.done
    await until(lambda: call.done)
    outcome = await call.outcome()
    assert len(outcome.rich) + (outcome.truncated.results_dropped if outcome.truncated else 0) == 20
    await sandbox.close()
    await body.close()


async def test_a_sandbox_whose_guest_waits_can_be_closed(tmp_path: Path) -> None:
    settings = replace(QUICK, guest_header_bytes=0, guest_header_bytes_per_second=1)
    body = ScriptedBody(tmp_path)
    sandbox = Sandbox("sbx_test", SPEC, body, settings)
    Call(sandbox)
    await body.next_frame()
    body.send(encode(guest.DONE, json.loads('{"id": 1, "exit_code": 0, "error": null, "interrupted": false}')))
    await until(lambda: sandbox.repl._resting)
    async with asyncio.timeout(5):
        await sandbox.close()
    assert sandbox.state == "closed"
    await body.close()
