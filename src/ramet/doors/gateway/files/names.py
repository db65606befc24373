"""Sanitises names and types of files that others chose; a name is never empty."""

from __future__ import annotations

import mimetypes
import re

_BYTES_AT_MOST = 255  # NAME_MAX of Linux
_UNKNOWN_TYPE = "application/octet-stream"
_MIME_TYPE = re.compile(r"[A-Za-z0-9!#$&^_.+-]{1,100}/[A-Za-z0-9!#$&^_.+-]{1,100}")
# Control characters, characters that reorder text, and lone surrogates; no file name needs them.
_ODD = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def clean_name(filename: str, mime_type: str | None = None) -> str:
    """The last part of a path, as a name that is valid in any folder."""
    name = _ODD.sub("_", re.split(r"[/\\]", filename)[-1]).strip()
    if name in ("", ".", ".."):
        name = "unnamed" + (mimetypes.guess_extension(mime_type or "") or "")
    return shortened(name, _BYTES_AT_MOST)


def shortened(name: str, bytes_at_most: int) -> str:
    """Cut the middle out of a name, so that it has at most this many bytes and keeps its extension."""
    if len(name.encode()) <= bytes_at_most:
        return name
    stem, dot, extension = name.rpartition(".")
    if not stem or len(extension.encode()) > 16:
        stem, dot, extension = name, "", ""
    room = bytes_at_most - len((dot + extension).encode())
    return stem.encode()[:room].decode("utf-8", "ignore") + dot + extension


def distinct(name: str, taken: set[str]) -> str:
    """The name, or if it is taken, one with a number before its extension."""
    if name not in taken:
        return name
    stem, dot, extension = name.rpartition(".")
    if not stem:
        stem, dot, extension = name, "", ""
    number = 2
    while (candidate := shortened(f"{stem}-{number}{dot}{extension}", _BYTES_AT_MOST)) in taken:
        number += 1
    return candidate


def mime_type_of(name: str, said: str | None) -> str:
    """The given type if it is valid, else a guess from the name."""
    plain = (said or "").partition(";")[0].strip().lower()
    if plain != _UNKNOWN_TYPE and _MIME_TYPE.fullmatch(plain):
        return plain
    guessed, encoding = mimetypes.guess_type(name)
    return _UNKNOWN_TYPE if guessed is None or encoding is not None else guessed
