"""Runs the process that packs or unpacks an image, for an engine: bytes in and out, one piece at a time."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path

import ramet.freezing
from ramet.freezing.images.manifest import MANIFEST_BYTES_AT_MOST, ImageRefused, Manifest
from ramet.freezing.images.stored.store import OpenImage
from ramet.protocol.import_terms import ImportTerms

Receive = Callable[[], Awaitable[bytes | None]]  # the next piece of a file, None after the last

_PIECE_BYTES = 256 << 10
_ERROR_BYTES = 64 << 10
_ENDING_SECONDS = 30.0
_BOOT = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); "
    "from ramet.freezing.images.moving.program import main; sys.exit(main(sys.argv[1:]))"
)
_PARTS = ("manifest.json", "state", "threads", "vdso", "files")


@contextlib.contextmanager
def parts_of(opened: OpenImage) -> Iterator[dict[str, int]]:
    """Descriptors of all that an exported file has besides pages."""
    with contextlib.ExitStack() as always:
        parts = {}
        for name in _PARTS:
            parts[name] = opened.open(name)
            always.callback(os.close, parts[name])
        yield parts


async def packed(opened: OpenImage, parts: Mapping[str, int], root: int) -> AsyncIterator[bytes]:
    """The bytes of an image as one file. ``root``: of a pod that shows what it has mapped. Raises ImageRefused."""
    with contextlib.ExitStack() as always:
        given = {"parts": parts, "pages": opened.pages, "root": root}
        process = _start("pack", given, [*parts.values(), *opened.pages, root])
        always.callback(_end, process)
        assert process.stdout is not None
        out = process.stdout.fileno()
        while data := await asyncio.to_thread(os.read, out, _PIECE_BYTES):
            yield data
        await _check(process)


async def unpacked(receive: Receive, folder: int, terms: ImportTerms) -> Manifest:
    """Write what is received into the folder of a new image. Raises ImageRefused, and what ``receive`` raises."""
    with contextlib.ExitStack() as always:
        process = _start("unpack", {"folder": folder, "terms": terms.header()}, [folder])
        always.callback(_end, process)
        assert process.stdin is not None
        while (piece := await receive()) is not None:
            try:
                await asyncio.to_thread(_write_all, process.stdin.fileno(), piece)
            except BrokenPipeError:
                break  # it has seen enough, and says why
        process.stdin.close()
        made = await _check(process)
    return Manifest.read(made)


def _start(action: str, given: Mapping[str, object], descriptors: Sequence[int]) -> subprocess.Popen[bytes]:
    package = Path(ramet.freezing.__file__).resolve().parent.parent
    return subprocess.Popen(
        [sys.executable, "-I", "-c", _BOOT, str(package.parent), action, json.dumps(given)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, pass_fds=descriptors,
        env={"LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"}, cwd="/", bufsize=0,
    )  # fmt: skip


async def _check(process: subprocess.Popen[bytes]) -> bytes:
    """Return its last line of output. Raises ImageRefused with the reason that it gives."""
    out, said = await asyncio.to_thread(_wait, process)
    if process.returncode:
        try:
            reason = json.loads(said)
            message, hint = str(reason["message"]), reason["hint"]
        except (ValueError, KeyError, TypeError):
            message, hint = "the process that reads it was ended", None
        raise ImageRefused(message, hint=hint)
    return out


def _wait(process: subprocess.Popen[bytes]) -> tuple[bytes, bytes]:
    assert process.stdout is not None
    assert process.stderr is not None
    # First what it answers: it ends only when all of that was read. Errors are a line.
    out = _read_all(process.stdout.fileno(), MANIFEST_BYTES_AT_MOST)
    said = _read_all(process.stderr.fileno(), _ERROR_BYTES)
    process.wait(_ENDING_SECONDS)
    return out, said


def _read_all(descriptor: int, most: int) -> bytes:
    """Up to the end. A pipe gives at most what fits into it at once."""
    parts = []
    while most > 0 and (part := os.read(descriptor, min(most, _PIECE_BYTES))):
        parts.append(part)
        most -= len(part)
    return b"".join(parts)


def _write_all(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            with contextlib.suppress(BrokenPipeError):
                stream.close()
    process.wait()
