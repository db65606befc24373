"""The frames between SDK and engine.

A connection carries one call at a time: a request, then answers up to a final one.

    RUN, FETCH ->  [OUTPUT, RICH, CLEARED ...] RESULT READ   ->  CHUNK ... ANSWER
    GET_VALUE  ->  CHUNK ... ANSWER
    EXPORT     ->  CHUNK ... ANSWER                   IMPORT, CHUNK ... END  ->  ANSWER
    DIFF, TAKE ->  CHANGES ... ANSWER                 WRITE, CHUNK ... END  ->  ANSWER
    REPLAY     ->  [OUTPUT, EXITED ...] ANSWER        WRITE, CHUNK ... ABORT  ->  ERROR
    WATCH      ->  NEWS ... for ever                  LIST   ->  ENTRIES ... ANSWER
    TERMINAL_ATTACH, TERMINAL_READ  ->  TERMINAL_DATA ... ANSWER
    RUN with tools  ->  [TOOL_CALL, TOOL_CANCELLED, OUTPUT, RICH ...] RESULT
    TOOL_ANSWER [, CHUNK ... END | ABORT]  ->  ANSWER, or nothing if it is quiet
    others     ->  ANSWER
    anything   ->  ERROR instead of the final answer
    CLAIM, then a call that makes something  ->  ANSWER, and then TAKEN from the client

A client that closes the connection in the middle of a call has disconnected: the engine drops its waiting calls,
interrupts its running cell unless the client asked to keep it, and closes children that no other client knows of. It
can only guess whether the client has read about them, unless the client sent CLAIM before its request. Then the client
sends TAKEN once it holds a handle to what was made; if the connection closes before that, the engine closes all of it.

A header may name an ``owner``: the call then sees only objects of that owner. Without an owner it sees all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, field, replace

from ramet.errors import ProtocolError, RametError, error_from_code
from ramet.protocol import fields
from ramet.protocol.frames import Frame, encode, encode_header, encode_text
from ramet.protocol.guest import Rich, read_mimes
from ramet.protocol.lazy_dataclasses import dataclass
from ramet.protocol.tools.records import read_records
from ramet.protocol.values.results import (
    CellError,
    Result,
    RichResult,
    State,
    Truncated,
    decode_form,
    whole_bytes_of_cut,
)

FRAMES_TYPE = "application/vnd.ramet.frames"  # the content type of calls over HTTP

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
ABORT = 22  # instead of END: the client's data broke off
# sandboxes made from sandboxes
FORK = 40
SNAPSHOT = 41
THAW = 42  # a sandbox from a snapshot or a saved template
RESTORE = 43
MERGE = 44
DIFF = 45
SAVE = 46  # a snapshot becomes a template
DROP = 47  # a snapshot
TAKE = 23  # names and files of another sandbox or of a snapshot come into one
# snapshots as files
EXPORT = 93  # a snapshot, as one file
IMPORT = 94  # such a file, to be a snapshot again
# the past of a sandbox
HISTORY = 83  # its steps, and which of their states are kept
UNDO = 84  # back to the state before the last cells
REWIND = 85  # back to the state after a step
# sandboxes on disk
HIBERNATE = 86  # write a sandbox to disk, and give up its memory and processes until the next call
REOPEN = 87  # a sandbox on disk goes on under its id
KEPT = 88  # sandboxes on disk that can be reopened
# for a server with many users
SANDBOXES = 50  # all sandboxes of an owner
WATCH = 51  # all sandboxes, then events as sandboxes begin and end
EXTEND = 52  # the lifetime of a sandbox
STATS = 53  # statistics of the engine
REPLAY = 54  # the last output of a sandbox
FETCH = 55  # an execution by its id: its output and its result
CANCEL = 56  # an execution by its id: drop it if it waits, interrupt it if it runs
RESUME = 57  # a new sandbox from the kept state of a persistent one that ended
DISCARD = 58  # the kept state of a persistent sandbox
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
# The answer to a TOOL_CALL: a call of its own, beside the RUN that reported it. With "quiet" it has no answer itself:
# it is then one frame, and may also come over the connection of the RUN, even after its end.
TOOL_ANSWER = 68
TOOLS_GONE = 69  # no client answers the tool calls of an execution any more
# the network of a sandbox
NETWORK = 70  # its rules, and the attempted connections
NETWORK_CHANGE = 71  # rules to allow and deny from now on
EXPOSE = 72  # make one of its ports reachable from the host
UNEXPOSE = 73
DIAL = 74  # connect to one of its ports: the answer carries a connected socket; only over a unix socket
# values of names in a sandbox
GET_VALUE = 75
SET_VALUE = 76
# acknowledgements by a client; neither has an answer
CLAIM = 80  # the next call makes something, and TAKEN will follow its answer
TAKEN = 81  # the client holds a handle to what that call made
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
HEARTBEAT = 39  # sent by a server while an answer is silent
EXITED = 48  # in a replay: a cell ended
TOOL_CALL = 49  # in the answer to a RUN: its code calls a tool
CLEARED = 82  # in a stream: `clear_output()`; with "wait", clear when something new is shown
TOOL_CANCELLED = 59  # the code no longer waits for that call

FILE_CALLS = frozenset((READ, WRITE, LIST, STAT, MKDIR, REMOVE, RENAME))
FORK_CALLS = frozenset((FORK, SNAPSHOT, THAW, RESTORE, MERGE, DIFF, SAVE, DROP, TAKE))
IMAGE_CALLS = frozenset((EXPORT, IMPORT))
HISTORY_CALLS = frozenset((HISTORY, UNDO, REWIND))
SLEEP_CALLS = frozenset((HIBERNATE, REOPEN, KEPT))
SERVER_CALLS = frozenset((SANDBOXES, EXTEND, STATS, REPLAY, CANCEL, RESUME, DISCARD))
TERMINAL_CALLS = frozenset(
    (TERMINAL_OPEN, TERMINAL_ATTACH, TERMINAL_INPUT, TERMINAL_RESIZE, TERMINAL_KILL, TERMINAL_LIST, TERMINAL_READ)
)
VALUE_CALLS = frozenset((GET_VALUE, SET_VALUE))
NETWORK_CALLS = frozenset((NETWORK, NETWORK_CHANGE, EXPOSE, UNEXPOSE, DIAL))
# Calls whose result the caller has to close, such as the sandboxes of CREATE and FORK.
MAKING = frozenset((CREATE, FORK, SNAPSHOT, THAW, RESUME))
# Those, and one that cannot be repeated: its answer is claimed all the same.
CLAIMED = MAKING | {IMPORT}
KIND_AT = 5  # offset of the kind in a frame
# A frame of these kinds ends the call.
FINAL = frozenset((ANSWER, RESULT, ERROR))

# File contents per frame: large enough that frames cost little, small enough that many transfers fit in memory.
CHUNK_BYTES = 256 * 1024

# Packets on the primary socket.
CONNECT = b"C"  # carries the engine's end of a new connection
FORGET = b"F"  # followed by the id of a sandbox or snapshot whose handle was collected: close it, no answer


@dataclass(slots=True)
class Outcome:
    """A finished cell as the engine has it, with undecoded bytes.

    Not frozen, which would triple the cost of making one.
    """

    cell_id: int
    exit_code: int
    state: State
    interrupted: bool = False
    cause: str | None = None
    restarted: bool = False
    restored: bool = False
    error: CellError | None = None
    duration_seconds: float = 0.0
    stdout: bytes = b""
    stderr: bytes = b""
    background: bytes = b""
    rich: Sequence[Rich] = ()
    truncated: Truncated | None = field(default=None)
    tool_calls: bytes = b""  # see ``protocol.tools.records``
    tool_calls_dropped: int = 0


def encode_outcome(outcome: Outcome) -> bytes:
    """Encode a result.

    Leaves out fields with their usual value: most results are short, and each field costs both sides time.
    """
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
    """Return the fields that do not have their usual value."""
    header: dict[str, object] = {}
    if outcome.state != "kept":
        header["state"] = outcome.state
    if outcome.interrupted:
        header["interrupted"] = True
    if outcome.cause is not None:
        header["cause"] = outcome.cause
    if outcome.restarted:
        header["restarted"] = True
    if outcome.restored:
        header["restored"] = True
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
    """Return the result of a cell.

    ``streamed_value`` is the value that arrived earlier with an event, if it was streamed.
    """
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
        state="kept" if "state" not in header else "restored" if header["state"] == "restored" else "lost",
        cause=fields.optional_text(header, "cause"),
        restarted="restarted" in header,
        restored="restored" in header,
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
