"""Replaces secrets in answers by as many stars as there were bytes, so that lengths stay the same.

Bytes at the end of a piece are held back, because a value may continue in the next one. Which bytes these are must not
depend on the values. A program can make a server send guesses, and observe what is held back: if that were prefixes of
a value, it would learn the value letter by letter. So everything from which any value could continue is held back, up
to the length of the longest.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from copy import copy

from ramet.network.secrets.spelling import LETTERS_PER_LINE_AT_LEAST, Span, spellings
from ramet.network.secrets.work_budget import WorkBudget

# The characters of keys and tokens, and of their escapes. If all values consist of these, nothing else is held back: a
# program may learn that much. Values have no control characters.
_OF_TOKENS = re.compile(r"[A-Za-z0-9._~+/=-]*")
_TOKEN_BYTES = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._~+/=-%\\&#;"
_TEXT_BYTES = bytes(byte for byte in range(256) if byte >= 0x20 and byte != 0x7F)
# Characters with which pieces of JSON, HTML and text end. Few values contain any of these.
_ENDS = ' "}]>'
# Where base64 may continue on another line. Of a CR LF, only the first half may have arrived.
_LINE_OF_BASE64 = re.compile(rb"[A-Za-z0-9+/_%%-]{%d}(?:\r\n?|\n)\Z" % LETTERS_PER_LINE_AT_LEAST)
_LINE_OF_BASE64_AT_MOST = LETTERS_PER_LINE_AT_LEAST + 2

_STEPS_PER_MATCH = 4


class Masker:
    """Masks one direction of one stream. Raises TooAlike, a Malformed, if it would take too long."""

    def __init__(self, values: Iterable[str]) -> None:
        texts = tuple(values)
        self._spellings = [spellings(value) for value in texts]
        beginnings = dict.fromkeys(text for one in self._spellings for text in one.beginnings)
        self._pattern = re.compile(b"|".join(beginnings) or rb"(?!)")
        self._held_at_most = max((one.bytes_at_most for one in self._spellings), default=1) - 1
        self._run = _run_bytes(texts)
        self._budget = WorkBudget()  # shared with all fresh copies
        self._held = b""
        self._held_masked = 0  # how much of it belongs to a value that began before

    def fresh(self) -> Masker:
        """A masker for another stream, with the same values and budget."""
        other = copy(self)
        other._held, other._held_masked = b"", 0
        return other

    def feed(self, data: bytes) -> bytes:
        """Mask a piece. Returns what can be passed on now."""
        self._budget.gain(len(data))
        data = self._held + data
        return self._release(data, self._may_go_on_from(data))

    def finish(self) -> bytes:
        """Return what was held back, at the end of the stream."""
        return self._release(self._held, len(self._held))

    def whole(self, data: bytes) -> bytes:
        """Mask text that is complete."""
        return self.feed(data) + self.finish()

    def _release(self, data: bytes, keep: int) -> bytes:
        spans = [(0, self._held_masked)]
        beyond = self._held_masked  # masked up to here, by values that begin in the part being released
        search, budget = self._pattern.search, self._budget
        match = search(data)
        while match is not None:
            start = match.start()
            budget.spend(_STEPS_PER_MATCH + len(self._spellings))
            for one in self._spellings:
                for span in one.spans(data, start, budget):
                    spans.append(span)
                    if start < keep:
                        beyond = max(beyond, span[1])
            # Two values may overlap: the rest of the second must not be shown.
            match = search(data, start + 1)
        self._held, self._held_masked = data[keep:], max(0, beyond - keep)
        return _masked(data, spans)[:keep]

    def _may_go_on_from(self, data: bytes) -> int:
        """Where the trailing run of characters begins that values consist of, at most as long as the longest value."""
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
    """The bytes from which a value may continue.

    Depends on the kinds of characters in the values, not on the values.
    """
    if all(map(_OF_TOKENS.fullmatch, values)):
        return _TOKEN_BYTES
    if any(end in value for value in values for end in _ENDS):
        return _TEXT_BYTES
    return _TEXT_BYTES.translate(None, _ENDS.encode())
