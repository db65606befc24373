"""File locks, from the `lock:` lines in a descriptor's fdinfo."""

from __future__ import annotations

import os
import struct

from ramet.freezing.descriptors.calls import CallList
from ramet.freezing.descriptors.recipes import Description, Lock

_LOCK_SH, _LOCK_EX, _LOCK_NB = 1, 2, 4
_F_SETLK, _F_OFD_SETLK = 6, 37
_F_RDLCK, _F_WRLCK = 0, 1


def read_locks(lines: tuple[str, ...]) -> tuple[Lock, ...]:
    """Parse ``lock:  1: POSIX  ADVISORY  WRITE 4711 00:2a:17 5 14``: owner's pid, file, first and last byte."""
    found: list[Lock] = []
    for line in lines:
        words = line.split()
        if words[0] != "lock:" or len(words) != 9 or words[2] not in ("FLOCK", "POSIX", "OFDLCK"):
            continue
        start = int(words[7])
        length = 0 if words[8] == "EOF" else int(words[8]) - start + 1
        found.append(Lock(words[2], words[4] == "WRITE", words[6], start, length))
    return tuple(found)


def take_locks(script: CallList, descriptions: list[Description]) -> None:
    """Take the locks, last of all: closing any descriptor of a file drops the process's POSIX locks on it.

    In a copy's own tree no other process can hold them. On a folder of the host the original still does, so a copy has
    none there.
    """
    # A POSIX lock belongs to the process: it is taken once, whichever descriptors show it.
    done: set[Lock] = set()
    for each in descriptions:
        number = each.places[0].number
        for lock in each.locks:
            if lock.kind == "FLOCK":
                how = (_LOCK_EX if lock.exclusive else _LOCK_SH) | _LOCK_NB
                script.call("lock a file", "flock", number, how, must_work=False)
                continue
            if lock.kind == "POSIX":
                # Every descriptor of the file shows the lock, but only one with the right access mode can take it.
                wrong = os.O_RDONLY if lock.exclusive else os.O_WRONLY
                if lock in done or each.flags & os.O_ACCMODE == wrong:
                    continue
                done.add(lock)
            kind = _F_WRLCK if lock.exclusive else _F_RDLCK
            record = struct.pack("hhqqi4x", kind, os.SEEK_SET, lock.start, lock.length, 0)
            command = _F_SETLK if lock.kind == "POSIX" else _F_OFD_SETLK
            script.call("lock a part of a file", "fcntl", number, command, record, must_work=False)
