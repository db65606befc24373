"""Replaces placeholders in a stream of bytes, also those split between two pieces.

Holds back only a possible beginning of a placeholder at the very end. Not for secret texts: see ``masking``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ramet.network.http.heads import Malformed

# By how much a message may grow: a value can be much longer than its placeholder, which a program can repeat at will.
GROWTH_BYTES_AT_MOST = 512 * 1024


class Overgrown(Malformed):
    """Replacing would insert more into a message than any use of a secret needs."""

    def __init__(self) -> None:
        super().__init__(f"its placeholders stand for more than {GROWTH_BYTES_AT_MOST} bytes")


class Replacer:
    """Replaces texts in one direction of one stream. If one text is the beginning of another, the longer one wins."""

    def __init__(self, replacements: Mapping[bytes, bytes]) -> None:
        self._replacements = {text: by for text, by in replacements.items() if text}
        self._texts = sorted(self._replacements, key=len, reverse=True)
        self._pattern = re.compile(b"|".join(map(re.escape, self._texts))) if self._texts else None
        self._first_bytes = bytes({text[0] for text in self._texts})
        self._beginning = re.compile(b"[" + re.escape(self._first_bytes) + b"]") if self._texts else None
        self._held = b""
        self._grown = 0

    def feed(self, data: bytes) -> bytes:
        """Replace in a piece. Returns what can be passed on now. Raises Overgrown."""
        data = self._held + data
        done, at, keep = self._replace(data, final=False)
        self._held = data[keep:]
        return done + data[at:keep]

    def finish(self) -> bytes:
        """Return what was held back, at the end of the stream. Raises Overgrown."""
        data, self._held = self._held, b""
        done, at, _ = self._replace(data, final=True)
        return done + data[at:]

    def whole(self, data: bytes) -> bytes:
        """Replace in text that is complete."""
        return self.feed(data) + self.finish()

    def _replace(self, data: bytes, final: bool) -> tuple[bytes, int, int]:
        """Replace all that is certain.

        Returns the result, where it ends in ``data``, and from where on more input is needed.
        """
        if self._pattern is None:
            return b"", 0, len(data)
        parts: list[bytes] = []
        at = 0
        keep = len(data) if final else self._possible_beginning(data, at)
        while True:
            match = self._pattern.search(data, at)
            if match is None or match.start() >= keep:
                return b"".join(parts), at, keep
            by = self._replacements[match[0]]
            parts += (data[at : match.start()], by)
            at = match.end()
            self._grown += len(by) - len(match[0])
            if self._grown > GROWTH_BYTES_AT_MOST:
                raise Overgrown
            if at > keep:
                keep = self._possible_beginning(data, at)

    def _possible_beginning(self, data: bytes, at: int) -> int:
        """The first place from ``at`` on where a text may begin that continues in the next piece."""
        assert self._beginning is not None
        start = max(at, len(data) - len(self._texts[0]) + 1)
        for match in self._beginning.finditer(data, start):
            rest = data[match.start() :]
            if any(len(text) > len(rest) and text.startswith(rest) for text in self._texts):
                return match.start()
        return len(data)
