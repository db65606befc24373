"""A value on its way into a sandbox: small ones in the request itself, others by way of a file."""

from __future__ import annotations

from collections.abc import Generator
from importlib.util import find_spec
from os import urandom
from typing import Literal, NamedTuple, TypeAlias

from ramet.errors import LimitReached, ValueUnsupported
from ramet.protocol.tool_values import CannotCross, EncodedValue, encode_value
from ramet.protocol.values import DATA_BYTES_AT_MOST, INLINE_BYTES, check_name

# Beside the files of outputs that were too long for a result.
_FOLDER = "/var/tmp/ramet"


class Upload(NamedTuple):
    """Write the value to this file of the sandbox."""

    path: str
    value: EncodedValue
    kind: Literal["upload"] = "upload"


class Assign(NamedTuple):
    """Give the name a value, which is in the file or here."""

    name: str
    path: str | None
    data: bytes
    kind: Literal["assign"] = "assign"


class Remove(NamedTuple):
    """Remove the file, if it is still there."""

    path: str
    kind: Literal["remove"] = "remove"


Step: TypeAlias = Upload | Assign | Remove
Steps: TypeAlias = Generator[Step, None, None]


def give(name: str, value: object) -> Steps:
    """The steps that give a name a value. Everything is checked before the first. What fails is thrown in."""
    known = check_name(name)
    # What can be read in there is only known in there: tables go as Arrow first, where that is possible here.
    plain = ("frame", "npy")
    formats: list[tuple[str, ...]] = [("arrow", *plain), plain] if find_spec("pyarrow") is not None else [plain]
    encoded = _encoded(known, value, formats[0])
    return _give(known, value, encoded, formats[1:])


def _give(name: str, value: object, encoded: EncodedValue, other_formats: list[tuple[str, ...]]) -> Steps:
    while True:
        try:
            yield from _sent(name, encoded)
        except ValueUnsupported as error:
            if error.details.get("kind") != "format" or not other_formats:
                raise
            encoded = _encoded(name, value, other_formats.pop(0))
        else:
            return


def _sent(name: str, encoded: EncodedValue) -> Steps:
    if encoded.size_bytes <= INLINE_BYTES:
        yield Assign(name, None, encoded.whole())
        return
    path = f"{_FOLDER}/value-{urandom(16).hex()}"
    try:
        yield Upload(path, encoded)
        yield Assign(name, path, b"")
    except GeneratorExit:
        raise
    except BaseException:  # whoever gives up, by Ctrl-C too, leaves no hundred megabytes behind
        yield Remove(path)
        raise


def _encoded(name: str, value: object, formats: tuple[str, ...]) -> EncodedValue:
    try:
        encoded = encode_value(value, formats, any_keys=True)
    except CannotCross as error:
        raise ValueUnsupported(
            f"{error.told(name)}, which cannot be given to a sandbox",
            hint="give plain data, bytes, an array of numpy or a DataFrame; upload anything else as a file",
        ) from None
    if encoded.size_bytes > DATA_BYTES_AT_MOST:
        raise LimitReached(
            f"{name} has {encoded.size_bytes} bytes, and at most {DATA_BYTES_AT_MOST} are possible",
            hint="write it to a file and upload that",
        )
    return encoded
