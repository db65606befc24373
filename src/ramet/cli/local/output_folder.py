"""`--output DIR`: saves plots of a run, and the files that it wrote into its working folder, on this machine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress

from ramet.cli.output import print_note, shown
from ramet.cli.sandboxes.copying import MIB, CopyTally, fetch_below, make_folder, opened_folder, walk
from ramet.client.blocking.sandbox import Sandbox
from ramet.errors import InvalidArgument, LimitReached, RametError
from ramet.protocol.values.results import RichResult

WORKING_FOLDER = "/root"
_BYTES_AT_MOST = 1024 * MIB
_FILES_AT_MOST = 10_000
_PLOTS_AT_MOST = 1000
_NAMED_AT_MOST = 10
# `--output` made every folder that contains this file: the next run may replace anything in it.
_MARK = ".ramet-output"
_MARK_TEXT = "Made by `ramet ... --output`. Runs that name this folder replace files in it.\n"
_IMAGES = {
    "image/png": "png",
    "image/jpeg": "jpg",
    "image/svg+xml": "svg",
    "image/gif": "gif",
    "image/webp": "webp",
    "application/pdf": "pdf",
}

_hinted = False


def image_of(result: RichResult) -> tuple[str, bytes] | None:
    """Return the picture in a result, in the first form that it has, and the suffix of its file name."""
    for mime, ending in _IMAGES.items():
        value = result.data.get(mime)
        if isinstance(value, bytes):
            return ending, value
        if isinstance(value, str):
            return ending, value.encode("utf-8", "replace")
    return None


def tell_of_plots(result: RichResult) -> None:
    """Print once that a plot can be saved."""
    global _hinted
    if not _hinted and image_of(result) is not None:
        _hinted = True
        print_note("ramet: the code made a plot; use --output DIR to save it")


class OutputFolder:
    """The folder for plots and files of one sandbox.

    Untrusted code made them, so nothing outside of it may be touched.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._plots: list[str] = []
        self._copied = CopyTally(_BYTES_AT_MOST, _FILES_AT_MOST)
        self._before: Mapping[str, tuple[int, float]] = {}
        self._saved: list[str] = []
        self._prepare()

    def _prepare(self) -> None:
        """Make or check the folder before anything runs.

        Refuse one with other files, because the code could replace them.
        """
        make_folder(self._path)
        try:
            entries = os.listdir(self._path)
            if entries and _MARK not in entries:
                raise InvalidArgument(
                    f"--output must be a new or an empty folder, got {shown(self._path)}, which has other files",
                    hint=f"--output {shown(os.path.join(self._path, 'output'))}",
                    details={"argument": "output"},
                )
            if not entries:
                with open(os.path.join(self._path, _MARK), "x", encoding="utf-8") as file:
                    file.write(_MARK_TEXT)
        except OSError as error:
            raise InvalidArgument(f"--output: cannot use {shown(self._path)}: {error.strerror}") from error

    def begin(self, sandbox: Sandbox) -> None:
        """Record the working folder's contents, so that only files that the code writes are fetched."""
        self._before = self._files(sandbox)

    def save_plot(self, result: RichResult) -> str | None:
        """Save the plot in a result, if it has one. Return its path."""
        image = image_of(result)
        if image is None:
            return None
        if len(self._plots) >= _PLOTS_AT_MOST:
            raise LimitReached(f"there are more than {_PLOTS_AT_MOST} plots")
        ending, data = image
        name = f"plot-{len(self._plots) + 1}.{ending}"
        self._copied.check_bytes(name, len(data))
        self._copied.bytes += len(data)
        path = os.path.join(self._path, name)
        try:
            with suppress(FileNotFoundError):
                os.unlink(path)
            with open(path, "xb") as file:
                file.write(data)
        except OSError as error:
            raise RametError(f"cannot write {shown(path)}: {error.strerror}") from error
        self._plots.append(name)
        self._saved.append(name)
        return path

    def end(self, sandbox: Sandbox) -> list[str]:
        """Fetch files written since `begin`. Return the names of everything saved, relative to the folder."""
        with opened_folder(self._path) as folder:
            for entry in walk(sandbox, WORKING_FOLDER, self._copied, hidden=False):
                info = entry.info
                if info.type == "folder" or self._before.get(entry.path) == (info.size_bytes, info.modified_seconds):
                    continue
                if entry.path in self._plots:
                    self._copied.left_out.append(entry.path)
                    continue
                fetch_below(sandbox, f"{WORKING_FOLDER}/{entry.path}", entry, folder, self._copied)
                self._saved.append(entry.path)
        return self._saved

    def tell(self) -> None:
        """Print to standard error what was saved and what was not."""
        if self._saved:
            names = ", ".join(self._saved[:_NAMED_AT_MOST])
            more = len(self._saved) - _NAMED_AT_MOST
            print_note(f"ramet: saved in {shown(self._path)}: {names}{f' and {more} more' if more > 0 else ''}")
        if self._copied.left_out:
            names = ", ".join(shown(name) for name in self._copied.left_out[:_NAMED_AT_MOST])
            print_note(f"ramet: not saved, as they are links or have odd names: {names}")

    def _files(self, sandbox: Sandbox) -> dict[str, tuple[int, float]]:
        found = {}
        for entry in walk(sandbox, WORKING_FOLDER, CopyTally(_BYTES_AT_MOST, _FILES_AT_MOST), hidden=False):
            found[entry.path] = (entry.info.size_bytes, entry.info.modified_seconds)
        return found
