"""The files of a snapshot as one file of an image, and back into file systems that pods begin with.

A sequence of entries, each a header (JSON, its length before it) and the data of a regular file, holes left out: a
sandbox may have a file of an exabyte that holds nothing. Entries are in the order in which their inodes were made, and
are made again in that order: the list of inode numbers that `isolation/files/copies.py` keeps counts on it.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterator
from typing import IO, Any

from ramet.freezing.images.manifest import ImageRefused
from ramet.isolation import _files
from ramet.isolation.files.layers import FileImage, Layer
from ramet.isolation.kernel import syscalls
from ramet.protocol.lazy_dataclasses import dataclass

# Looks at the header of a file before it is made: kind of its tree, path, header.
Clean = Callable[[str, str, dict[str, Any]], dict[str, Any]]

_HEADER_AT_MOST = 16 << 20
_EXTENTS_AT_MOST = 100_000
_ENTRIES_AT_MOST = 2_000_000
_CHUNK = 1 << 20
_SLACK_BYTES, _SLACK_INODES = 16 << 20, 1024
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(slots=True)
class _Entry:
    number: int  # inode
    path: str
    found: os.stat_result


def write_files(image: FileImage, out: IO[bytes]) -> dict[str, Any]:
    """Write all trees of an image of files. Returns what `read_files` needs to know. Blocks; raises OSError."""
    hashing = _Hashing(out)
    trees = []
    for kind, mount in (("files", image.files), ("shm", image.shm)):
        if mount is not None:
            trees.append({"kind": kind, **_write_tree(mount, hashing)})
    trees += [
        {
            "kind": "layer",
            "size_bytes": layer.size_bytes,
            "layer_entries": layer.entries,
            **_write_tree(layer.mount, hashing),
        }
        for layer in image.layers
    ]
    return {"trees": trees, "file_bytes": image.file_bytes, "sha256": hashing.digest()}


def read_files(
    about: dict[str, Any], source: IO[bytes], clean: Clean = lambda _kind, _path, header: header
) -> FileImage:
    """The image of files, the caller's. ``clean`` checks each. Blocks; raises OSError or ImageRefused."""
    image = FileImage(None, None, (), int(about["file_bytes"]))
    hashing = _Hashing(source)
    layers: list[Layer] = []
    try:
        for tree in about["trees"]:
            mount = _read_tree(tree, hashing, clean)
            if tree["kind"] == "files":
                image.files = mount
            elif tree["kind"] == "shm":
                image.shm = mount
            else:
                _files.seal(mount)
                layers.append(Layer(mount, int(tree["size_bytes"]), int(tree["layer_entries"])))
            image.layers = tuple(layers)
        if hashing.digest() != about["sha256"]:
            raise ImageRefused("the files of the image are not what was written")
    except BaseException:
        image.close()
        raise
    return image


class _Hashing:
    """A file that is written or read from its begin to its end, and hashed on the way."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._hash = hashlib.sha256()

    def write(self, data: bytes) -> None:
        self._hash.update(data)
        self._file.write(data)

    def read(self, length: int) -> bytes:
        data = self._file.read(length)
        self._hash.update(data)
        return data

    def digest(self) -> str:
        return self._hash.hexdigest()


# Writing


def _write_tree(mount: int, out: _Hashing) -> dict[str, int]:
    entries = sorted(_walk(mount), key=lambda entry: entry.number)
    if len(entries) > _ENTRIES_AT_MOST:
        raise ImageRefused(f"the sandbox has {len(entries)} files, and an image at most {_ENTRIES_AT_MOST}")
    first: dict[int, str] = {}
    total = 0
    for entry in entries:
        total += _write_entry(mount, entry, first, out)
    return {"entries": len(entries), "bytes": total}


def _walk(mount: int, below: str = "") -> Iterator[_Entry]:
    """Everything in a file system that no process writes to: it is the snapshot's own."""
    folder = os.open(below or ".", _FOLDER, dir_fd=mount)
    try:
        names = os.listdir(folder)
        found = [(name, os.stat(name, dir_fd=folder, follow_symlinks=False)) for name in names]
    finally:
        os.close(folder)
    for name, about in found:
        path = f"{below}/{name}" if below else name
        yield _Entry(about.st_ino, path, about)
        if stat.S_ISDIR(about.st_mode):
            yield from _walk(mount, path)


