"""Lists the namespace for a comparison: each name with its type, short value, size and a digest of its content.

Small values come first, so that a large one cannot use up the time of all others. User code runs through the gate, one
name at a time: an exception or an interrupt costs that name its short value or digest, and no other.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Any

from ramet_guest import channel as frames
from ramet_guest import wire
from ramet_guest.comparing.descriptions import CHARACTERS, short, size_of
from ramet_guest.comparing.fingerprints import Walk
from ramet_guest.comparing.pieces import name_of

if TYPE_CHECKING:
    from ramet_guest.repl import Repl

BYTES_AT_MOST = 7 << 20
INTERRUPTS_AT_MOST = 3
SECONDS_AFTER_AN_INTERRUPT = 1.0
# Names that the REPL itself puts into the namespace.
_OF_THE_REPL = frozenset(("_", "__", "___", "_exit_code", "In", "Out", "_ih", "_oh", "_dh", "_i", "_ii", "_iii"))
# `_12` and `_i12`.
_NUMBERED = re.compile(r"_i?[0-9]+")
_BUFFERS = frozenset(
    (
        "str",
        "bytes",
        "bytearray",
        "numpy.ndarray",
        "pandas.DataFrame",
        "pandas.Series",
        "pandas.core.frame.DataFrame",
        "pandas.core.series.Series",
    )
)


class Row:
    """One name, and what is known of it so far."""

    def __init__(self, name: str, value: Any) -> None:
        self.name = name
        self.value = value
        kind = type(value)
        self.type = str(name_of(kind))[:CHARACTERS]
        self.text = f"<{self.type} object>"[:CHARACTERS]
        # Does not call the value's own method: no user code runs before its turn.
        self.size = object.__sizeof__(value)
        self.fingerprint: str | None = None

    def describe(self) -> None:
        self.size = min(max(size_of(self.value), 0), wire.SIZE_AT_MOST)
        self.text = short(self.value)

    def effort(self) -> float:
        """Estimates how long a digest takes, in nanoseconds: bytes are read at once, objects one by one."""
        return self.size if self.type in _BUFFERS else self.size * 40.0

    def encode(self) -> str:
        fields = [self.name[:CHARACTERS], self.type, self.text, self.size, self.fingerprint]
        return frames.encode_header(fields).decode("ascii")


def answer(repl: Repl, seconds: float) -> None:
    """Sends the list of names, whatever happens on the way."""
    found = rows(repl)
    omitted = max(0, len(found) - wire.NAMES_AT_MOST)
    del found[wire.NAMES_AT_MOST :]
    gate = repl.gate
    # As `gate.begin`, but leaves the user's SIGINT handler aside: an interrupt here must raise.
    gate.busy, gate.pending, gate.fired = True, None, False
    try:
        Look(repl, monotonic() + seconds).at(found)
    finally:
        gate.calm()
        gate.end()
    blob, left_out = encoded(found)
    repl.channel.send(wire.NAMES, frames.encode_header({"omitted": omitted + left_out}), blob)


def rows(repl: Repl) -> list[Row]:
    """Returns the user's names, sorted: without the REPL's own and those that were there before any cell."""
    first = repl.first_names
    missing = object()
    return [
        Row(name, value)
        for name, value in sorted((pair for pair in list(repl.namespace.items()) if type(pair[0]) is str), key=by_name)
        if name not in _OF_THE_REPL
        and not (name[:1] == "_" and _NUMBERED.fullmatch(name))
        and not (name.startswith("__") and name.endswith("__"))
        and first.get(name, missing) is not value
    ]


def by_name(pair: tuple[str, Any]) -> str:
    return pair[0]


class Look:
    """One pass over all names. An interrupt costs the name it hits, and gives the others a little more time."""

    def __init__(self, repl: Repl, deadline: float) -> None:
        self._repl = repl
        self._deadline = deadline
        self._half_time = (monotonic() + deadline) / 2
        self._interrupts = 0
        self._walk = Walk(monotonic, deadline)

    def at(self, found: list[Row]) -> None:
        for row in found:
            # In the second half of the time, describe only values that are known to be quick.
            if monotonic() < self._half_time or type(row.value).__module__ == "builtins":
                self._run(row.describe)
        late = [row for row in sorted(found, key=Row.effort) if not self._fingerprint(row, share=0.5)]
        for row in late:
            self._fingerprint(row, share=1.0)

    def _fingerprint(self, row: Row, share: float) -> bool:
        """Computes a digest in at most this share of the time that is left. Returns whether it succeeded."""
        now = monotonic()
        if now > self._deadline:
            return False
        self._walk.deadline = now + (self._deadline - now) * share
        taken: list[str] = []
        self._run(lambda: taken.append(self._walk.digest(row.value)))
        row.fingerprint = taken[0] if taken else None
        return bool(taken)

    def _run(self, function: Callable[[], object]) -> None:
        """Runs user code through the gate, whatever it does."""
        gate = self._repl.gate
        if self._interrupts > INTERRUPTS_AT_MOST:
            return
        gate.run(function)
        self._repl.leave_if_forked(0)
        if gate.fired:
            gate.calm()
            gate.fired = False
            self._interrupts += 1
            self._deadline = max(self._deadline, monotonic() + SECONDS_AFTER_AN_INTERRUPT)


def encoded(found: list[Row]) -> tuple[bytes, int]:
    """Encodes one line per row, as many as the engine accepts. Returns the lines and the number of rows left out."""
    parts: list[str] = []
    size = 0
    for row in found:
        part = row.encode()
        if size + len(part) + 1 > BYTES_AT_MOST:
            break
        size += len(part) + 1
        parts.append(part)
    return "\n".join(parts).encode("ascii"), len(found) - len(parts)
