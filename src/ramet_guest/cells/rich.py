"""Rich results: encodes an object's MIME forms as one RESULT frame of limited size."""

from __future__ import annotations

import base64
import binascii
import json
import threading
from collections.abc import Mapping
from typing import Any

from ramet_guest.cells.interrupts import UserCodeGate
from ramet_guest.channel import ControlChannel

MAXIMUM_TEXT_BYTES = 1 << 20
MAXIMUM_BINARY_BYTES = 16 << 20
MAXIMUM_BLOB_BYTES = 30 << 20
MAXIMUM_FORMS = 32
MAXIMUM_NAME_CHARACTERS = 200
PLAIN = "text/plain"

# If these were cut, no reader could parse them.
_WHOLE_OR_NOT = frozenset(("image/svg+xml",))
_SIMPLE = frozenset((int, float, str, bool, complex, bytes, type(None)))
_dumps = json.dumps


class Publisher:
    """Turns displayed objects into RESULT frames."""

    def __init__(self, channel: ControlChannel, gate: UserCodeGate) -> None:
        self._channel = channel
        self._gate = gate
        # True once the value that a cell ends with was published.
        self.ended = False
        # True if a client streams the running cell.
        self.live = False
        self._count = 0

    def publish(
        self, what: str, data: Mapping[str, Any], display_id: str | None = None, wait: bool = False, exact: bool = False
    ) -> None:
        """Publishes one result.

        `wait`: clear the output when something new is shown. `exact`: keep the order even if no client streams the
        cell.

        Text takes another way to the engine, the pipes. Where the order matters, this waits until the engine has taken
        the result, and with it all text before it.
        """
        forms, blob = encode(data)
        if display_id is not None:
            display_id = str(display_id)[:MAXIMUM_NAME_CHARACTERS]
        fields: dict[str, Any] = {"what": what, "mimes": forms, "display_id": display_id}
        number = self._next_number() if self.live or exact else 0
        if number:
            fields["number"] = number
        if wait:
            fields["wait"] = True
        header = _dumps(fields).encode("ascii").replace(b"%", b"%%")
        self._send(b'{"id":%d,' + header[1:], blob, False)
        if number:
            self._wait_for(number)

    def _next_number(self) -> int:
        """Returns a number to wait for, or 0 in other threads: only the main thread may read from the channel."""
        if threading.get_ident() != threading.main_thread().ident or not self._channel.speaks():
            return 0
        self._count += 1
        return self._count

    def _wait_for(self, number: int) -> None:
        while not self._channel.has_taken(number):
            # `has_taken` is protected, so an interrupt that arrived in it is pending. Raise it before sleeping.
            if self._gate.pending is not None:
                self._gate.raise_pending()
            self._channel.wait_until_readable()
        if self._gate.pending is not None:
            self._gate.raise_pending()

    def publish_value(self, data: Mapping[str, Any], last: bool) -> None:
        """Publishes a value. `last`: the cell is over except for its answer."""
        text = data.get(PLAIN)
        if self.live and not last:
            self.publish("value", data)
            return
        if len(data) == 1 and type(text) is str and len(text) < 10_000:
            # Nearly all values take this path.
            blob = encode_text(text)
            header = b'{"id":%%d,"what":"value","mimes":[["text/plain","s",%d]],"display_id":null}' % len(blob)
        else:
            forms, blob = encode(data)
            header = _dumps({"what": "value", "mimes": forms, "display_id": None}).encode("ascii")
            header = b'{"id":%d,' + header[1:].replace(b"%", b"%%")
        self._send(header, blob, last)

    def _send(self, header: bytes, blob: bytes, last: bool) -> None:
        """Sends a frame.

        Its own code is protected: if an interrupt fell between `publish` and `ended`, the cell would not know that its
        value was sent.
        """
        self._channel.publish(header, blob, last)
        self.ended = last
        if self._gate.pending is not None:
            self._gate.raise_pending()


def simple_form(value: object, formatter: Any) -> dict[str, str] | None:
    """Returns the form of a plain number or text, fifty times faster than IPython's formatters."""
    kind = type(value)
    if kind not in _SIMPLE:
        return None
    # The formatter obeys `%precision 3`.
    plain = formatter.formatters[PLAIN]
    if kind is float and plain.float_precision != "":
        return None
    return {PLAIN: repr(value)}


def encode(data: Mapping[str, Any]) -> tuple[list[tuple[str, str, int]], bytes]:
    """Returns the forms with their kinds and lengths, and all their bytes. `text/plain` comes first."""
    forms: list[tuple[str, str, int]] = []
    pieces: list[bytes] = []
    notes: list[str] = []
    total = 0
    plain = data.get(PLAIN)
    names = [name for name in data if name != PLAIN]
    for name in names[:MAXIMUM_FORMS]:
        # The engine accepts headers of 64 KiB; a non-ASCII letter takes up to twelve bytes in it.
        if not isinstance(name, str) or len(name) > MAXIMUM_NAME_CHARACTERS or not name.isascii():
            continue
        kind, piece = encode_form(name, data[name])
        if kind == "s" and name not in _WHOLE_OR_NOT:
            piece = cut(piece)
        limit = MAXIMUM_BINARY_BYTES if kind == "b" else MAXIMUM_TEXT_BYTES + 100
        if len(piece) > limit or total + len(piece) > MAXIMUM_BLOB_BYTES:
            notes.append(f"[{name} left out: {len(piece)} bytes]")
            continue
        total += len(piece)
        forms.append((name, kind, len(piece)))
        pieces.append(piece)
    if plain is not None or notes:
        text = plain if isinstance(plain, str) else "" if plain is None else str(plain)
        piece = cut(encode_text(text))
        if notes:
            piece = b"\n".join([*([piece] if piece else []), *(encode_text(note) for note in notes)])
        forms.insert(0, (PLAIN, "s", len(piece)))
        pieces.insert(0, piece)
    return forms, b"".join(pieces)


def encode_form(name: str, value: Any) -> tuple[str, bytes]:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return "b", bytes(value)
    if isinstance(value, str):
        if is_binary(name):
            # IPython passes images as base64.
            try:
                return "b", base64.b64decode(value, validate=False)
            except binascii.Error:
                pass
        return "s", encode_text(value)
    return "j", _dumps(value, default=repr, ensure_ascii=True).encode("ascii")


def is_binary(name: str) -> bool:
    return name == "application/pdf" or (
        name.startswith(("image/", "audio/", "video/")) and not name.startswith("image/svg")
    )


def encode_text(text: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace")


def cut(piece: bytes) -> bytes:
    """Cuts to at most a mebibyte and appends a note that says how much is missing."""
    missing = len(piece) - MAXIMUM_TEXT_BYTES
    if missing <= 0:
        return piece
    kept = piece[:MAXIMUM_TEXT_BYTES].decode("utf-8", "ignore").encode("utf-8")
    return kept + b"\n... [%d bytes left out]" % missing
