"""The sink of a call without streaming: keeps all output, within bounds, until the cell has ended."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ramet.engine.cells.cell import Collected
from ramet.engine.cells.pipes import STDERR, STDOUT
from ramet.engine.output.spill import Spill
from ramet.engine.settings import Settings
from ramet.protocol.bounded_bytes import HeadAndTail
from ramet.protocol.guest import Rich
from ramet.protocol.values.results import Truncated

# How much a byte of a header counts: it is kept as text of up to four bytes a character, and once more in the header of
# the result.
_HEADER_WEIGHT = 8


class _Display:
    """All places that show one display id. An update changes all of them, in constant time: they share this object."""

    def __init__(self) -> None:
        self.shown: Rich | None = None
        self.count = 0  # places that show `shown`
        self.places: list[int] = []  # places added after the last update, which still show their own content


class Collecting:
    """Keeps both streams and the rich results. ``make_spill`` opens the file for a stream that becomes too long."""

    live = False

    def __init__(self, settings: Settings, make_spill: Callable[[int], Spill | None]) -> None:
        self._settings = settings
        self._make_spill = make_spill
        self._streams: list[HeadAndTail | None] = [None, None]
        self._spills: dict[int, Spill] = {}
        self._rich: list[Rich | _Display] = []
        self._displays: dict[str, _Display] = {}  # by display id
        self._rich_bytes = 0
        self._rich_dropped = 0
        self._cleared_bytes = [0, 0]
        self._clears_next = False  # clear_output(wait=True): clear as soon as there is something new

    def output(self, stream: int, data: bytes) -> None:
        if self._clears_next:
            self._clear()
        kept = self._streams[stream]
        if kept is None:
            kept = self._streams[stream] = HeadAndTail(self._settings.output_bytes)
        if kept.total_bytes + len(data) > kept.limit_bytes and not kept.cut and stream not in self._spills:
            self._begin_spill(stream, kept)
        if stream in self._spills:
            self._spills[stream].add(data)
        kept.add(data)

    def rich(self, rich: Rich) -> None:
        if rich.what == "clear":
            if rich.wait:
                self._clears_next = True
            else:
                self._clear()
            return
        if self._clears_next:
            self._clear()
        if rich.what == "update":
            self._update(rich)
            return
        cost = _cost(rich)
        if self._rich_bytes + cost > self._settings.rich_bytes or len(self._rich) >= self._settings.rich_count:
            self._rich_dropped += 1
            return
        self._rich_bytes += cost
        if rich.what == "display" and rich.display_id is not None:
            self._displays.setdefault(rich.display_id, _Display()).places.append(len(self._rich))
        self._rich.append(rich)

    def full(self, when_room: Callable[[], None]) -> bool:
        for spill in self._spills.values():
            if spill.full:
                spill.when_room(when_room)
                return True
        return False

    def collect(self, then: Callable[[Collected], None]) -> None:
        if not self._spills:
            then(self._collected({}))
            return
        # Each spill finishes in its worker thread; the last one to finish hands over the result.
        paths: dict[int, str | None] = {}

        def written(stream: int, path: str | None) -> None:
            paths[stream] = path
            if len(paths) == len(self._spills):
                then(self._collected(paths))

        for stream, spill in self._spills.items():
            spill.finish(partial(written, stream))

    def abandon(self) -> None:
        pass

    def discard(self) -> None:
        for spill in self._spills.values():
            spill.finish(lambda _: None)

    def _clear(self) -> None:
        """Drop the output so far from the result. A spill file continues: it holds the whole stream."""
        self._clears_next = False
        for stream, kept in enumerate(self._streams):
            if kept is not None:
                self._cleared_bytes[stream] += kept.total_bytes
                self._streams[stream] = None
        self._rich.clear()
        self._displays.clear()
        self._rich_bytes = self._rich_dropped = 0

    def _begin_spill(self, stream: int, kept: HeadAndTail) -> None:
        """Open a file for the stream and write its beginning, before the middle is dropped from memory."""
        spill = self._make_spill(stream)
        if spill is not None:
            self._spills[stream] = spill
            spill.add(kept.everything())

    def _update(self, rich: Rich) -> None:
        """Replace a display in its place. Ignores a display of an earlier cell, whose result is already sent."""
        display = self._displays.get(rich.display_id) if rich.display_id is not None else None
        if display is None:
            return
        shown = Rich(rich.cell_id, "display", rich.display_id, rich.mimes, rich.blob, rich.header_bytes)
        places = display.places
        before = sum(_cost(_rich_of(self._rich[place])) for place in places)
        if display.shown is not None:
            before += _cost(display.shown) * display.count
        grown = _cost(shown) * (display.count + len(places)) - before
        if self._rich_bytes + grown > self._settings.rich_bytes:
            self._rich_dropped += 1
            return
        self._rich_bytes += grown
        display.shown = shown
        display.count += len(places)
        for place in places:
            self._rich[place] = display
        places.clear()

    def _collected(self, paths: dict[int, str | None]) -> Collected:
        stdout, stderr = self._streams
        truncated = None
        if paths or self._rich_dropped or any(kept is not None and kept.cut for kept in self._streams):
            truncated = Truncated(
                stdout_bytes=self._cleared_bytes[STDOUT] + (stdout.total_bytes if stdout is not None else 0),
                stderr_bytes=self._cleared_bytes[STDERR] + (stderr.total_bytes if stderr is not None else 0),
                stdout_path=paths.get(STDOUT),
                stderr_path=paths.get(STDERR),
                results_dropped=self._rich_dropped,
            )
        return Collected(
            stdout.kept() if stdout is not None else b"",
            stderr.kept() if stderr is not None else b"",
            tuple(_rich_of(entry) for entry in self._rich),
            truncated,
        )


def _cost(rich: Rich) -> int:
    return len(rich.blob) + _HEADER_WEIGHT * rich.header_bytes


def _rich_of(entry: Rich | _Display) -> Rich:
    if isinstance(entry, Rich):
        return entry
    assert entry.shown is not None
    return entry.shown
