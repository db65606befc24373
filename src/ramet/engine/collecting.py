"""The sink of a plain call: everything is kept, within bounds, until the cell has ended."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ramet.engine.cell import Collected
from ramet.engine.pipes import STDERR, STDOUT
from ramet.engine.settings import Settings
from ramet.engine.spill import Spill
from ramet.protocol.bounding import HeadAndTail
from ramet.protocol.guest import Rich
from ramet.protocol.results import Truncated


class Collecting:
    """Keeps both streams and the rich results. ``make_spill`` opens the file for a stream that has become too long."""

    live = False

    def __init__(self, settings: Settings, make_spill: Callable[[int], Spill | None]) -> None:
        self._settings = settings
        self._make_spill = make_spill
        self._streams: list[HeadAndTail | None] = [None, None]
        self._spills: dict[int, Spill] = {}
        self._rich: list[Rich] = []
        self._rich_bytes = 0
        self._rich_dropped = 0

    def output(self, stream: int, data: bytes) -> None:
        kept = self._streams[stream]
        if kept is None:
            kept = self._streams[stream] = HeadAndTail(self._settings.output_bytes)
        if kept.total_bytes + len(data) > kept.limit_bytes:
            if not kept.cut:
                self._begin_spill(stream, kept)
            if stream in self._spills:
                self._spills[stream].add(data)
        kept.add(data)

    def rich(self, rich: Rich) -> None:
        if rich.what == "clear":
            self._rich.clear()
            self._rich_bytes = 0
            return
        if rich.what == "update":
            self._update(rich)
            return
        self._rich_bytes += len(rich.blob)
        if self._rich_bytes > self._settings.rich_bytes or len(self._rich) >= self._settings.rich_count:
            self._rich_bytes -= len(rich.blob)
            self._rich_dropped += 1
            return
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

    def _begin_spill(self, stream: int, kept: HeadAndTail) -> None:
        spill = self._make_spill(stream)
        if spill is not None:
            self._spills[stream] = spill
            spill.add(kept.everything())

    def _update(self, rich: Rich) -> None:
        """A display that is replaced keeps its place; one of an earlier cell, or unknown, is gone with that cell."""
        for index, shown in enumerate(self._rich):
            if shown.display_id == rich.display_id and shown.what == "display":
                grown = len(rich.blob) - len(shown.blob)
                if self._rich_bytes + grown > self._settings.rich_bytes:
                    self._rich_dropped += 1
                    return
                self._rich_bytes += grown
                self._rich[index] = Rich(rich.cell_id, "display", rich.display_id, rich.mimes, rich.blob)

    def _collected(self, paths: dict[int, str | None]) -> Collected:
        stdout, stderr = self._streams
        truncated = None
        if paths or self._rich_dropped or any(kept is not None and kept.cut for kept in self._streams):
            truncated = Truncated(
                stdout_bytes=stdout.total_bytes if stdout is not None else 0,
                stderr_bytes=stderr.total_bytes if stderr is not None else 0,
                stdout_path=paths.get(STDOUT),
                stderr_path=paths.get(STDERR),
                results_dropped=self._rich_dropped,
            )
        return Collected(
            stdout.kept() if stdout is not None else b"",
            stderr.kept() if stderr is not None else b"",
            tuple(self._rich),
            truncated,
        )
