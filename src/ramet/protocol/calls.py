"""The frames between SDK and engine.

A connection carries one call at a time: a request, then answers up to a final one.

    RUN, FETCH ->  [OUTPUT, RICH, CLEARED ...] RESULT READ   ->  CHUNK ... ANSWER
    GET_VALUE  ->  CHUNK ... ANSWER
    DIFF       ->  CHANGES ... ANSWER                 WRITE, CHUNK ... END  ->  ANSWER
    REPLAY     ->  [OUTPUT, EXITED ...] ANSWER        WRITE, CHUNK ... ABORT  ->  ERROR
    WATCH      ->  NEWS ... for ever                  LIST   ->  ENTRIES ... ANSWER
    TERMINAL_ATTACH, TERMINAL_READ  ->  TERMINAL_DATA ... ANSWER
    RUN with tools  ->  [TOOL_CALL, TOOL_CANCELLED, OUTPUT, RICH ...] RESULT
    TOOL_ANSWER [, CHUNK ... END | ABORT]  ->  ANSWER, or nothing if it is quiet
    others     ->  ANSWER
    anything   ->  ERROR instead of the final answer
    CLAIM, then a call that makes something  ->  ANSWER, and then TAKEN from the client

A client that closes the connection in the middle has gone away: what it has waiting is dropped, its running cell is
interrupted unless it asked to keep it, and children nobody else knows of are closed. Whether the client has learnt of
them is a guess, unless it has sent CLAIM before its request: then it says TAKEN when it has put what was made where it
will be closed from, and without that word everything is closed with the connection.

A header may name an ``owner``: then only what belongs to that owner exists for the call. Who names none sees all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Literal

from ramet.errors import ProtocolError, RametError, error_from_code
from ramet.protocol import fields
from ramet.protocol.frames import Frame, encode, encode_header, encode_text
from ramet.protocol.guest import Rich, read_mimes
from ramet.protocol.results import CellError, Result, RichResult, Truncated, decode_form, whole_bytes_of_cut
from ramet.protocol.tool_records import read_records

# client -> engine
CREATE = 1
RUN = 2
INTERRUPT = 3
CLOSE = 4
INFO = 5
FACTS = 6
READ = 10
WRITE = 11
LIST = 12
STAT = 13
MKDIR = 14
REMOVE = 15
RENAME = 16
CHUNK = 20  # both directions
END = 21
ABORT = 22  # instead of END: the data broke off at the client
# sandboxes from sandboxes
FORK = 40
SNAPSHOT = 41
THAW = 42  # a sandbox from a snapshot or a saved template
RESTORE = 43
MERGE = 44
DIFF = 45
SAVE = 46  # a snapshot becomes a template
DROP = 47  # a snapshot
# many users: what a server in front of the engine needs
SANDBOXES = 50  # all of an owner
WATCH = 51  # all there are, then what begins and ends
EXTEND = 52  # the lifetime of a sandbox
STATS = 53  # of the engine
REPLAY = 54  # the last output of a sandbox
FETCH = 55  # an execution by its id: what it printed, and its result
CANCEL = 56  # an execution by its id: drop it if it waits, interrupt it if it runs
RESUME = 57  # a new sandbox from what a persistent one was when it ended
DISCARD = 58  # what was kept of a persistent sandbox
# terminals of a sandbox
TERMINAL_OPEN = 60
TERMINAL_ATTACH = 61
TERMINAL_INPUT = 62
TERMINAL_RESIZE = 63
TERMINAL_KILL = 64
TERMINAL_LIST = 65
TERMINAL_READ = 66
# tools that code in a sandbox can call
SET_TOOLS = 67
# To a TOOL_CALL: a call of its own, beside the RUN that told of it. With "quiet" it has no answer itself: then it is in
# one piece, and may come over the connection of the RUN too, even after its end.
TOOL_ANSWER = 68
TOOLS_GONE = 69  # nobody answers the tool calls of an execution any more
# the network of a sandbox
NETWORK = 70  # its rules, and the connections that were tried
NETWORK_CHANGE = 71  # rules that are allowed and denied from now on
EXPOSE = 72  # a port of it, to the host
UNEXPOSE = 73
DIAL = 74  # a port of it: the answer brings a connected socket; only over a unix socket
# values of names in a sandbox
GET_VALUE = 75
SET_VALUE = 76
# what a client has learnt of; neither has an answer
CLAIM = 80  # the next call makes something, and TAKEN will follow its answer
TAKEN = 81  # what that call made has a handle
# engine -> client
ANSWER = 30
ERROR = 31
RESULT = 32
OUTPUT = 33
RICH = 34
ENTRIES = 35
CHANGES = 36
NEWS = 37
TERMINAL_DATA = 38
HEARTBEAT = 39  # nothing new; a server puts it between the frames of a silent answer
EXITED = 48  # in a replay: a cell has ended
TOOL_CALL = 49  # in the answer to a RUN: its code calls a tool
CLEARED = 82  # in a stream: `clear_output()`, with "wait" when something new is shown
TOOL_CANCELLED = 59  # nobody waits for that call any more

FILE_CALLS = frozenset((READ, WRITE, LIST, STAT, MKDIR, REMOVE, RENAME))
FORK_CALLS = frozenset((FORK, SNAPSHOT, THAW, RESTORE, MERGE, DIFF, SAVE, DROP))
SERVER_CALLS = frozenset((SANDBOXES, EXTEND, STATS, REPLAY, CANCEL, RESUME, DISCARD))
TERMINAL_CALLS = frozenset(
    (TERMINAL_OPEN, TERMINAL_ATTACH, TERMINAL_INPUT, TERMINAL_RESIZE, TERMINAL_KILL, TERMINAL_LIST, TERMINAL_READ)
)
VALUE_CALLS = frozenset((GET_VALUE, SET_VALUE))
NETWORK_CALLS = frozenset((NETWORK, NETWORK_CHANGE, EXPOSE, UNEXPOSE, DIAL))
# What these make has to be closed by whoever asked for it. CREATE and FORK make sandboxes, for instance.
MAKING = frozenset((CREATE, FORK, SNAPSHOT, THAW, RESUME))
KIND_AT = 5  # where the kind stands in a frame
# After one of these the call is over.
FINAL = frozenset((ANSWER, RESULT, ERROR))

# Of file contents in one frame: large enough that frames cost little, small enough that many transfers fit in memory.
CHUNK_BYTES = 256 * 1024

# Over the primary socket, one packet each.
CONNECT = b"C"  # carries the engine's end of a new connection
FORGET = b"F"  # followed by the id of a sandbox or snapshot whose handle was forgotten: close it, no answer


@dataclass(slots=True)
class Outcome:
    """A finished cell as the engine knows it: bytes are not decoded yet. Not frozen, which would triple its price."""

    cell_id: int
    exit_code: int
    state: Literal["kept", "lost"]
    interrupted: bool = False
    cause: str | None = None
    restarted: bool = False
    error: CellError | None = None
    duration_seconds: float = 0.0
    stdout: bytes = b""
    stderr: bytes = b""
    background: bytes = b""
    rich: Sequence[Rich] = ()
    truncated: Truncated | None = field(default=None)
    tool_calls: bytes = b""  # see ``tool_records``
    tool_calls_dropped: int = 0


def encode_outcome(outcome: Outcome) -> bytes:
    """What is as usual is left out: most results are short, and each field costs both sides."""
    plain = (
        f'{{"id":{outcome.cell_id},"exit_code":{outcome.exit_code},"duration":{outcome.duration_seconds!r},'
        f'"lengths":[{len(outcome.stdout)},{len(outcome.stderr)},{len(outcome.background)}]'
    )
    more = _unusual(outcome)
    text = f"{plain},{encode_header(more)[1:]}" if more else plain + "}"
    rich_parts = (rich.blob for rich in outcome.rich)
    parts = (outcome.stdout, outcome.stderr, outcome.background, *rich_parts, outcome.tool_calls)
    return encode_text(RESULT, text, b"".join(parts))


def _unusual(outcome: Outcome) -> dict[str, object]:
    header: dict[str, object] = {}
    if outcome.state != "kept":
        header["state"] = outcome.state
    if outcome.interrupted:
        header["interrupted"] = True
    if outcome.cause is not None:
        header["cause"] = outcome.cause
    if outcome.restarted:
        header["restarted"] = True
    if outcome.error is not None:
        header["error"] = {"name": outcome.error.name, "message": outcome.error.message}
    if outcome.truncated is not None:
        header["truncated"] = asdict(outcome.truncated)
    if outcome.rich:
        header["rich"] = [rich_header(rich) for rich in outcome.rich]
    if outcome.tool_calls:
        header["tool_calls"] = len(outcome.tool_calls)
    if outcome.tool_calls_dropped:
        header["tool_calls_dropped"] = outcome.tool_calls_dropped
    return header


def read_result(frame: Frame, streamed_value: str | None = None) -> Result:
    """The result of a cell. After a stream, its value came with an event and is given here."""
    header, blob = frame.header, frame.blob
    lengths = fields.array(header, "lengths")
    texts = []
    start = 0
    for length in lengths:
        if type(length) is not int or length < 0:
            raise ProtocolError("the lengths of a result are zero or more")
        texts.append(blob[start : start + length].decode("utf-8", "replace"))
        start += length
    if len(texts) != 3:
        raise ProtocolError(f"a result with {len(texts)} texts, expected 3")
    results = []
    for value in fields.array(header, "rich") if "rich" in header else ():
        if not isinstance(value, dict):
            raise ProtocolError("a rich result is an object")
        end = start + fields.natural(value, "bytes")
        results.append(read_rich(value, blob[start:end]))
        start = end
    error = fields.optional_mapping(header, "error")
    value = next((result.text for result in reversed(results) if result.what == "value"), streamed_value)
    return Result(
        stdout=texts[0],
        stderr=texts[1],
        exit_code=fields.whole(header, "exit_code"),
        value=value,
        results=tuple(results),
        interrupted="interrupted" in header,
        state="lost" if "state" in header else "kept",
        cause=fields.optional_text(header, "cause"),
        restarted="restarted" in header,
        truncated=_truncated(header, lengths, whole_bytes_of_cut(value)),
        background=texts[2],
        error=None if error is None else CellError.read(error),
        duration_seconds=fields.number(header, "duration"),
        cell_id=fields.whole(header, "id"),
        tool_calls=read_records(blob, fields.natural(header, "tool_calls")) if "tool_calls" in header else (),
        tool_calls_dropped=fields.natural(header, "tool_calls_dropped") if "tool_calls_dropped" in header else 0,
    )


def _truncated(header: Mapping[str, object], lengths: list[object], value_bytes: int) -> Truncated | None:
    told = fields.optional_mapping(header, "truncated")
    if told is not None:
        return replace(Truncated.read(told), value_bytes=value_bytes)
    if not value_bytes:
        return None
    stdout_bytes, stderr_bytes = (length if isinstance(length, int) else 0 for length in lengths[:2])
    return Truncated(stdout_bytes, stderr_bytes, None, None, 0, value_bytes)


def rich_header(rich: Rich) -> dict[str, object]:
    return {"what": rich.what, "mimes": rich.mimes, "bytes": len(rich.blob)}


def read_rich(header: Mapping[str, object], blob: bytes) -> RichResult:
    data: dict[str, object] = {}
    start = 0
    for name, form, length in read_mimes(fields.array(header, "mimes"), len(blob)):
        data[name] = decode_form(form, blob[start : start + length])
        start += length
    return RichResult("value" if fields.text(header, "what") == "value" else "display", data)


def encode_error(error: RametError) -> bytes:
    header = {"code": error.code, "message": error.message, "hint": error.hint, "details": error.details}
    return encode(ERROR, header)


def read_error(header: Mapping[str, object]) -> RametError:
    return error_from_code(
        fields.text(header, "code"),
        fields.text(header, "message"),
        fields.optional_text(header, "hint"),
        fields.mapping(header, "details"),
    )
