"""The records of a cell's tool calls, for its result. Their size is bounded, whatever code in the sandbox does."""

from __future__ import annotations

from ramet.protocol.tools.records import encode_record

RECORDS_AT_MOST = 1000
ARGUMENTS_BYTES_AT_MOST = 16 * 1024
_MESSAGE_CHARACTERS_AT_MOST = 16 * 1024
_NAME_CHARACTERS_AT_MOST = 64  # tools have no longer names, but code may call a name that is no tool
# The size of all complete records; later ones are short. A result has room for both.
_BYTES_AT_MOST = 8 * 1024 * 1024
_SHORT_CHARACTERS = 200


class ToolCallRecords:
    """The records, in the order in which the calls ended. Owned by the cell."""

    def __init__(self) -> None:
        self._rows: list[str] = []
        self.names: dict[str, None] = {}  # of tools that were called
        self._bytes = 0
        self.dropped = 0

    def add(self, name: str, arguments: bytes | None, seconds: float, outcome: str, message: str | None) -> None:
        if len(self._rows) >= RECORDS_AT_MOST:
            self.dropped += 1
            return
        name = name[:_NAME_CHARACTERS_AT_MOST]
        self.names[name] = None
        message = None if message is None else message[:_MESSAGE_CHARACTERS_AT_MOST]
        row = encode_record(name, _text(arguments), seconds, outcome, message)
        if self._bytes + len(row) > _BYTES_AT_MOST:
            short = None if message is None else message[:_SHORT_CHARACTERS]
            row = encode_record(name, None, seconds, outcome, short)
        self._bytes += len(row)
        self._rows.append(row)

    def encoded(self) -> bytes:
        return f"[{','.join(self._rows)}]".encode("ascii")


def _text(arguments: bytes | None) -> str | None:
    if arguments is None or len(arguments) > ARGUMENTS_BYTES_AT_MOST:
        return None
    try:
        return arguments.decode("utf-8")
    except UnicodeDecodeError:
        return None
