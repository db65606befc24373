"""Whose points are in a store: each engine that writes some holds a lock there while it lives.

    FOLDER/engines/WORD       empty, locked by a living engine
    FOLDER/names/past-WORD-*  its points

What an engine that was killed has left is found and removed by the next one that opens the store.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re

from ramet.freezing.images.stored.store import PAST_PREFIX, ImageStore

_WORD = re.compile(r"\.?[0-9a-f]{16}")
_ENGINES = "engines"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def sweep_left(store: ImageStore) -> None:
    """Remove the points of engines that live no more."""
    found = {name: name.removeprefix(PAST_PREFIX).partition("-")[0] for name in store.names(PAST_PREFIX)}
    with contextlib.suppress(OSError):
        engines = _engines(store)
        try:
            words = {*found.values(), *os.listdir(engines)}
            dead = {word for word in words if _WORD.fullmatch(word) and not _lives(engines, word)}
            for name, word in found.items():
                if word in dead:
                    store.forget(name)
            for word in dead:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(word, dir_fd=engines)
        finally:
            os.close(engines)


def _engines(store: ImageStore) -> int:
    with contextlib.suppress(FileExistsError):
        os.mkdir(_ENGINES, 0o700, dir_fd=store.folder)
    return os.open(_ENGINES, _FOLDER, dir_fd=store.folder)


def hold_mark(store: ImageStore, word: str) -> int:
    """A descriptor, the caller's, that holds the lock of an engine. Raises OSError."""
    engines = _engines(store)
    try:
        # Locked before it has its name, so that another engine never finds it unlocked and takes its owner for dead.
        temporary = f".{word}"
        mark = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=engines)
        fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.rename(temporary, word, src_dir_fd=engines, dst_dir_fd=engines)
        return mark
    finally:
        os.close(engines)


def _lives(engines: int, word: str) -> bool:
    try:
        mark = os.open(word, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=engines)
    except OSError:
        return False
    try:
        fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(mark)
    return False


def leave(store: ImageStore, word: str, mark: int) -> None:
    """Remove all points of an engine, and let its lock go."""
    for name in store.names(f"{PAST_PREFIX}{word}-"):
        store.forget(name)
    engines = _engines(store)
    try:
        os.unlink(word, dir_fd=engines)
    finally:
        os.close(engines)
        os.close(mark)
