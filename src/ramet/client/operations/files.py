"""Operations on the files of a sandbox."""

from __future__ import annotations

from ramet.client.operations.steps import Emit, Operation, ask, carry_out, final, next_frame, send_pulled
from ramet.client.sources import SMALL_BYTES, as_bytes
from ramet.errors import FileNotFolder, FileNotFound, LimitReached, ProtocolError
from ramet.protocol import calls, checks, fields
from ramet.protocol.frames import encode
from ramet.protocol.values.results import FileInfo

# A file may be far larger than it looks (sparse, or growing): reading it as bytes has a bound, a stream has none.
READ_BYTES_AT_MOST = 2 * 1024 * 1024 * 1024


def read(sandbox_id: str, path: str) -> Operation[bytes]:
    """Return the contents of a file. Raises LimitReached for more than READ_BYTES_AT_MOST."""
    checks.check_path(path)
    return _read(sandbox_id, path)


def _read(sandbox_id: str, path: str) -> Operation[bytes]:
    parts: list[bytes] = []
    total_bytes = 0
    yield encode(calls.READ, {"sandbox": sandbox_id, "path": path})
    while (frame := (yield from next_frame())).kind == calls.CHUNK:
        parts.append(frame.blob)
        total_bytes += len(frame.blob)
        if total_bytes > READ_BYTES_AT_MOST:
            raise LimitReached(
                f"cannot read {path!r} at once: it has more than {READ_BYTES_AT_MOST} bytes",
                hint="use files.read_stream",
            )
    final(frame)
    return b"".join(parts)


def read_stream(sandbox_id: str, path: str, chunk_bytes: int) -> Operation[None]:
    """Emit the contents of a file in pieces of at most ``chunk_bytes``."""
    checks.check_path(path)
    checks.check_chunk(chunk_bytes)
    return _read_stream(encode(calls.READ, {"sandbox": sandbox_id, "path": path}), chunk_bytes)


def _read_stream(request: bytes, chunk_bytes: int) -> Operation[None]:
    yield request
    while (frame := (yield from next_frame())).kind == calls.CHUNK:
        for start in range(0, len(frame.blob), chunk_bytes):
            yield Emit(frame.blob[start : start + chunk_bytes])
    final(frame)


def write(sandbox_id: str, path: str, data: object) -> Operation[None]:
    """Write a file. Bytes that are small and present travel with the request; anything else is pulled in pieces."""
    checks.check_path(path)
    present = as_bytes(data)
    header = {"sandbox": sandbox_id, "path": path}
    if present is not None and len(present) <= SMALL_BYTES:
        return carry_out(encode(calls.WRITE, {**header, "more": False}, present))
    return _write_stream(encode(calls.WRITE, {**header, "more": True}))


def _write_stream(request: bytes) -> Operation[None]:
    yield request
    yield from send_pulled()
    yield from carry_out(encode(calls.END, {}))


def list_folder(sandbox_id: str, path: str) -> Operation[list[FileInfo]]:
    """Return the entries of a folder, sorted by name."""
    checks.check_path(path)
    return _list_folder(encode(calls.LIST, {"sandbox": sandbox_id, "path": path}))


def _list_folder(request: bytes) -> Operation[list[FileInfo]]:
    entries: list[FileInfo] = []
    yield request
    while (frame := (yield from next_frame())).kind == calls.ENTRIES:
        for entry in fields.array(frame.header, "entries"):
            if not isinstance(entry, dict):
                raise ProtocolError("an entry of a folder is an object")
            entries.append(FileInfo.read(entry))
    final(frame)
    return sorted(entries, key=lambda entry: entry.name)


def stat(sandbox_id: str, path: str) -> Operation[FileInfo]:
    """Return type, size, permissions and time of a path."""
    checks.check_path(path)
    return ask(encode(calls.STAT, {"sandbox": sandbox_id, "path": path}), FileInfo.read)


def exists(sandbox_id: str, path: str) -> Operation[bool]:
    """Return whether anything is at a path."""
    return _succeeds(stat(sandbox_id, path))


def _succeeds(looking: Operation[FileInfo]) -> Operation[bool]:
    try:
        yield from looking
    except (FileNotFound, FileNotFolder):
        return False
    return True


def make_folder(sandbox_id: str, path: str, parents: bool) -> Operation[None]:
    """Make a folder, with ``parents`` those above it, too."""
    checks.check_path(path)
    return carry_out(encode(calls.MKDIR, {"sandbox": sandbox_id, "path": path, "parents": bool(parents)}))


def remove(sandbox_id: str, path: str, recursive: bool) -> Operation[None]:
    """Remove a file or an empty folder, with ``recursive`` any folder."""
    checks.check_path(path)
    return carry_out(encode(calls.REMOVE, {"sandbox": sandbox_id, "path": path, "recursive": bool(recursive)}))


def rename(sandbox_id: str, path: str, new_path: str) -> Operation[None]:
    """Move a file or a folder to another path."""
    checks.check_path(path)
    checks.check_path(new_path, "new_path")
    return carry_out(encode(calls.RENAME, {"sandbox": sandbox_id, "path": path, "new_path": new_path}))
