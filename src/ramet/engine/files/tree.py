"""File operations in a sandbox, by descriptors below its root. No function here names a path of the host.

The tree belongs to untrusted code, which may change it between any two system calls: links, renames, FIFOs in place of
files. So each operation resolves its path with openat2 below the root, works on the descriptor it got, and checks what
that descriptor is.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Generator, Iterator
from contextlib import contextmanager

from ramet.isolation.files.walks import Stop
from ramet.isolation.kernel.syscalls import file_system_type, open_in_root
from ramet.protocol.values.results import FileInfo, FileType

HOME = "/root"

# File systems of the kernel whose files look regular. The engine would read or write them with its own privileges.
# From linux/magic.h: proc, sysfs, cgroup, cgroup2, debugfs, tracefs, securityfs, bpf.
_KERNEL_FILE_SYSTEMS = frozenset(
    (0x9FA0, 0x62656572, 0x27E0EB, 0x63677270, 0x64626720, 0x74726163, 0x73636673, 0xCAFE4A11)
)
_FILE_MODE = 0o644
_FOLDER_MODE = 0o755
_DEEPEST = 500  # as deep as a fork copies; a recursive removal holds one descriptor for each level


class SandboxTree:
    """File operations below one root. Owns a duplicate of the root's descriptor, so it outlives the sandbox."""

    def __init__(self, root: int) -> None:
        self._root = os.dup(root)

    def close(self) -> None:
        os.close(self._root)

    def open_to_read(self, path: str) -> int:
        """Open a regular file. Raises OSError."""
        # O_NONBLOCK: opening a FIFO without a writer would block the thread for ever.
        descriptor = open_in_root(self._root, _absolute(path), os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
        return _regular(descriptor)

    def open_to_write(self, path: str) -> int:
        """Open an empty regular file at the path, and make missing folders above it. Raises OSError."""
        path = _absolute(path)
        # Not O_TRUNC: it would take effect before we have checked what was opened.
        flags = os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | os.O_NOCTTY
        try:
            descriptor = open_in_root(self._root, path, flags, _FILE_MODE)
        except FileNotFoundError:
            os.close(self._make_folders(_split(path)[0]))
            descriptor = open_in_root(self._root, path, flags, _FILE_MODE)
        descriptor = _regular(descriptor)
        try:
            self._adopt(descriptor)
            os.ftruncate(descriptor, 0)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def stat(self, path: str) -> FileInfo:
        path = _absolute(path)
        descriptor = open_in_root(self._root, path, os.O_PATH)
        try:
            return _info(path.rstrip("/").rpartition("/")[2] or "/", os.fstat(descriptor))
        finally:
            os.close(descriptor)

    def entries(self, path: str) -> Generator[FileInfo, None, None]:
        """The entries of a folder, unordered; links are not followed."""
        descriptor = open_in_root(self._root, _absolute(path), os.O_RDONLY | os.O_DIRECTORY | os.O_NONBLOCK)
        try:
            with os.scandir(descriptor) as entries:
                for entry in entries:
                    try:
                        yield _info(entry.name, entry.stat(follow_symlinks=False))
                    except FileNotFoundError:
                        continue  # removed since the folder was read
        finally:
            os.close(descriptor)

    def make_folder(self, path: str, parents: bool) -> None:
        path = _absolute(path)
        if parents:
            os.close(self._make_folders(path))
            return
        with self._parent(path) as (folder, name):
            self._make_one(folder, name)

    def remove(self, path: str, recursive: bool, stop: Stop | None = None) -> None:
        with self._parent(_absolute(path)) as (folder, name):
            if not stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                os.unlink(name, dir_fd=folder)
            elif not recursive:
                os.rmdir(name, dir_fd=folder)
            else:
                _remove_tree(folder, name, stop or Stop())

    def rename(self, path: str, new_path: str) -> None:
        with self._parent(_absolute(path)) as (folder, name):
            with self._parent(_absolute(new_path)) as (new_folder, new_name):
                os.rename(name, new_name, src_dir_fd=folder, dst_dir_fd=new_folder)

    @contextmanager
    def _parent(self, path: str) -> Iterator[tuple[int, str]]:
        folder, name = _split(path)
        if name in ("", ".", ".."):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        descriptor = open_in_root(self._root, folder, os.O_PATH | os.O_DIRECTORY)
        try:
            yield descriptor, name
        finally:
            os.close(descriptor)

    def _make_folders(self, path: str) -> int:
        """Make a folder and all that is missing above it. Returns a descriptor of it."""
        reached = open_in_root(self._root, "/", os.O_PATH | os.O_DIRECTORY)
        walked = ""
        for name in path.split("/"):
            if name in ("", "."):
                continue
            walked += "/" + name
            try:
                try:
                    following = open_in_root(self._root, walked, os.O_PATH | os.O_DIRECTORY)
                except FileNotFoundError:
                    self._make_one(reached, name)
                    following = open_in_root(self._root, walked, os.O_PATH | os.O_DIRECTORY)
            finally:
                os.close(reached)
            reached = following
        return reached

    def _make_one(self, folder: int, name: str) -> None:
        os.mkdir(name, _FOLDER_MODE, dir_fd=folder)
        # The engine makes it as its own user. Untrusted code may have replaced it by now: hence no link is followed.
        owner = os.fstat(self._root)
        made = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if (made.st_uid, made.st_gid) != (owner.st_uid, owner.st_gid):
            os.chown(name, owner.st_uid, owner.st_gid, dir_fd=folder, follow_symlinks=False)

    def _adopt(self, descriptor: int) -> None:
        """Give a new, still empty file to the user of the sandbox, who owns the root of the tree."""
        owner = os.fstat(self._root)
        found = os.fstat(descriptor)
        # Only what we have just made: an existing file of the sandbox keeps its owner.
        mine = found.st_uid == os.geteuid() and found.st_size == 0
        if mine and (found.st_uid, found.st_gid) != (owner.st_uid, owner.st_gid):
            os.fchown(descriptor, owner.st_uid, owner.st_gid)


def _remove_tree(parent: int, name: str, stop: Stop) -> None:
    """Remove a folder and its contents. If a program adds entries meanwhile, the removal fails with ENOTEMPTY.

    Each level is opened relative to the one above with O_NOFOLLOW: a folder that is replaced by a link during the
    removal leads nowhere.
    """
    levels: list[tuple[int, str, list[str]]] = []

    def enter(above: int, folder: str) -> None:
        if len(levels) == _DEEPEST:
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(folder, flags, dir_fd=above)
        levels.append((descriptor, folder, []))
        levels[-1][2].extend(os.listdir(descriptor))

    try:
        enter(parent, name)
        while levels:
            stop.check()
            descriptor, folder, names = levels[-1]
            if names:
                entry = names.pop()
                try:
                    os.unlink(entry, dir_fd=descriptor)
                except IsADirectoryError:
                    enter(descriptor, entry)
                except FileNotFoundError:
                    pass  # a program in the sandbox has removed it
            else:
                levels.pop()
                os.close(descriptor)
                os.rmdir(folder, dir_fd=levels[-1][0] if levels else parent)
    finally:
        for descriptor, _, _ in levels:
            os.close(descriptor)


def _absolute(path: str) -> str:
    return path if path.startswith("/") else f"{HOME}/{path}"


def _split(path: str) -> tuple[str, str]:
    folder, _, name = path.rstrip("/").rpartition("/")
    return folder or "/", name


def _regular(descriptor: int) -> int:
    """Return the descriptor if it is a regular file on a disk or in memory; else close it and raise OSError."""
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not stat.S_ISREG(mode) or file_system_type(descriptor) in _KERNEL_FILE_SYSTEMS:
            raise PermissionError(errno.EPERM, "not a regular file")
        return descriptor
    except BaseException:
        os.close(descriptor)
        raise


def _info(name: str, found: os.stat_result) -> FileInfo:
    return FileInfo(
        name=name,
        type=_type(found.st_mode),
        size_bytes=found.st_size,
        mode=stat.S_IMODE(found.st_mode),
        modified_seconds=found.st_mtime,
    )


def _type(mode: int) -> FileType:
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "folder"
    return "link" if stat.S_ISLNK(mode) else "other"
