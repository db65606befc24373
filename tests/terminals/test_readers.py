"""Any number of readers, of whom none delays the program or another; what is kept for those who come late."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from ramet import LimitReached, Sandbox, Terminal
from ramet.client.drivers import blocking
from ramet.client.operations.steps import RECEIVE, Operation
from ramet.protocol import calls, fields
from ramet.protocol.frames import Frame, encode
from tests.conftest import Neighbour
from tests.terminals.conftest import OpenScreen
from tests.terminals.screens import Screen

_RING_BYTES = 1024 * 1024
_MANY = "head -c 10000000 /dev/zero | tr '\\0' x; echo END"


class Piece(NamedTuple):
    seq: int | None
    data: bytes
    next_seq: int
    exit_code: int | None


def long_poll(terminal: Terminal, since: int, max_bytes: int, timeout_ms: int) -> Piece:
    """One TERMINAL_READ, as a server in front of the engine asks it."""
    handle = terminal._terminal
    header = {"sandbox": handle.sandbox.id, "terminal": handle.id, "since": since}

    def ask() -> Operation[Piece]:
        yield encode(calls.TERMINAL_READ, {**header, "max_bytes": max_bytes, "timeout_ms": timeout_ms})
        seq, data = None, b""
        frame = yield RECEIVE
        assert isinstance(frame, Frame)
        if frame.kind == calls.TERMINAL_DATA:
            seq, data = fields.natural(frame.header, "seq"), frame.blob
            frame = yield RECEIVE
        assert isinstance(frame, Frame)
        assert frame.kind == calls.ANSWER
        return Piece(
            seq, data, fields.natural(frame.header, "next_seq"), fields.optional_whole(frame.header, "exit_code")
        )

    return blocking.perform(handle.sandbox.engine, ask())


def test_a_reader_that_does_not_read_delays_neither_program_nor_others(sandbox: Sandbox) -> None:
    terminal = sandbox.terminal(_MANY)
    slow = terminal.read()
    first = next(slow)
    other = Screen(sandbox.attach(terminal.id))
    assert terminal.wait() == 0
    assert other.wait_until_over().endswith(b"xEND\r\n")
    rest = b"".join(slow)
    assert rest.endswith(b"xEND\r\n")
    # It got the end, whatever it missed of the middle: not more than what waited for it and what is kept.
    assert _RING_BYTES <= len(first) + len(rest) < 4 * _RING_BYTES


def test_all_readers_see_the_same(shell: Screen, sandbox: Sandbox) -> None:
    others = [Screen(sandbox.attach(shell.terminal.id)) for _ in range(5)]
    shell.run("seq 1 1000")
    shell.type("exit 3\n")
    assert {screen.wait_until_over() for screen in others} == {shell.wait_until_over()}
    assert {screen.terminal.wait() for screen in others} == {3}


@pytest.mark.deep("load")
def test_the_last_mebibyte_is_kept(sandbox: Sandbox) -> None:
    terminal = sandbox.terminal("stty raw; seq -w 1 500000")  # 3.5 million bytes
    assert terminal.wait() == 0
    whole = "".join(f"{number}\n" for number in range(100001, 500001)).encode()
    kept = b"".join(sandbox.attach(terminal.id).read())
    assert len(kept) == _RING_BYTES
    assert kept == whole[-_RING_BYTES:]
    assert b"".join(sandbox.attach(terminal.id).read()) == kept


def test_a_reader_goes_on_where_it_was(sandbox: Sandbox) -> None:
    terminal = sandbox.terminal("stty -echo; echo one; read line; echo $line")
    reading = terminal.read()
    seen = next(reading)
    reading.close()
    terminal.write("two\n")
    assert terminal.wait() == 0
    assert seen + b"".join(terminal.read()) == b"one\r\ntwo\r\n"
    assert b"".join(terminal.read()) == b""


def test_a_long_poll_gives_what_is_there_and_waits_for_what_is_not(sandbox: Sandbox) -> None:
    terminal = sandbox.terminal("stty -echo; echo -n 0123456789; read line; echo -n $line; exit 5")
    first = long_poll(terminal, 0, 4, 30_000)
    assert (first.seq, len(first.data), first.exit_code) == (0, first.next_seq, None)
    seen = first
    text = first.data
    while len(text) < 10:
        seen = long_poll(terminal, seen.next_seq, 4, 30_000)
        text += seen.data
    assert text == b"0123456789"
    assert long_poll(terminal, 10, 100, 50) == Piece(None, b"", 10, None)
    terminal.write("abc\n")
    assert terminal.wait() == 5
    assert long_poll(terminal, 10, 2, 0) == Piece(10, b"ab", 12, None)  # the end comes after the output
    assert long_poll(terminal, 12, 2, 0) == Piece(12, b"c", 13, 5)
    assert long_poll(terminal, 13, 2, 30_000) == Piece(None, b"", 13, 5)
    assert long_poll(terminal, 99, 2, 30_000) == Piece(None, b"", 13, 5)


@pytest.mark.deep("load")
def test_a_program_that_does_not_read_its_input_blocks_nobody(sandbox: Sandbox, neighbour: Neighbour) -> None:
    terminal = sandbox.terminal("stty raw -echo; echo ready; exec sleep 1000")
    assert b"ready" in next(terminal.read())
    with pytest.raises(LimitReached, match="does not read"):
        terminal.write(b"x" * 10_000_000)
    neighbour.assert_unharmed()
    assert sandbox.run_code("6 * 7").value == "42"
    terminal.kill()
    assert terminal.wait() == 129


def test_a_program_that_prints_for_ever_takes_the_engine_from_nobody(
    sandbox: Sandbox, neighbour: Neighbour, screen_of: OpenScreen
) -> None:
    screens = [screen_of("yes") for _ in range(4)]
    for _ in range(5):
        neighbour.assert_unharmed()
    assert sandbox.run_code("6 * 7").value == "42"
    for screen in screens:
        screen.terminal.kill()
        assert screen.terminal.wait() == 129
