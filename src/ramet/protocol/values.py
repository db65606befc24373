"""Bounds and checks for values that are taken out of a sandbox or put into one by name."""

from __future__ import annotations

import unicodedata
from keyword import iskeyword

from ramet.protocol.refusing import Words, kind_of, must

# Of a value: arrays, bytes and long texts; and beside those JSON: numbers, short texts, lists and dicts, which can take
# twenty times as much in memory.
DATA_BYTES_AT_MOST = 100 * 1024 * 1024
JSON_BYTES_AT_MOST = 16 * 1024 * 1024
# As it travels.
VALUE_BYTES_AT_MOST = DATA_BYTES_AT_MOST + JSON_BYTES_AT_MOST + 4
# What is at most this long travels in the request itself.
INLINE_BYTES = 1024 * 1024
_NAME_CHARACTERS_AT_MOST = 200


def check_name(name: object) -> str:
    """The name as Python knows it, or InvalidArgument."""
    if not isinstance(name, str):
        raise must("name", "be a string", Words(kind_of(name)))
    known = unicodedata.normalize("NFKC", name) if not name.isascii() else name
    if not known.isidentifier() or iskeyword(known) or len(known) > _NAME_CHARACTERS_AT_MOST:
        raise must("name", "be the name of a variable", name)
    return known
