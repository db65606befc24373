"""Calls about files. They work from outside: no cell is disturbed, no name is left."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial

from ramet.engine.calls.call import Answer, ClientCall, Peer
from ramet.engine.files.transfer import Transfer
from ramet.engine.files.tree import SandboxTree
from ramet.errors import LimitReached, ProtocolError, file_error
from ramet.protocol import calls, checks, fields
from ramet.protocol.frames import Frame, encode
from ramet.protocol.values.results import FileInfo

FileWork = Callable[[SandboxTree, Transfer], Answer]

_CHANGING = frozenset((calls.WRITE, calls.MKDIR, calls.REMOVE, calls.RENAME))
_ENTRIES_IN_A_FRAME = 1000
_WHOLE_FILE_BYTES = 2**63 - 1


class FileCall(ClientCall):
    """Its client may upload. When that disconnects, the work learns of it at its next step."""

    def __init__(self, peer: Peer, frame: Frame) -> None:
        super().__init__(peer, frame)
        self._sandbox = sandbox = self.find_sandbox()
        registry = peer.registry
        self._transfer = Transfer(peer.channel, registry.executor, registry.walks, sandbox.owner, peer.settings)

    def begin(self) -> None:
        sandbox, work = self._sandbox, _prepare(self.frame)
        try:
            tree = SandboxTree(sandbox.body.root)
        except OSError as error:
            raise LimitReached(f"cannot open the files of sandbox {sandbox.id}: {error}") from None
        # Before the task begins: a restore or a merge that comes first must wait for it before it closes the body.
        over = sandbox.file_call()
        self.peer.perform(self._serve(work, tree, over))

    def received(self, frame: Frame) -> None:
        self._transfer.received(frame)

    def client_left(self) -> None:
        self._transfer.abandon()

    async def _serve(self, work: FileWork, tree: SandboxTree, over: asyncio.Future[None]) -> None:
        try:
            await self._sandbox.folders.now()
            answer = await work(tree, self._transfer)
        finally:
            tree.close()
            over.set_result(None)
            if self.frame.kind in _CHANGING:
                self._sandbox.touched()
        self.peer.answer(answer)


def _prepare(frame: Frame) -> FileWork:
    """The call that a frame asks for, with all its arguments checked."""
    header = frame.header
    path = fields.text(header, "path")
    checks.check_path(path)
    if frame.kind == calls.READ:
        offset, length = fields.natural(header, "offset") if "offset" in header else 0, None
        if header.get("length") is not None:
            length = fields.natural(header, "length")
        return lambda tree, transfer: _read(tree, transfer, path, offset, length)
    if frame.kind == calls.WRITE:
        more = fields.flag(header, "more")
        return lambda tree, transfer: _write(tree, transfer, path, frame.blob, more)
    if frame.kind == calls.LIST:
        return lambda tree, transfer: _list(tree, transfer, path)
    if frame.kind == calls.STAT:
        return lambda tree, transfer: _stat(tree, transfer, path)
    if frame.kind == calls.MKDIR:
        parents = fields.flag(header, "parents")
        return lambda tree, transfer: _simple(
            "make the folder", path, lambda: tree.make_folder(path, parents), transfer
        )
    if frame.kind == calls.REMOVE:
        recursive = fields.flag(header, "recursive")
        return lambda tree, transfer: _remove(tree, transfer, path, recursive)
    if frame.kind == calls.RENAME:
        new_path = fields.text(header, "new_path")
        checks.check_path(new_path, "new_path")
        return lambda tree, transfer: _simple("rename", path, lambda: tree.rename(path, new_path), transfer)
    raise ProtocolError(f"a file call of unknown kind {frame.kind}")


async def _simple(tried: str, path: str, work: Callable[[], None], transfer: Transfer) -> dict[str, object]:
    with _as_file_error(tried, path):
        await transfer.in_thread(work)
    return {}


async def _remove(tree: SandboxTree, transfer: Transfer, path: str, recursive: bool) -> dict[str, object]:
    with _as_file_error("remove", path):
        if recursive:
            await transfer.walk(lambda stop: tree.remove(path, True, stop))
        else:
            await transfer.in_thread(lambda: tree.remove(path, False))
    return {}


async def _read(tree: SandboxTree, transfer: Transfer, path: str, offset: int, length: int | None) -> dict[str, object]:
    """Send ``length`` bytes from ``offset``; fewer if the file ends earlier, none if it ends before the offset."""
    left = _WHOLE_FILE_BYTES if length is None else length
    with _as_file_error("read", path):
        descriptor = await transfer.in_thread(lambda: tree.open_to_read(path))
        try:
            if offset:
                # Never beyond the end: file systems refuse offsets that are larger than their largest file.
                os.lseek(descriptor, min(offset, os.fstat(descriptor).st_size), os.SEEK_SET)
            while data := await transfer.in_thread(partial(os.read, descriptor, min(left, calls.CHUNK_BYTES))):
                left -= len(data)
                await transfer.send(encode(calls.CHUNK, {}, data))
        finally:
            os.close(descriptor)
    return {}


async def _write(tree: SandboxTree, transfer: Transfer, path: str, first: bytes, more: bool) -> dict[str, object]:
    piece: bytes | None = first
    try:
        with _as_file_error("write", path):
            descriptor = await transfer.in_thread(lambda: tree.open_to_write(path))
            try:
                while piece is not None:
                    await transfer.in_thread(partial(_write_all, descriptor, piece))
                    piece = await transfer.receive() if more else None
            finally:
                os.close(descriptor)
    except Exception:
        # The client sends to the end before it listens: the rest of its data is taken in and thrown away.
        while more and piece is not None:
            piece = await transfer.receive()
        raise
    return {}


async def _stat(tree: SandboxTree, transfer: Transfer, path: str) -> dict[str, object]:
    with _as_file_error("stat", path):
        return asdict(await transfer.in_thread(lambda: tree.stat(path)))


async def _list(tree: SandboxTree, transfer: Transfer, path: str) -> dict[str, object]:
    entries = tree.entries(path)
    count = 0
    try:
        with _as_file_error("list", path):
            while part := await transfer.in_thread(lambda: _some(entries)):
                count += len(part)
                if count > transfer.listed_entries_at_most:
                    raise LimitReached(
                        f"cannot list {path!r}: it has more than {transfer.listed_entries_at_most} entries"
                    )
                await transfer.send(encode(calls.ENTRIES, {"entries": [asdict(entry) for entry in part]}))
    finally:
        # Also when the client went away: closes the folder's descriptor.
        entries.close()
    return {}


def _some(entries: Iterator[FileInfo]) -> list[FileInfo]:
    return list(itertools.islice(entries, _ENTRIES_IN_A_FRAME))


def _write_all(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


@contextmanager
def _as_file_error(tried: str, path: str) -> Iterator[None]:
    """Turn an OSError into a FileError that names the sandbox path and nothing of the host."""
    try:
        yield
    except OSError as error:
        raise file_error(tried, path, error.errno or 0, hint=_hint(error)) from None


def _hint(error: OSError) -> str | None:
    if error.strerror == "not a regular file":
        return "only regular files can be read and written from outside; use run_code for devices, pipes and /proc"
    return None
