"""Brings files of one sandbox into another: copies all of them aside first, then puts each in its place.

Both trees belong to untrusted code, which may change them between any two system calls. Paths are opened below a root,
no link is followed, and only regular files are read. Copies lie aside in the receiver until all are there: so
one that does not fit changes nothing.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from posixpath import basename, dirname

from ramet.errors import NO_ROOM_ERRNOS, LimitReached, file_error
from ramet.isolation.files.differences import ComparedPod
from ramet.isolation.files.three_way import FilePlan, mode_at
from ramet.isolation.files.walks import Stop
from ramet.isolation.kernel import syscalls
from ramet.protocol.values.differences import FileChange

MOST_BYTES = 16 << 30
_PIECE_BYTES = 16 << 20
_PATH = os.O_PATH | os.O_NOFOLLOW
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_SHM = "/dev/shm"
_DEEPEST = 500


class FileTaking:
    """Carries out a plan. ``stage`` changes nothing that was there; ``commit`` does, and may fail half-way."""

    def __init__(self, plan: FilePlan, ours: ComparedPod, theirs: ComparedPod) -> None:
        self.plan = plan
        self.copied_bytes = 0
        self._ours = ours
        self._theirs = theirs
        owner = os.fstat(ours.root)
        self._owner = owner.st_uid, owner.st_gid
        self._folders: dict[str, str] = {}  # of copies, by mount
        self._copies: dict[str, str] = {}  # by path

    def stage(self, stop: Stop) -> None:
        """Copy what is to come. Blocks. Raises LimitReached, FileError, WalkCancelled."""
        linked: dict[tuple[int, int], str] = {}
        for change in self.plan.changes:
            stop.check()
            if change.after is None or change.after.type == "folder":
                continue
            with _told("take", change.path):
                copy = f"{self._folder_for(change.path)}/{len(self._copies)}"
                self._copy(change.path, copy, linked, stop)
                self._copies[change.path] = copy

    def commit(self) -> None:
        """Put everything in its place. Blocks. After an error the receiver is in between."""
        changes = self.plan.changes
        for change in reversed(changes):  # what is in a folder comes before the folder
            with _told("remove", change.path):
                self._make_way(change)
        folders = [change for change in changes if change.after is not None and change.after.type == "folder"]
        for change in folders:
            with _told("make", change.path), _opened(self._ours.root, dirname(change.path)) as parent:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(basename(change.path), 0o700, dir_fd=parent)
                    self._adopt(parent, basename(change.path))
        for path, copy in self._copies.items():
            with _told("take", path), _opened(self._ours.root, dirname(copy)) as aside:
                with _opened(self._ours.root, dirname(path)) as parent:
                    os.rename(basename(copy), basename(path), src_dir_fd=aside, dst_dir_fd=parent)
        for change in reversed(folders):
            assert change.after is not None
            with _told("make", change.path), _opened(self._ours.root, change.path, _FOLDER) as folder:
                if stat.S_IMODE(os.fstat(folder).st_mode) != change.after.mode:
                    os.fchmod(folder, change.after.mode)

    def close(self) -> None:
        """Remove the copies that are still aside. Never fails."""
        for folder in self._folders.values():
            with contextlib.suppress(OSError), _opened(self._ours.root, dirname(folder)) as parent:
                _remove(parent, basename(folder))
        self._folders.clear()

    # Copies

    def _folder_for(self, path: str) -> str:
        """The folder for copies on the mount that a path is on: only there can they be renamed to it."""
        tops = [*(top for _, top in self._ours.files.overlays), _SHM]
        mount = max((top for top in tops if top == "/" or path.startswith(f"{top}/")), key=len)
        if mount not in self._folders:
            name = f".ramet-taking-{secrets.token_hex(8)}"
            with _opened(self._ours.root, mount) as top:
                os.mkdir(name, 0o700, dir_fd=top)
                self._folders[mount] = f"{mount.rstrip('/')}/{name}"
                self._adopt(top, name)
        return self._folders[mount]

    def _copy(self, path: str, copy: str, linked: dict[tuple[int, int], str], stop: Stop) -> None:
        with _opened(self._theirs.root, path, _PATH) as source, _opened(self._ours.root, dirname(copy)) as folder:
            found = os.fstat(source)
            number, name = (found.st_dev, found.st_ino), basename(copy)
            if found.st_nlink > 1 and dirname(linked.get(number, "")) == dirname(copy):
                os.link(basename(linked[number]), name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
                return
            if stat.S_ISLNK(found.st_mode):
                os.symlink(os.readlink("", dir_fd=source), name, dir_fd=folder)
            elif stat.S_ISFIFO(found.st_mode):
                os.mkfifo(name, 0o600, dir_fd=folder)
                os.chmod(name, stat.S_IMODE(found.st_mode), dir_fd=folder)
            elif stat.S_ISREG(found.st_mode):
                self._copy_content(source, folder, name, stop)
            else:
                raise OSError(errno.EPERM, "it has become something that cannot be taken")
            self._adopt(folder, name)
            times = found.st_atime_ns, found.st_mtime_ns
            os.utime(name, ns=times, dir_fd=folder, follow_symlinks=False)
            linked[number] = copy

    def _copy_content(self, source: int, folder: int, name: str, stop: Stop) -> None:
        # Through /proc this is the inode that was looked at, whatever has its name by now.
        reading = os.open(f"/proc/self/fd/{source}", os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        with contextlib.ExitStack() as closing:
            closing.callback(os.close, reading)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            writing = os.open(name, flags, 0o600, dir_fd=folder)
            closing.callback(os.close, writing)
            found = os.fstat(reading)
            for start, end in _data(reading, found.st_size):
                self._copy_range(reading, writing, start, end, stop)
            os.ftruncate(writing, found.st_size)
            for attribute in os.listxattr(reading):
                if attribute.startswith("user.") and not attribute.startswith("user.overlay."):
                    os.setxattr(writing, attribute, os.getxattr(reading, attribute))
            os.fchmod(writing, stat.S_IMODE(found.st_mode))

    def _copy_range(self, reading: int, writing: int, start: int, end: int, stop: Stop) -> None:
        os.lseek(writing, start, os.SEEK_SET)
        while start < end:
            stop.check()
            copied = os.sendfile(writing, reading, start, min(_PIECE_BYTES, end - start))
            if not copied:
                return  # the sandbox has shortened it meanwhile
            start += copied
            self.copied_bytes += copied
            if self.copied_bytes > MOST_BYTES:
                raise LimitReached(f"the files have more than {MOST_BYTES} bytes", hint="take fewer of them")

    def _adopt(self, folder: int, name: str) -> None:
        """Give what the engine has made to the user of the sandbox."""
        made = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if (made.st_uid, made.st_gid) != self._owner:
            os.chown(name, *self._owner, dir_fd=folder, follow_symlinks=False)

    # In their places

    def _make_way(self, change: FileChange) -> None:
        """Remove what a change removes, and what cannot be replaced by a rename: a folder by a file or the reverse."""
        mode = mode_at(self._ours, change.path)
        comes_folder = change.after is not None and change.after.type == "folder"
        if mode is None or (change.after is not None and stat.S_ISDIR(mode) == comes_folder):
            return
        with _opened(self._ours.root, dirname(change.path)) as parent:
            _remove(parent, basename(change.path))


def _data(file: int, size_bytes: int) -> Iterator[tuple[int, int]]:
    """The parts of a file that are no holes."""
    end = 0
    while end < size_bytes:
        try:
            start = os.lseek(file, end, os.SEEK_DATA)
            end = min(os.lseek(file, start, os.SEEK_HOLE), size_bytes)
        except OSError as error:
            if error.errno == errno.ENXIO:  # nothing but a hole from here on
                return
            raise
        if start >= end:
            return
        yield start, end


def _remove(parent: int, name: str) -> None:
    """Remove a file or a folder with all that is in it. Each level is opened below the one above, through no link."""
    levels: list[tuple[int, str, list[str]]] = []

    def unlink(folder: int, entry: str) -> None:
        try:
            os.unlink(entry, dir_fd=folder)
        except IsADirectoryError:
            if len(levels) == _DEEPEST:
                raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG)) from None
            below = os.open(entry, _FOLDER | os.O_CLOEXEC, dir_fd=folder)
            levels.append((below, entry, []))
            levels[-1][2].extend(os.listdir(below))

    try:
        unlink(parent, name)
        while levels:
            folder, entry, names = levels[-1]
            if names:
                with contextlib.suppress(FileNotFoundError):  # a program in the sandbox has removed it
                    unlink(folder, names.pop())
            else:
                levels.pop()
                os.close(folder)
                os.rmdir(entry, dir_fd=levels[-1][0] if levels else parent)
    finally:
        for folder, _, _ in levels:
            os.close(folder)


@contextlib.contextmanager
def _opened(root: int, path: str, flags: int = os.O_PATH | os.O_DIRECTORY) -> Iterator[int]:
    descriptor = syscalls.open_in_root(root, path, flags, follow_links=False)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _told(tried: str, path: str) -> Iterator[None]:
    """Makes an error of the kernel one that names the path."""
    try:
        yield
    except OSError as error:
        number = error.errno or errno.EIO
        if number in NO_ROOM_ERRNOS or number == errno.EFBIG:
            raise LimitReached(
                f"cannot {tried} {path!r}: the disk of the receiving sandbox is full ({os.strerror(number)})",
                hint="remove files there, take fewer, or give it a larger disk_mib",
            ) from error
        raise file_error(tried, path, number) from error
