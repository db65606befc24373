"""The engine's record of what a sandbox has tried to reach."""

from __future__ import annotations

from typing import Any

import pytest

from ramet.engine.network.log import KEPT, ConnectionLog
from ramet.errors import ProtocolError
from ramet.protocol.network.specs import CONNECTIONS_AT_MOST


def _tried(entry: int, opened: bool = True, **more: Any) -> dict[str, Any]:
    usual = {"time": 1.0, "kind": "http", "host": "data.example", "port": 80, "allowed": True, "rule": "data.example"}
    return {"say": "tried", "id": 1, "entry": entry, **usual, "open": opened, **more}


def _counted(entry: int, sent: int, received: int, opened: bool, reason: str | None = None) -> dict[str, Any]:
    return {"entry": entry, "sent": sent, "received": received, "open": opened, "allowed": True, "reason": reason}


def test_bytes_of_a_connection_are_those_that_were_told_last() -> None:
    log = ConnectionLog()
    log.tried(1, _tried(1))
    log.counted(1, _counted(1, 10, 100, True))
    log.counted(1, _counted(1, 20, 300, False, "cut"))
    (attempt,) = log.attempts()
    assert (attempt.sent_bytes, attempt.received_bytes, attempt.open, attempt.reason) == (20, 300, False, "cut")
    assert log.used_bytes == 320


def test_a_connection_that_had_ended_when_it_was_first_told_of_has_its_bytes() -> None:
    log = ConnectionLog()
    log.tried(1, _tried(1, opened=False))
    log.counted(1, _counted(1, 5, 6, False))
    assert log.used_bytes == 11
    assert log.attempts()[0].received_bytes == 6


def test_one_that_was_let_pass_by_name_may_turn_out_as_refused_and_stays_so() -> None:
    log = ConnectionLog()
    log.tried(1, _tried(1))
    log.counted(1, {**_counted(1, 0, 0, True, "TLS names another server"), "allowed": False})
    log.counted(1, _counted(1, 0, 0, False))
    (attempt,) = log.attempts()
    assert (attempt.allowed, attempt.reason) == (False, "TLS names another server")


def test_the_oldest_are_dropped_and_counted_and_their_bytes_still_count() -> None:
    log = ConnectionLog()
    for entry in range(KEPT + 5):
        log.tried(1, _tried(entry))
    assert (len(log.attempts()), log.dropped) == (KEPT, 5)
    log.counted(1, _counted(0, 1, 2, False))
    assert log.used_bytes == 3
    log.not_told(7)
    assert log.dropped == 12


def test_the_same_number_in_another_life_is_another_connection() -> None:
    log = ConnectionLog()
    log.tried(1, _tried(1))
    log.tried(2, _tried(1))
    log.ended(1, "it ended")
    assert [(attempt.open, attempt.reason) for attempt in log.attempts()] == [(False, "it ended"), (True, None)]


def test_what_code_in_a_sandbox_could_make_long_is_cut() -> None:
    log = ConnectionLog()
    log.tried(1, _tried(1, host="x" * 1000, reason="y" * 10_000))
    (attempt,) = log.attempts()
    assert len(attempt.host) <= 300
    assert len(attempt.reason or "") <= 500


@pytest.mark.parametrize("field", ["host", "reason", "rule", "address"])
def test_no_text_can_steer_a_terminal_or_look_like_another_line(field: str) -> None:
    log = ConnectionLog()
    log.tried(1, _tried(1) | {field: "\x1b[2Jx\n12:00:00 http bank.example:443 allowed\u202e\ud800é"})
    shown = getattr(log.attempts()[0], field)
    assert shown == "\\x1b[2Jx\\n12:00:00 http bank.example:443 allowed\\u202e\\ud800é"
    log.counted(1, _counted(1, 1, 1, False, "\x1b\n"))
    assert log.attempts()[0].reason == "\\x1b\\n"


def test_a_proxy_that_forges_cannot_fill_the_engine() -> None:
    log = ConnectionLog()
    log.tried(1, _tried(1, rule="r" * 100_000, address="a" * 100_000))
    assert all(len(text or "") <= 500 for text in (log.attempts()[0].rule, log.attempts()[0].address))
    for entry in range(2 * CONNECTIONS_AT_MOST):
        log.tried(1, _tried(entry))
    with pytest.raises(ProtocolError):
        log.tried(1, _tried(-1))
    with pytest.raises(ProtocolError):
        log.counted(1, _counted(1, 10**4000, 0, True))
    with pytest.raises(ProtocolError):
        log.not_told(10**4000)


_NO_NUMBER = float("nan")


@pytest.mark.parametrize(
    "wrong",
    [
        {"port": "80"},
        {"port": -1},
        {"port": 10**400},
        {"kind": "smtp"},
        {"entry": None},
        {"open": 1},
        {"time": _NO_NUMBER},
        {"time": 10**400},
        {"time": -1.0},
    ],
)
def test_what_makes_no_sense_is_not_believed(wrong: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError):
        ConnectionLog().tried(1, {**_tried(1), **wrong})


def test_whoever_counts_hears_of_each() -> None:
    log = ConnectionLog()
    heard: list[bool] = []
    log.on_attempt = heard.append
    log.tried(1, _tried(1))
    log.tried(1, _tried(2, allowed=False, opened=False))
    other = ConnectionLog()
    other.tried(3, _tried(1))
    log.append(other.attempts())
    assert heard == [True, False]  # the other was counted where it was tried
    assert [attempt.open for attempt in log.attempts()] == [True, False, False]