def _write_entry(mount: int, entry: _Entry, first: dict[int, str], out: _Hashing) -> int:
    about = entry.found
    header: dict[str, Any] = {
        "path": os.fsencode(entry.path).hex(),
        "mode": about.st_mode,
        "owner": [about.st_uid, about.st_gid],
        "times": [about.st_atime_ns, about.st_mtime_ns],
    }
    extents: list[tuple[int, int]] = []
    if entry.number in first and not stat.S_ISDIR(about.st_mode):
        header["same_as"] = os.fsencode(first[entry.number]).hex()
    else:
        first[entry.number] = entry.path
        if stat.S_ISLNK(about.st_mode):
            header["to"] = os.fsencode(os.readlink(entry.path, dir_fd=mount)).hex()
        elif stat.S_ISCHR(about.st_mode) or stat.S_ISBLK(about.st_mode):
            header["device"] = about.st_rdev
        elif stat.S_ISREG(about.st_mode):
            header["size"] = about.st_size
        if stat.S_ISREG(about.st_mode) or stat.S_ISDIR(about.st_mode):
            descriptor = os.open(entry.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=mount)
            try:
                header["attributes"] = {
                    name.encode("utf-8", "surrogateescape").hex(): os.getxattr(descriptor, name).hex()
                    for name in os.listxattr(descriptor)
                }
                if stat.S_ISREG(about.st_mode):
                    extents = list(_extents(descriptor, about.st_size))
                    header["extents"] = extents
                _write_header(header, out)
                return sum(_copy_out(descriptor, begin, end, out) for begin, end in extents)
            finally:
                os.close(descriptor)
    _write_header(header, out)
    return 0


def _write_header(header: dict[str, Any], out: _Hashing) -> None:
    data = json.dumps(header, separators=(",", ":")).encode("ascii")
    if len(data) > _HEADER_AT_MOST:
        raise ImageRefused("a file of the sandbox has too many attributes, or too many holes, for an image")
    out.write(len(data).to_bytes(4, "little") + data)


def _extents(descriptor: int, size: int) -> Iterator[tuple[int, int]]:
    at = count = 0
    while at < size:
        try:
            begin = os.lseek(descriptor, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # nothing but a hole is left
                return
            raise
        at = os.lseek(descriptor, begin, os.SEEK_HOLE)
        count += 1
        if count > _EXTENTS_AT_MOST:
            raise ImageRefused("a file of the sandbox has too many holes for an image")
        yield begin, at


def _copy_out(descriptor: int, begin: int, end: int, out: _Hashing) -> int:
    for at in range(begin, end, _CHUNK):
        length = min(_CHUNK, end - at)
        data = os.pread(descriptor, length, at)
        if len(data) != length:
            raise OSError(errno.EIO, "a file of a snapshot became shorter")
        out.write(data)
    return end - begin


# Reading


def _read_tree(tree: dict[str, Any], source: _Hashing, clean: Clean) -> int:
    entries, size = int(tree["entries"]), int(tree["bytes"])
    if not 0 <= entries <= _ENTRIES_AT_MOST or size < 0:
        raise ImageRefused(f"the image has {entries} files")
    mount = _files.make_tmpfs(size + size // 16 + entries * 4096 + _SLACK_BYTES, entries + _SLACK_INODES)
    try:
        folders = []
        for _ in range(entries):
            header = _read_header(source)
            path = _path(header["path"])
            header = clean(tree["kind"], path, header)
            _make(mount, path, header, source)
            if stat.S_ISDIR(header["mode"]):
                folders.append((path, header))
        for path, header in reversed(folders):  # only now: creating something in a folder changes its times
            _set_attributes(mount, path, header)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError, RecursionError) as error:
        os.close(mount)
        raise ImageRefused(f"the files of the image cannot be read: {error!r:.80}") from error
    except BaseException:
        os.close(mount)
        raise
    return mount


def _read_header(source: _Hashing) -> dict[str, Any]:
    length = int.from_bytes(_exactly(source, 4), "little")
    if length > _HEADER_AT_MOST:
        raise ImageRefused("the files of the image cannot be read: a header is too long")
    header = json.loads(_exactly(source, length))
    if not isinstance(header, dict) or type(header.get("mode")) is not int:
        raise ImageRefused("the files of the image cannot be read: no header")
    return header


def _exactly(source: _Hashing, length: int) -> bytes:
    data = source.read(length)
    if len(data) != length:
        raise ImageRefused("the files of the image are cut short")
    return data


def _path(encoded: str) -> str:
    """A path below the tree. Links that are on the way to it are not followed: see `_folder`."""
    path = os.fsdecode(bytes.fromhex(encoded))
    if not path or path.startswith("/") or any(part in ("", ".", "..") for part in path.split("/")) or "\0" in path:
        raise ImageRefused(f"the image has a file at {path!r:.60}")
    return path


def _folder(mount: int, path: str) -> int:
    """A folder of the tree, which must be no link and behind none: a hostile image has a link to a folder of the
    engine's, and then files below it.
    """
    try:
        return syscalls.open_below(mount, path or ".", _FOLDER)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.ENOENT, errno.EXDEV):
            raise ImageRefused(f"the image has a file in {path!r:.60}, which is none of its folders") from error
        raise


