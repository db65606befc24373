"""Puts stars in the place of secrets in what servers answer, as many as there were bytes: lengths stay the same.

What is held back of a stream, because a value may go on in its next piece, must not depend on the values. A program can
have a server say guesses, and sees which of them are held back: were these the ones that a value begins with, it would
have the value letter by letter. So all is held back that any value could go on from, up to the length of the longest.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from copy import copy

from ramet.network.secrets.effort import Effort
from ramet.network.secrets.spelling import LETTERS_PER_LINE_AT_LEAST, Span, spellings

# What keys and tokens are made of, and what escapes of these are. Nothing else is held back where all values are of
# such characters: a program may learn that much of them. Values have no control characters.
_OF_TOKENS = re.compile(r"[A-Za-z0-9._~+/=-]*")
_TOKEN_BYTES = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._~+/=-%\\&#;"
_TEXT_BYTES = bytes(byte for byte in range(256) if byte >= 0x20 and byte != 0x7F)
# What pieces of JSON, HTML and text end with; few values have any of these.
_ENDS = ' "}]>'
# Where base64 may go on in another line; of an end of CR LF the half may be here.
_LINE_OF_BASE64 = re.compile(rb"[A-Za-z0-9+/_%%-]{%d}(?:\r\n?|\n)\Z" % LETTERS_PER_LINE_AT_LEAST)
_LINE_OF_BASE64_AT_MOST = LETTERS_PER_LINE_AT_LEAST + 2

_STEPS_PER_MATCH = 4


class Masker:
    """One direction of one stream. Where that would take too long it raises TooAlike, which is Malformed."""

    def __init__(self, values: Iterable[str]) -> None:
        texts = tuple(values)
        self._spellings = [spellings(value) for value in texts]
        beginnings = dict.fromkeys(text for one in self._spellings for text in one.beginnings)
        self._pattern = re.compile(b"|".join(beginnings) or rb"(?!)")
        self._held_at_most = max((one.bytes_at_most for one in self._spellings), default=1) - 1
        self._run = _run_bytes(texts)
        self._effort = Effort()  # one for this and all fresh ones
        self._held = b""
        self._held_masked = 0  # so much of it is in a value that began before it

    def fresh(self) -> Masker:
        """One for another stream."""
        other = copy(self)
        other._held, other._held_masked = b"", 0
        return other

    def feed(self, data: bytes) -> bytes:
        """What can go on now."""
        self._effort.gain(len(data))
        data = self._held + data
        return self._release(data, self._may_go_on_from(data))

    def finish(self) -> bytes:
        """What was held back; nothing comes behind it."""
        return self._release(self._held, len(self._held))

    def whole(self, data: bytes) -> bytes:
        """For what comes in one piece."""
        return self.feed(data) + self.finish()

    def _release(self, data: bytes, keep: int) -> bytes:
        spans = [(0, self._held_masked)]
        beyond = self._held_masked  # masked up to here by what begins in the part that goes on
        search, effort = self._pattern.search, self._effort
        match = search(data)
        while match is not None:
            start = match.start()
            effort.spend(_STEPS_PER_MATCH + len(self._spellings))
            for one in self._spellings:
                for span in one.spans(data, start, effort):
                    spans.append(span)
                    if start < keep:
                        beyond = max(beyond, span[1])
            # Two may overlap: the rest of the second one must not be shown.
            match = search(data, start + 1)
        self._held, self._held_masked = data[keep:], max(0, beyond - keep)
        return _masked(data, spans)[:keep]

    def _may_go_on_from(self, data: bytes) -> int:
        """Where the last of what values are made of begins, or as much of it as the longest one has."""
        first = max(0, len(data) - self._held_at_most)
        at = len(data)
        while at > first:
            at = first + len(data[first:at].rstrip(self._run))
            line = _LINE_OF_BASE64.search(data, max(0, at - _LINE_OF_BASE64_AT_MOST), at)
            if line is None:
                return at
            at = line.start()
        return first


def _masked(data: bytes, spans: list[Span]) -> bytes:
    out: list[bytes] = []
    at = 0
    for start, end in sorted(spans):
        if end > at:
            out += (data[at : max(at, start)], b"*" * (end - max(at, start)))
            at = end
    return b"".join((*out, data[at:]))


def _run_bytes(values: tuple[str, ...]) -> bytes:
    """Those that a value may go on from. It depends on the kind of characters in the values, not on which they are."""
    if all(map(_OF_TOKENS.fullmatch, values)):
        return _TOKEN_BYTES
    if any(end in value for value in values for end in _ENDS):
        return _TEXT_BYTES
    return _TEXT_BYTES.translate(None, _ENDS.encode())
