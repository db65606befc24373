"""The engine believes nothing that a guest says."""

from __future__ import annotations

import json
import random

import pytest

from ramet.errors import ProtocolError
from ramet.protocol import guest
from ramet.protocol.frames import Frame
from ramet.protocol.values.results import CellError

DONE: dict[str, object] = {"id": 4, "exit_code": 0, "error": None, "interrupted": False}
RICH: dict[str, object] = {"id": 4, "what": "value", "mimes": [["text/plain", "s", 3]], "display_id": None}


def test_the_end_of_a_cell_is_read() -> None:
    header = {**DONE, "exit_code": 1, "error": {"name": "ValueError", "message": "no"}}
    assert guest.read(Frame(guest.DONE, header, b"")) == guest.Done(4, 1, CellError("ValueError", "no"), False)


def test_a_rich_result_is_read() -> None:
    read = guest.read(Frame(guest.RESULT, RICH, b"abc"))
    assert read == guest.Rich(4, "value", None, (("text/plain", "s", 3),), b"abc")


@pytest.mark.parametrize(
    "change",
    [
        {"id": None},
        {"id": "4"},
        {"id": True},
        {"id": 4.0},
        {"exit_code": 256},
        {"exit_code": -1},
        {"exit_code": False},
        {"error": "text"},
        {"error": {"name": 1, "message": ""}},
        {"error": {"name": "x"}},
        {"interrupted": 1},
        {"interrupted": None},
    ],
)
def test_the_end_of_a_cell_with_a_wrong_type_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ProtocolError):
        guest.read(Frame(guest.DONE, {**DONE, **change}, b""))


@pytest.mark.parametrize(
    "change",
    [
        {"what": "other"},
        {"what": None},
        {"display_id": 3},
        {"display_id": "x" * 201},
        {"mimes": None},
        {"mimes": [["text/plain", "s", 4]]},
        {"mimes": [["text/plain", "s", -1], ["a", "b", 4]]},
        {"mimes": [["text/plain", "z", 3]]},
        {"mimes": [["text/plain", [], 3]]},
        {"mimes": [["text/plain", "s"]]},
        {"mimes": ["text/plain"]},
        {"mimes": [["x" * 300, "s", 3]]},
        {"mimes": [["text/plain", "s", True], ["a", "b", 2]]},
        {"mimes": [["a", "s", 0]] * 65 + [["b", "s", 3]]},
    ],
)
def test_a_rich_result_with_a_wrong_type_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ProtocolError):
        guest.read(Frame(guest.RESULT, {**RICH, **change}, b"abc"))


@pytest.mark.parametrize("kind", [0, guest.READY, 7, 255])
def test_an_unknown_kind_is_refused(kind: int) -> None:
    with pytest.raises(ProtocolError):
        guest.read(Frame(kind, DONE, b""))


def test_random_headers_are_read_or_refused_and_never_crash() -> None:
    dice = random.Random(3)
    values: list[object] = [None, True, 0, 4, -1, 2.5, "", "value", [], [[]], [["a", "s", 3]], {}, {"name": "x"}]
    for _ in range(5000):
        header = {name: dice.choice(values) for name in (*DONE, *RICH)}
        try:
            said = guest.read(Frame(dice.randrange(8), header, dice.choice((b"", b"abc"))))
        except ProtocolError:
            continue
        assert isinstance(said, guest.Message)


ROW: list[object] = ["x", "int", "5", 28, "0" * 32]


def names(*rows: object) -> Frame:
    return Frame(guest.NAMES, {"omitted": 0}, "\n".join(map(json.dumps, rows)).encode())


def read_names(frame: Frame) -> dict[str, guest.Named]:
    told = guest.read(frame)
    assert isinstance(told, guest.NamesTold)
    return dict(map(guest.read_name, told.lines))


def test_names_are_read() -> None:
    read = read_names(names(ROW, ["y", "str", "'a'", 50, None]))
    assert read == {"x": guest.Named("int", "5", 28, "0" * 32), "y": guest.Named("str", "'a'", 50, None)}
    assert read_names(names()) == {}
    assert guest.read(Frame(guest.LOOPS, {"running": True}, b"")) == guest.Loops(True)


def test_names_can_be_printed_anywhere() -> None:
    read = read_names(names(["a\n\x1b[2J", "t\ud800", "v\r", 1, None]))
    assert list(read.items()) == [("a\ufffd\ufffd[2J", guest.Named("t\ufffd", "v\ufffd", 1, None))]


@pytest.mark.parametrize(
    "row",
    [
        None,
        [],
        {},
        ROW[:4],
        [*ROW, 1],
        [1, *ROW[1:]],
        ["x" * 201, *ROW[1:]],
        ["x", None, *ROW[2:]],
        ["x", "int", "v" * 201, *ROW[3:]],
        [*ROW[:3], -1, None],
        [*ROW[:3], 2**63, None],
        [*ROW[:3], True, None],
        [*ROW[:3], 1.5, None],
        [*ROW[:4], "0" * 31],
        [*ROW[:4], "G" * 32],
        [*ROW[:4], 5],
    ],
)
def test_names_with_a_wrong_type_or_length_are_refused(row: object) -> None:
    with pytest.raises(ProtocolError):
        read_names(names(row))


@pytest.mark.parametrize(
    "blob",
    [
        b"{}",
        b"[",
        b"\xff",
        b"\n",
        b"[" * 8000,
        b"[" + b",".join([b"0"] * 10_001) + b"]",
        b" " * (9 << 20),
        "\n".join(json.dumps([f"n{number}", "t", "v", 1, None]) for number in range(10_001)).encode(),
    ],
    ids=["object", "broken", "no ASCII", "empty", "deep", "no row", "long", "many"],
)
def test_names_that_are_no_bounded_table_are_refused(blob: bytes) -> None:
    with pytest.raises(ProtocolError):
        read_names(Frame(guest.NAMES, {"omitted": 0}, blob))


@pytest.mark.parametrize("omitted", [None, -1, "1", True])
def test_a_wrong_count_of_what_was_left_out_is_refused(omitted: object) -> None:
    with pytest.raises(ProtocolError):
        guest.read(Frame(guest.NAMES, {"omitted": omitted}, b""))


def test_the_longest_honest_name_fits_into_its_line() -> None:
    text = "\N{GRINNING FACE}" * 200
    row = [text, text, text, 2**62, "0" * 32]
    assert read_names(names(row)) == {text: guest.Named(text, text, 2**62, "0" * 32)}


def test_why_there_is_no_value_cannot_write_to_the_terminal_of_who_asked() -> None:
    error = {"kind": "failed", "message": "x\x1b]52;c;aGk=\x07\rcould not\nbe written" + "!" * 5000}
    told = guest.read(Frame(guest.VALUE, {"more": False, "error": error}, b""))
    assert isinstance(told, guest.ValueTold)
    assert told.refusal is not None
    first, second = told.refusal[1].split("\n")
    assert first == "x\ufffd]52;c;aGk=\ufffd\ufffdcould not"
    assert second.startswith("be written!!!")
    assert len(second) < 1000
