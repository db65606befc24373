"""Parts of files."""

from __future__ import annotations

import pytest

from ramet.errors import ProtocolError
from ramet.protocol import calls
from tests.engine.conftest import Connect
from tests.engine.frames_client import Line, create

DATA = bytes(range(256)) * 4096  # several chunks


def part(line: Line, sandbox: str, **where: object) -> bytes:
    line.send_frame(calls.READ, {"sandbox": sandbox, "path": "/root/data", **where})
    return b"".join(frame.blob for frame in line.frames())


def test_a_part_of_a_file_is_read_by_offset_and_length(line: Line) -> None:
    sandbox = create(line)
    line.ask(calls.WRITE, DATA, sandbox=sandbox, path="/root/data", more=False)
    assert part(line, sandbox) == DATA
    assert part(line, sandbox, offset=0, length=None) == DATA
    for offset, length in ((0, 10), (1000, 300_000), (len(DATA) - 5, 100), (len(DATA), 1), (2**62, 1), (5, 0)):
        assert part(line, sandbox, offset=offset, length=length) == DATA[offset : offset + length]
    assert part(line, sandbox, offset=2**70) == b""
    assert part(line, sandbox, offset=len(DATA) - 3) == DATA[-3:]
    assert part(line, sandbox, length=2**70) == DATA


@pytest.mark.parametrize("where", [{"offset": -1}, {"length": -1}, {"offset": 1.5}, {"offset": "0"}, {"length": True}])
def test_other_places_are_no_request(connect: Connect, line: Line, where: dict[str, object]) -> None:
    sandbox = create(line)
    with pytest.raises(ProtocolError):
        part(connect(), sandbox, **where)
