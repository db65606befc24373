"""Descriptors of files, folders and devices: by a path that leads to them, or with their contents if no path does."""

from __future__ import annotations

import fcntl
import os
import re
import stat

from ramet.freezing.descriptors.access import Opened, ProcessAccess, inode_of
from ramet.freezing.descriptors.calls import SETTABLE_FLAGS, CallList
from ramet.freezing.descriptors.kinds import nameless, pipes, terminals
from ramet.freezing.descriptors.recipes import Description, NamedFile, NamelessFolder, ProcFile, Thing

_DELETED = b" (deleted)"
_O_TMPFILE = 0o20200000
_O_NOCTTY = 0o400
# Flags that the kernel keeps in a description, but that are useless or wrong when it is opened again.
_NOT_FOR_OPENING = 0o20000000 | 0o20000  # __O_TMPFILE, O_ASYNC
_PROCESS = re.compile(rb"/proc/(\d+)(/.+)?", re.DOTALL)


def read_file(access: ProcessAccess, opened: Opened) -> Thing:
    """Read a descriptor whose link is, or was, a path."""
    status = access.status(opened.number)
    mode = status.st_mode
    if opened.link.startswith(b"/proc/"):
        return _read_proc(access, opened)
    if stat.S_ISCHR(mode) and not opened.flags & os.O_PATH:
        return _read_device(access, opened, status)
    # Asked of the kernel, not believed from the link: the file may have been renamed, deleted or covered by a mount.
    path = _path_of(access, opened, status)
    if stat.S_ISFIFO(mode) and not opened.flags & os.O_PATH:
        return pipes.read_fifo(access, opened, path)
    if path is not None:
        # A folder's offset is a cookie of its file system, meaningless in a copied tree. Sockets are not files that a
        # copied tree must contain.
        expected = access.in_own_tree(opened) and not stat.S_ISSOCK(mode)
        return NamedFile(path, seekable=stat.S_ISREG(mode), expected=expected)
    if stat.S_ISREG(mode) and not opened.flags & os.O_PATH:
        return nameless.read_nameless(access, opened, status, _folder_of(access, opened))
    if stat.S_ISDIR(mode):
        return NamelessFolder()
    return access.dead(opened)


def _path_of(access: ProcessAccess, opened: Opened, status: os.stat_result) -> bytes | None:
    """A path in the pod that leads to this inode, or None. A name may itself end in " (deleted)"."""
    if access.leads_to(opened.link, inode_of(status)):
        return opened.link
    # The name was deleted, and a hard link has since given the file the same name again.
    if opened.link.endswith(_DELETED) and access.leads_to(opened.link.removesuffix(_DELETED), inode_of(status)):
        return opened.link.removesuffix(_DELETED)
    return None


def _folder_of(access: ProcessAccess, opened: Opened) -> bytes:
    """The folder of a deleted file, or another one on the same kind of storage."""
    folder = os.path.dirname(opened.link)
    if access.in_own_tree(opened) and access.has_folder(folder):
        return folder
    return b"/dev/shm" if folder.startswith(b"/dev/shm") else b"/tmp"


def _read_proc(access: ProcessAccess, opened: Opened) -> Thing:
    """Files of /proc about the process itself are about the copy in the copy. Those about others are dead there."""
    found = _PROCESS.fullmatch(opened.link)
    if found is None:
        return NamedFile(opened.link, seekable=True, expected=False)
    if int(found[1]) == access.target.pid_inside:
        return ProcFile(found[2] or b"")
    return access.dead(opened)


def _read_device(access: ProcessAccess, opened: Opened, status: os.stat_result) -> Thing:
    if terminals.is_terminal(opened, status):
        return terminals.read_terminal(access, opened, status)
    if access.leads_to(opened.link, inode_of(status)):
        return NamedFile(opened.link, seekable=False, expected=False)
    return access.dead(opened)


def read_namespace(access: ProcessAccess, opened: Opened) -> Thing:
    """A namespace of the process's own becomes the copy's own in the copy. Others are dead."""
    kind = opened.link.partition(b":")[0]
    try:
        own = os.readlink(b"/proc/%d/ns/%s" % (access.target.pid, kind))
    except OSError:
        own = b""
    return ProcFile(b"/ns/" + kind) if own == opened.link else access.dead(opened)


def make_named(script: CallList, each: Description, thing: NamedFile) -> int:
    name = f"open {os.fsdecode(thing.path)!r} again"
    flags = (each.flags & ~_NOT_FOR_OPENING) | _O_NOCTTY
    make = script.create if thing.expected else script.try_create
    # In a folder of the host anything may be at this path by now. Open without blocking, so that a FIFO without a
    # writer cannot hang the thaw, and clear the flag afterwards.
    waits = not flags & (os.O_PATH | os.O_NONBLOCK)
    slot = make(name, "open", thing.path + b"\0", flags | os.O_NONBLOCK if waits else flags, 0)
    if waits:
        script.call(name, "fcntl", slot, fcntl.F_SETFL, flags & SETTABLE_FLAGS, must_work=False)
    if thing.seekable and each.position and not each.flags & os.O_PATH:
        script.call(name, "lseek", slot, each.position, os.SEEK_SET, must_work=thing.expected)
    return slot


def make_proc(script: CallList, each: Description, thing: ProcFile, main_pid: int) -> int:
    path = b"/proc/%d" % main_pid + thing.below
    slot = script.try_create(
        f"open {os.fsdecode(path)!r} again", "open", path + b"\0", each.flags & ~_NOT_FOR_OPENING, 0
    )
    if each.position:
        script.call("move in a file of /proc", "lseek", slot, each.position, os.SEEK_SET, must_work=False)
    return slot


def make_nameless_folder(script: CallList, each: Description, number: int) -> int:
    """Make a folder that has been removed, by making and removing one."""
    path = b"/tmp/.ramet-removed-%d\0" % number
    script.call("make a folder to be removed", "mkdir", path, 0o700)
    slot = script.create("open a removed folder", "open", path, each.flags & ~_NOT_FOR_OPENING, 0)
    script.call("remove the folder again", "rmdir", path)
    return slot
