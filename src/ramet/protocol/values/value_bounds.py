"""Limits and checks for values that are read from a sandbox or set in one by name."""

from __future__ import annotations

import unicodedata
from keyword import iskeyword

from ramet.protocol.argument_errors import Words, kind_of, must
from ramet_guest import wire

# Arrays, bytes and long texts of a value. The rest is JSON (numbers, short texts, lists and dicts), which can take
# twenty times as much in memory and has a limit of its own.
DATA_BYTES_AT_MOST = wire.VALUE_DATA_BYTES_AT_MOST
JSON_BYTES_AT_MOST = wire.VALUE_JSON_BYTES_AT_MOST
# The encoded value.
VALUE_BYTES_AT_MOST = DATA_BYTES_AT_MOST + JSON_BYTES_AT_MOST + 4
# Values up to this size travel in the request itself.
INLINE_BYTES = 1024 * 1024
_NAME_CHARACTERS_AT_MOST = 200


def check_name(name: object) -> str:
    """Return the name in Python's normal form. Raise InvalidArgument."""
    if not isinstance(name, str):
        raise must("name", "be a string", Words(kind_of(name)))
    known = unicodedata.normalize("NFKC", name) if not name.isascii() else name
    if not known.isidentifier() or iskeyword(known) or len(known) > _NAME_CHARACTERS_AT_MOST:
        raise must("name", "be the name of a variable", name)
    return known