def _make(mount: int, path: str, header: dict[str, Any], source: _Hashing) -> None:
    mode = header["mode"]
    folder = _folder(mount, os.path.dirname(path))
    name = os.path.basename(path)
    try:
        if "same_as" in header:
            _link(mount, _path(header["same_as"]), folder, name)
        elif stat.S_ISDIR(mode):
            os.mkdir(name, 0o700, dir_fd=folder)
        elif stat.S_ISLNK(mode):
            os.symlink(os.fsdecode(bytes.fromhex(header["to"])), name, dir_fd=folder)
            _set_link_attributes(folder, name, header)
        elif stat.S_ISREG(mode):
            _make_file(folder, name, header, source)
        elif stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or (stat.S_ISCHR(mode) and header["device"] == 0):
            os.mknod(name, mode, dir_fd=folder)  # the device 0:0 hides a file of a layer below
            _set_link_attributes(folder, name, header)
        else:
            raise ImageRefused(f"the image has a device at {path!r:.60}")
    finally:
        os.close(folder)


def _link(mount: int, path: str, folder: int, name: str) -> None:
    first = _folder(mount, os.path.dirname(path))
    try:
        os.link(os.path.basename(path), name, src_dir_fd=first, dst_dir_fd=folder, follow_symlinks=False)
    finally:
        os.close(first)


def _make_file(folder: int, name: str, header: dict[str, Any], source: _Hashing) -> None:
    size = header["size"]
    descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
    try:
        before = 0
        for begin, end in header["extents"]:
            if not before <= begin < end <= size:
                raise ImageRefused("a file of the image has data outside of itself")
            for at in range(begin, end, _CHUNK):
                os.pwrite(descriptor, _exactly(source, min(_CHUNK, end - at)), at)
            before = end
        os.ftruncate(descriptor, size)
        _set(descriptor, header)
    finally:
        os.close(descriptor)


def _set_attributes(mount: int, path: str, header: dict[str, Any]) -> None:
    descriptor = _folder(mount, path)
    try:
        _set(descriptor, header)
    finally:
        os.close(descriptor)


def _set(descriptor: int, header: dict[str, Any]) -> None:
    for name, value in header["attributes"].items():
        os.setxattr(descriptor, bytes.fromhex(name), bytes.fromhex(value))
    os.fchown(descriptor, *header["owner"])
    os.fchmod(descriptor, stat.S_IMODE(header["mode"]))  # after the owner, whose change drops bits
    os.utime(descriptor, ns=(header["times"][0], header["times"][1]))


def _set_link_attributes(folder: int, name: str, header: dict[str, Any]) -> None:
    os.chown(name, *header["owner"], dir_fd=folder, follow_symlinks=False)
    if not stat.S_ISLNK(header["mode"]):
        os.chmod(name, stat.S_IMODE(header["mode"]), dir_fd=folder)
    os.utime(name, ns=(header["times"][0], header["times"][1]), dir_fd=folder, follow_symlinks=False)
