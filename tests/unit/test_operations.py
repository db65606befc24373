"""The client's operations, played without any I/O."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from ramet.client.operations import cells, files, forks
from ramet.errors import FileNotFound, ProtocolError, SandboxClosed, file_error
from ramet.protocol import calls
from ramet.protocol.calls import Outcome, encode_outcome
from ramet.protocol.frames import FROM_ENGINE, FrameDecoder, encode
from ramet.protocol.guest import Rich
from ramet.protocol.requests.operations import ForkOptions
from ramet.protocol.values.differences import FileChange, FileState
from ramet.protocol.values.forks import Diff, ForkInfo, NameChange, NameValue
from ramet.protocol.values.results import CellError, ExitEvent, OutputEvent, Result, ResultEvent, Truncated
from tests.unit.played import play


def output(stream: int, data: bytes) -> bytes:
    return encode(calls.OUTPUT, {"stream": stream}, data)


def test_a_result_survives_its_frame() -> None:
    value = Rich(7, "value", None, (("text/plain", "s", 2), ("image/png", "b", 3), ("application/json", "j", 7)), b"42")
    value = Rich(7, "value", None, value.mimes, b'42\x89PN{"a":1}')
    outcome = Outcome(
        cell_id=7,
        exit_code=3,
        state="lost",
        interrupted=True,
        cause="timeout",
        restarted=True,
        error=CellError("E", "é"),
        duration_seconds=1e-7,
        stdout="aé".encode() + b"\xff",
        stderr=b"err",
        background=b"bg",
        rich=(value,),
        truncated=Truncated(10, 20, "/p", None, 1),
    )
    result, _, _ = play(cells.run("sbx", "code", "python", None), encode_outcome(outcome))
    assert isinstance(result, Result)
    assert (result.stdout, result.stderr, result.background) == ("aé\ufffd", "err", "bg")
    assert (result.exit_code, result.state, result.cause, result.restarted) == (3, "lost", "timeout", True)
    assert result.error == CellError("E", "é")
    assert result.truncated == outcome.truncated
    assert result.value == "42"
    assert result.results[0].png == b"\x89PN"
    assert result.results[0].json == {"a": 1}
    assert not result.ok


def test_a_usual_result_has_the_usual_values() -> None:
    outcome = Outcome(cell_id=1, exit_code=0, state="kept", stdout=b"42\n", duration_seconds=0.5)
    result, _, _ = play(cells.run("sbx", "", "python", None), encode_outcome(outcome))
    assert isinstance(result, Result)
    assert result.ok
    assert (result.stdout, result.interrupted, result.restarted, result.cause) == ("42\n", False, False, None)


def test_a_stream_joins_characters_that_were_cut_and_replaces_what_never_was_one() -> None:
    euro = "€".encode()
    end = encode_outcome(Outcome(cell_id=1, exit_code=0, state="kept"))
    _, events, _ = play(
        cells.stream("sbx", "", "python", None),
        output(0, b"a" + euro[:1]),
        output(1, euro[:2]),
        output(0, euro[1:]),
        output(1, b"!"),
        output(0, euro[:2]),
        end,
    )
    texts = [(event.type, event.data) for event in events if isinstance(event, OutputEvent)]
    assert texts == [("stdout", "a"), ("stdout", "€"), ("stderr", "\ufffd!"), ("stdout", "\ufffd")]
    assert isinstance(events[-1], ExitEvent)


def test_the_value_of_a_streamed_cell_is_in_its_last_event() -> None:
    shown = encode(calls.RICH, {"what": "value", "mimes": [["text/plain", "s", 2]]}, b"42")
    end = encode_outcome(Outcome(cell_id=1, exit_code=0, state="kept"))
    _, events, _ = play(cells.stream("sbx", "", "python", None), shown, end)
    assert isinstance(events[0], ResultEvent)
    assert events[-1].result.value == "42"


def test_what_the_engine_refused_is_raised() -> None:
    with pytest.raises(SandboxClosed, match="gone"):
        play(cells.interrupt("sbx"), calls.encode_error(SandboxClosed("gone")))
    with pytest.raises(FileNotFound):
        play(files.read("sbx", "/a"), encode(calls.CHUNK, {}, b"x"), calls.encode_error(file_error("read", "/a", 2)))


def test_an_answer_out_of_step_is_a_protocol_error() -> None:
    with pytest.raises(ProtocolError):
        play(cells.run("sbx", "", "python", None), encode(calls.ANSWER, {}))


def test_a_file_is_read_in_pieces_of_the_size_asked_for() -> None:
    chunk = encode(calls.CHUNK, {}, b"abcdefg")
    _, pieces, _ = play(files.read_stream("sbx", "/a", 3), chunk, chunk, encode(calls.ANSWER, {}))
    assert pieces == [b"abc", b"def", b"g"] * 2


def test_a_file_is_written_piece_by_piece() -> None:
    _, _, sent = play(files.write("sbx", "/a", iter(())), encode(calls.ANSWER, {}), pulls=[b"ab", b"", b"x" * 300_000])
    frames = list(FrameDecoder(FROM_ENGINE).feed(sent))
    assert [frame.kind for frame in frames] == [calls.WRITE, *[calls.CHUNK] * 3, calls.END]
    assert b"".join(frame.blob for frame in frames) == b"ab" + b"x" * 300_000


def test_a_missing_file_does_not_exist() -> None:
    gone = calls.encode_error(file_error("stat", "/a", 2))
    assert play(files.exists("sbx", "/a"), gone)[0] is False


INFO = {"pause_seconds": 0.1, "total_seconds": 0.2, "unique_bytes": 5, "file_bytes_copied": 6}


def test_a_fork_gives_the_ids_of_the_children_and_what_they_cost() -> None:
    answer = {"children": [{"id": "a", "info": INFO}, {"id": "b", "info": {**INFO, "unique_bytes": 3}}], "info": INFO}
    made, _, sent = play(forks.fork("sbx", ForkOptions(n=2, reseed=True)), encode(calls.ANSWER, answer))
    assert isinstance(made, forks.ForkedChildren)
    assert made.info == ForkInfo(0.1, 0.2, 5, 6)
    assert [(name, info.unique_bytes) for name, info in made.children] == [("a", 5), ("b", 3)]
    (frame,) = FrameDecoder(FROM_ENGINE).feed(sent)
    assert (frame.kind, frame.header) == (
        calls.FORK,
        {"sandbox": "sbx", "count": 2, "reseed": True, "inherit_secrets": False},
    )


@pytest.mark.parametrize("children", [None, [1], [{"id": 1, "info": INFO}], [{"id": "a", "info": {}}]])
def test_a_malformed_answer_to_a_fork_is_a_protocol_error(children: object) -> None:
    with pytest.raises(ProtocolError):
        play(forks.fork("sbx", ForkOptions()), encode(calls.ANSWER, {"children": children, "info": INFO}))


def test_a_diff_is_put_together_from_its_parts() -> None:
    file = FileChange("/root/a", "added", None, FileState("file", 3, 0o644, "ab", None))
    link = FileChange(
        "/root/b\x1b", "modified", FileState("folder", 0, 0o755), FileState("link", 1, 0o777, None, "/x\n")
    )
    name = NameChange("x", "removed", NameValue("int", "5", 28), None)
    parts = [encode(calls.CHANGES, {"files": [asdict(change)], "names": []}) for change in (file, link)]
    last = encode(calls.CHANGES, {"files": [], "names": [asdict(name)]})
    found, _, _ = play(forks.diff("a", "b", None), *parts, last, encode(calls.ANSWER, {"uncompared": ["y", "z"]}))
    assert found == Diff((file, link), (name,), ("y", "z"))
    assert str(found).splitlines() == [
        "files: 1 added, 1 modified",
        "  + /root/a: file, 3 bytes",
        r"  ~ '/root/b\x1b': folder -> link to '/x\n'",
        "names: 1 removed",
        "  - x: int 5",
        "names that could not be compared: y, z",
    ]


def test_no_difference_is_an_empty_diff() -> None:
    found, _, _ = play(forks.diff("a", "b", ("/root",)), encode(calls.ANSWER, {"uncompared": []}))
    assert isinstance(found, Diff)
    assert found.is_empty
    assert str(found) == "no differences"
