"""Files that code makes for its client: $OUTPUT_DIR, an empty folder for each call, and the figures that it showed.

The REPL has the folder in its variable OUTPUT_DIR, which bash inherits. A folder that a call left empty serves the next
call too, so that only calls which made something cost a cell that sets the variable. Older folders stay, because code
may still read what it made.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from ramet import AsyncSandbox, Result
from ramet.doors.gateway.errors import ApiError
from ramet.doors.gateway.files.index import FileRow
from ramet.doors.gateway.files.store import FileStore
from ramet.doors.gateway.running.cell_reports import CellImage
from ramet.errors import FileError, FileNotFolder, FileNotFound, LimitReached

OUTPUTS = "/tmp/outputs"
# The beginning of the cell that sets the variable. It leaves no other behind.
OWN_CELL = "__import__('os').environ['OUTPUT_DIR'] = "


@dataclass(frozen=True, slots=True)
class OutputLimits:
    file_bytes: int = 100 * 1024 * 1024
    files: int = 50  # of one call


@dataclass(slots=True)
class Outputs:
    """The folder for the next call, and the one that the REPL knows. Belongs to one container."""

    number: int = 1
    made: bool = False  # whether the folder exists, and is empty as far as we know
    told: int | None = 1  # the number in the REPL's environment; None: unknown, as in a fresh REPL

    @property
    def folder(self) -> str:
        return f"{OUTPUTS}/{self.number}"

    async def prepare(self, sandbox: AsyncSandbox) -> Result | None:
        """Create the folder and set the REPL's variable, if needed. Returns the result of the cell that did so."""
        if not self.made:
            await sandbox.files.mkdir(self.folder)
            self.made = True
        if self.told == self.number:
            return None
        # The value is our own and needs no escaping.
        result = await sandbox.run_code(f"{OWN_CELL}{self.folder!r}", timeout=10)
        self.told = self.number if result.ok else None
        return result

    def repl_lost(self) -> None:
        """Note that the REPL is a fresh one, with the environment that the sandbox was created with."""
        self.told = None

    def next_folder(self) -> None:
        """The folder may have files of a call whose outcome nobody has."""
        self.number += 1
        self.made = False

    def copy(self) -> Outputs:
        return Outputs(self.number, self.made, self.told)

    async def take(self, sandbox: AsyncSandbox, taking: Taking) -> None:
        """Take all files at the top of the folder. If there was one, the next call gets another folder."""
        try:
            entries = await sandbox.files.list(self.folder)
        except (FileNotFound, FileNotFolder):
            self.made = False  # the code has removed it
            return
        except (FileError, LimitReached) as error:
            taking.problems.append(f"no file was taken: {error.message}")
            self.next_folder()
            return
        if not entries:
            return
        folder = self.folder
        self.next_folder()
        for entry in entries:
            if entry.type == "file":
                await taking.take(entry.name, entry.size_bytes, sandbox.files.read_stream(f"{folder}/{entry.name}"))


@dataclass(slots=True)
class Taking:
    """The files of one call, on their way to the file store."""

    files: FileStore
    limits: OutputLimits
    owner: str
    container: str
    rows: list[FileRow] = field(default_factory=list)
    too_large: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    _left_out: int = 0

    async def take(
        self, name: str, size_bytes: int, stream: AsyncGenerator[bytes, None], mime_type: str | None = None
    ) -> None:
        if size_bytes > self.limits.file_bytes:
            self.too_large.append(f"{name} is {size_bytes} bytes long, more than the {self.limits.file_bytes} allowed")
        elif len(self.rows) >= self.limits.files:
            self._left_out += 1
        else:
            try:
                async with aclosing(stream), aclosing(_no_longer_than(stream, self.limits.file_bytes)) as pieces:
                    row = await self.files.add(
                        self.owner, name, mime_type, pieces, downloadable=True, container=self.container
                    )
            except (FileError, ApiError, _Grew) as error:
                self.problems.append(f"{name} could not be taken: {getattr(error, 'strerror', None) or error}")
            else:
                self.rows.append(row)

    async def take_images(self, images: Sequence[CellImage]) -> None:
        for number, image in enumerate(images, 1):
            await self.take(f"figure-{number}.{image.extension}", len(image.data), _once(image.data), image.mime_type)

    def notes(self) -> list[str]:
        """Remarks for the model, one on each line."""
        notes = [*self.too_large, *self.problems]
        if self._left_out:
            notes.append(f"{self._left_out} files were left out: {self.limits.files} are taken from one call at most")
        return [f"[{note}]" for note in notes]


class _Grew(Exception):
    """Raised for a file that grows while it is read."""


async def _no_longer_than(stream: AsyncGenerator[bytes, None], bytes_at_most: int) -> AsyncGenerator[bytes, None]:
    read = 0
    async for piece in stream:
        read += len(piece)
        if read > bytes_at_most:
            raise _Grew("it grew while it was read")
        yield piece


async def _once(data: bytes) -> AsyncGenerator[bytes, None]:
    yield data
